"""Trees in adaptive_spec.json: what is accepted beside chains, and what is refused."""

from pathlib import Path

import pytest

from sglang_adaptive_spec.config import AdaptiveConfig, ConfigError, load_config
from sglang_adaptive_spec.policy.tiers import Tier


@pytest.fixture
def load(tmp_path: Path):
    def from_text(text: str) -> AdaptiveConfig:
        path = tmp_path / "adaptive_spec.json"
        path.write_text(text)
        return load_config(str(path))

    return from_text


def test_trees_stand_beside_chains_and_the_largest_shape_holds_both(load):
    config = load(
        '{"policy": "goodput", "1": {"candidate_steps": [0, 5], "candidate_tiers": [[3, 4, 9], '
        '[2, 1, 3]]}, "8": {"candidate_tiers": [[1, 2, 3]]}}'
    )
    assert config.slots[1].tiers == (Tier(0, 1, 1), Tier(2, 1, 3), Tier(3, 4, 9), Tier(5, 1, 6))
    assert config.slots[8].tiers == (Tier(1, 2, 3),)
    assert config.largest_tier == Tier(5, 4, 9)
    assert config.initial_steps(None) == 2
    assert config.initial_tier(3) == Tier(3, 4, 9)
    assert config.without({5}).slots[8].tiers == (Tier(1, 2, 3),)


def test_a_ladder_of_trees_alone_starts_in_its_middle(load):
    config = load('{"policy": "goodput", "1": {"candidate_tiers": [[1, 4, 4], [3, 4, 8]]}}')
    assert (config.initial_steps(None), config.largest_tier) == (3, Tier(3, 4, 8))
    assert config.initial_tier(3) == Tier(3, 4, 8)


@pytest.mark.parametrize(
    ("tiers", "allowed"),
    [
        ("[[3, 1, 5]]", "num_draft_tokens 4 (num_steps + 1) where topk is 1"),
        ("[[3, 2, 12]]", "(num_steps - 1) * topk^2, 4 to 11"),
        ("[[3, 2, 3]]", "from num_steps + 1 to 1 + topk + (num_steps - 1) * topk^2, 4 to 11"),
        ("[[0, 2, 2]]", "num_steps from 1 to 64 where topk is above 1"),
        ("[[65, 2, 9]]", "num_steps from 1 to 64 where topk is above 1"),
        ("[[3, 17, 8]]", "topk from 1 to 16"),
        ("[[3, 4]]", "a non-empty list of [num_steps, topk, num_draft_tokens]"),
        ("[]", "a non-empty list of [num_steps, topk, num_draft_tokens]"),
        ("[3]", "a non-empty list of [num_steps, topk, num_draft_tokens]"),
    ],
)
def test_a_tier_that_cannot_be_is_refused_with_what_is_allowed(load, tiers: str, allowed: str):
    with pytest.raises(ConfigError) as error:
        load(f'{{"policy": "goodput", "1": {{"candidate_tiers": {tiers}}}}}')
    assert '"1".candidate_tiers' in str(error.value)
    assert allowed in str(error.value)


def test_trees_are_not_recorded_and_not_averaged(load):
    slot = '"1": {"candidate_steps": [1], "candidate_tiers": [[3, 4, 8]]}'
    with pytest.raises(ConfigError, match="traces know chains only"):
        load(f'{{"policy": "goodput", "record": "x", {slot}}}')
    with pytest.raises(ConfigError, match='candidate_tiers belongs to policy "goodput"'):
        load(f"{{{slot}}}")
