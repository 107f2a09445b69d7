"""The table of the cookbook's launch lines is what `check` answers on the released hosts."""

import pytest

from sglang_adaptive_spec.contract.versions import TESTED
from tools.cookbook.launches import LAUNCHES
from tools.write_cookbook import PAGE, TABLE, answers, page, rows

ADAPTIVE = {"mode": "adaptive", "base": "EAGLE", "initial_tier": "3", "max_running_requests": None}


def test_every_launch_has_a_row() -> None:
    found = TABLE.search(PAGE.read_text())
    assert found is not None
    names = [row.split(" | ")[0].removeprefix("| ") for row in found.group(2).splitlines()]
    assert [name.partition(" (")[0] for name in names] == [each.name for each in LAUNCHES]


def test_a_row_says_how_deep_each_batch_may_draft_and_which_releases_answer_so() -> None:
    first = LAUNCHES[0].name
    old = {first: {**ADAPTIVE, "tiers": {"1": ["0", "3", "10"], "9": ["0", "3"]}}}
    new = {first: {"mode": "static", "reason": "no graphs"}}
    assert rows({"1": old, "2": old, "3": new}).splitlines() == [
        f"| {first} (1, 2) | `--tp-size 8` | 5 | adaptive EAGLE, begins at 3 | 10, 3 from 9 on | "
        "as memory allows |",
        f"| {first} (3) | `--tp-size 8` | 5 | static: no graphs |  |  |",
    ]


@pytest.mark.full
@pytest.mark.contract
def test_the_table_is_what_the_released_hosts_answer() -> None:
    text = PAGE.read_text()
    assert page(text, rows({release: answers(release) for release in TESTED})) == text
