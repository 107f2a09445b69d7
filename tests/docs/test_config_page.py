"""docs/config.md: its examples load, its errors are those that are raised."""

import re

import pytest

from sglang_adaptive_spec.config.schema import (
    DEFAULT_PRESET,
    PRESETS,
    ConfigError,
    load_config,
    parse_config,
)
from sglang_adaptive_spec.tiers import Tier
from tests.hosts import REPO

STEPS_1_3 = '"candidate_steps": [1, 3]'
SLOT = f'"1": {{{STEPS_1_3}}}'


def test_the_docs_examples_load_and_the_quoted_errors_are_what_is_said() -> None:
    page = (REPO / "docs/config.md").read_text()
    examples = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    configs = [parse_config("docs", example.encode()) for example in examples]
    assert [(config.policy, config.candidate_steps) for config in configs] == [
        ("goodput", (0, 1, 3, 5)),
        ("ema", (0, 1, 3, 7)),
        ("goodput", (0, 1, 3, 5)),
    ]
    assert configs[2].largest_tier == Tier(5, 4, 16)
    mistakes = ['{"8": {"candidate_steps": [1, -3]}}', f'{{"ema_alfa": 0.2, {SLOT}}}']
    for mistake in (*mistakes, '{"policy": "goodput", "ema_alpha": 0.2}'):
        with pytest.raises(ConfigError) as error:
            parse_config("adaptive_spec.json", mistake.encode())
        assert str(error.value) in page


def test_the_docs_table_of_presets_has_their_steps() -> None:
    page = (REPO / "docs/config.md").read_text().split("## Presets\n")[1].split("##")[0]
    for name in PRESETS:
        row = next(line for line in page.splitlines() if line.startswith(f"| `{name}`"))
        for bound, slot in load_config(name).slots.items():
            assert f"{bound}: {list(slot.candidate_steps)}" in row
        assert ("(default)" in row) == (name == DEFAULT_PRESET)
