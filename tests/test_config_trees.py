"""Trees in adaptive_spec.json: what is accepted beside chains, and what is refused."""

from dataclasses import replace
from pathlib import Path

import pytest

from sglang_adaptive_spec.config.schema import AdaptiveConfig, ConfigError, load_config
from sglang_adaptive_spec.tiers import Tier


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
    narrowed = config.on(config.ladder.without([Tier(5, 1, 6)]))
    assert narrowed.slots[1].tiers == (Tier(0, 1, 1), Tier(2, 1, 3), Tier(3, 4, 9))
    assert narrowed.slots[8].tiers == (Tier(1, 2, 3),)


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
        load(f'{{"ema_alpha": 0.2, {slot}}}')


def test_zero_steps_alone_leave_goodput_nothing_to_choose(load):
    slots = '"1": {"candidate_steps": [0]}, "9": {"candidate_steps": [0]}'
    with pytest.raises(ConfigError, match="zero steps alone"):
        load(f'{{"policy": "goodput", {slots}}}')
    with pytest.raises(ConfigError, match="zero steps alone"):
        load(f"{{{slots}}}")
    assert load(f'{{"policy": "ema", {slots}}}').policy == "ema"
    load(f'{{"policy": "goodput", {slots}, "17": {{"candidate_tiers": [[1, 2, 3]]}}}}')


# Two chains, and trees of 3 and of 5 steps; the narrowest tree of 3 steps is 3-2-6.
MIXED = (
    '{"policy": "goodput", "1": {"candidate_steps": [1, 3], "candidate_tiers": [[5, 4, 8]]}, '
    '"8": {"candidate_tiers": [[3, 4, 8], [3, 2, 6], [5, 2, 10], [5, 2, 8]]}}'
)
ONE_CHAIN = '{"policy": "goodput", "1": {"candidate_tiers": [[2, 1, 3], [3, 4, 8]]}}'
CHAINS = '{"policy": "goodput", "1": {"candidate_steps": [0, 1, 3, 5]}}'
TREES = '{"policy": "goodput", "1": {"candidate_tiers": [[1, 4, 4], [3, 4, 8]]}}'


@pytest.mark.parametrize(
    ("text", "given", "start"),
    [
        (MIXED, (None, None, None), Tier(3, 1, 4)),  # the middle chain
        (MIXED, (3, None, None), Tier(3, 1, 4)),  # the narrowest of a depth is its chain
        (MIXED, (5, None, None), Tier(5, 2, 8)),  # smallest topk, then fewest draft tokens
        (MIXED, (3, 1, None), Tier(3, 1, 4)),
        (MIXED, (None, 1, 2), Tier(1, 1, 2)),
        (MIXED, (3, None, 8), Tier(3, 4, 8)),
        (MIXED, (3, 2, 6), Tier(3, 2, 6)),
        (MIXED, (None, None, 4), Tier(3, 1, 4)),
        (MIXED, (None, None, 8), Tier(5, 2, 8)),
        (ONE_CHAIN, (None, 1, None), Tier(2, 1, 3)),  # topk 1 names the only chain
        (CHAINS, (None, 1, None), Tier(3, 1, 4)),  # true of every tier: names none
        (CHAINS, (None, None, 1), Tier(0, 1, 1)),
        (CHAINS, (5, 1, 6), Tier(5, 1, 6)),
        (TREES, (None, 4, None), Tier(3, 4, 8)),
        (MIXED, (3, 4, None), Tier(3, 4, 8)),
        (MIXED, (None, 2, 10), Tier(5, 2, 10)),
    ],
)
def test_the_narrowest_tier_with_every_given_number_is_the_one_to_start_at(
    load, text: str, given: tuple[int | None, int | None, int | None], start: Tier
):
    config = load(text)
    assert config.starting_tier(*given) == start
    assert replace(config, initial=start).initial_tier(start.num_steps) == start


@pytest.mark.parametrize(
    ("given", "is_listed"),
    [((3, 4, 8), True), ((None, 4, None), True), ((3, 4, 9), False), ((1, 4, 8), False)],
)
def test_a_tier_is_the_configs_if_it_has_every_given_number(load, given, is_listed: bool):
    assert load(MIXED).has_tier(given) is is_listed
    assert not load(CHAINS).has_tier(given)


def test_another_depth_than_that_of_the_tier_to_start_at_starts_at_its_narrowest_tier(load):
    config = replace(load(MIXED), initial=Tier(3, 4, 8))
    assert config.initial_tier(5) == Tier(5, 2, 8)


@pytest.mark.parametrize(
    ("text", "given", "parts"),
    [
        (MIXED, (2, None, None), ("--speculative-num-steps is 2", "allowed: 1, 3, 5;", "drop")),
        (
            CHAINS,
            (3, 1, 6),
            (
                "no tier has --speculative-num-steps 3 and --speculative-eagle-topk 1 and "
                "--speculative-num-draft-tokens 6",
                "[0, 1, 1], [1, 1, 2], [3, 1, 4], [5, 1, 6]",
                "drop the flags",
            ),
        ),
        (
            MIXED,
            (None, 4, None),
            ("--speculative-eagle-topk is 4, and the tiers have topk 1, 2, 4", "drop the flag"),
        ),
        (CHAINS, (3, None, 3), ("--speculative-num-draft-tokens 3", "[3, 1, 4]", "drop")),
        (CHAINS, (None, None, 3), ("no tier has --speculative-num-draft-tokens 3;", "[1, 1, 2]")),
        (TREES, (3, 1, None), ("3 and --speculative-eagle-topk 1;", "[1, 4, 4], [3, 4, 8]")),
        (TREES, (None, 1, None), ("no tier has --speculative-eagle-topk 1;", "[3, 4, 8]")),
        (
            MIXED,
            (None, 1, None),
            (
                "--speculative-eagle-topk is 1, and the tiers have topk 1, 2, 4",
                "where every tier has its topk, or beside --speculative-num-steps",
                "drop the flag, add --speculative-num-steps, or remove the other tiers",
            ),
        ),
    ],
)
def test_numbers_that_contradict_the_tiers_are_refused_with_what_is_allowed(
    load, text: str, given: tuple[int | None, int | None, int | None], parts: tuple[str, ...]
):
    with pytest.raises(ConfigError) as error:
        load(text).starting_tier(*given)
    for part in ("adaptive_spec.json: ", *parts, "; fix: "):
        assert part in str(error.value)
