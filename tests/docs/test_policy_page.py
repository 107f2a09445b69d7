"""The worked example of docs/policy.md is worked out right, from the costs that it names."""

import pytest

from sglang_adaptive_spec.policy.settings import DEFAULTS
from sglang_adaptive_spec.simulate.true_costs import ExampleCosts
from sglang_adaptive_spec.tiers import chain_tier
from tests.docs.pages import INLINE_CODE, section
from tests.hosts import REPO

PAGE = (REPO / "docs" / "policy.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in section(PAGE, "The idea").splitlines()
    if line.count("|") == 8
]
STEPS = (0, 1, 3, 5, 7)
CONTEXT = 256  # tokens a request


def test_tokens_per_ms_follow_from_acceptance_and_round_times() -> None:
    assert ROWS[0][2:] == ["no drafts", "1 step", "3", "5", "7"]
    costs, num_checked = ExampleCosts("flashinfer"), 0
    for name, acceptance, *cells in ROWS[2:]:
        size = int(name.split()[0])
        ms = [costs.round_ms(chain_tier(steps), size, CONTEXT * size) for steps in STEPS]
        if name.endswith("ms a round"):
            assert [float(cell) for cell in cells] == pytest.approx(ms, abs=0.005)
            continue
        rates = [
            size * sum(float(acceptance) ** depth for depth in range(steps + 1)) / of_steps
            for steps, of_steps in zip(STEPS, ms, strict=True)
        ]
        assert [float(cell.strip("*")) for cell in cells] == pytest.approx(rates, abs=0.005)
        (best,) = (idx for idx, cell in enumerate(cells) if cell.startswith("**"))
        assert rates[best] == max(rates)
        num_checked += 1
    assert num_checked == 4


def test_the_table_of_settings_has_their_names_and_values() -> None:
    rows = [line.split("|")[1:3] for line in section(PAGE, "Constants").splitlines()]
    settings = [row for row in rows if row and "." in row[0]]
    assert len(settings) > 20
    for names, values in settings:
        pairs = [name.split(".") for name in INLINE_CODE.findall(names)]
        told = [getattr(getattr(DEFAULTS, group), name) for group, name in pairs]
        assert told == [float(value) for value in values.split(",")], names
