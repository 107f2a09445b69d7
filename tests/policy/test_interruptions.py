"""Prefills between rounds: what of them a tier can save."""

import numpy as np
import pytest

from sglang_adaptive_spec.policy.interruptions import Interruptions
from sglang_adaptive_spec.policy.settings import DEFAULTS
from sglang_adaptive_spec.tiers import Plan, RoundTime, chain_tier

SIZE, ROUND_MS = 64, 10.0
THREE = Plan(chain_tier(3))
TOKENS = np.array([64.0, 128.0, 256.0])  # of one decode, by tier
ONCE = np.ones(3)
SETTINGS = DEFAULTS.interruptions


def told(
    fixed_ms: float,
    ms_each: float,
    num_joined: tuple[int, ...] = (1, 4, 8, 2, 6, 10, 3, 7, 9, 5),
    size: int = SIZE,
    noise: float = 0.02,
) -> Interruptions:
    """Returns what learned from prefills that take so much, and so much more a request."""
    known, rng = Interruptions(SETTINGS), np.random.default_rng(1)
    for number in num_joined * 3:
        ms = (ROUND_MS + fixed_ms + ms_each * number) * (1 + noise * float(rng.standard_normal()))
        known.learn(RoundTime(THREE, size, 0, ms, num_joined=number), ROUND_MS)
    known.count_tokens(1000)
    known.count_joined(10)
    return known


def test_a_tier_that_gives_more_tokens_waits_for_fewer_prefills_a_token() -> None:
    per_token = told(6.0, 0.2).between_ms(SIZE, TOKENS, ONCE) / TOKENS
    assert per_token[0] > 1.1 * per_token[1] > 1.2 * per_token[2] > 0


def test_of_the_fixed_part_comes_what_its_probability_says() -> None:
    known = told(6.0, 0.2)
    fixed_ms = known.describe()["fixed_ms"]["33-64"]
    assert fixed_ms == pytest.approx(6.0, rel=0.2)
    expected = fixed_ms * (1 - np.exp(-0.01 * TOKENS))
    assert known.between_ms(SIZE, TOKENS, ONCE) == pytest.approx(expected, rel=1e-3)


def test_decodes_of_a_run_share_what_comes_before_the_next() -> None:
    known = told(6.0, 0.2)
    alone = known.between_ms(SIZE, TOKENS, ONCE)
    of_a_run = known.between_ms(SIZE, TOKENS, np.array([8.0, 1.0, 1.0]))
    assert of_a_run[0] < 0.5 * alone[0]
    assert of_a_run[1:] == pytest.approx(alone[1:])


def test_time_in_proportion_to_the_requests_is_nobodys_to_save() -> None:
    assert told(0.0, 1.5).between_ms(SIZE, TOKENS, ONCE) == pytest.approx(0.0, abs=0.5)


def test_where_one_request_comes_at_a_time_nothing_says_what_is_fixed() -> None:
    assert told(6.0, 0.2, num_joined=(1,)).between_ms(SIZE, TOKENS, ONCE) == pytest.approx(0.0)


@pytest.mark.parametrize("noise", [0.02, 0.1])
def test_prefills_that_take_nothing_cost_nothing(noise: float) -> None:
    assert not told(0.0, 0.0, noise=noise).between_ms(SIZE, TOKENS, ONCE).any()


def test_a_long_prompt_says_nothing_of_the_others() -> None:
    known = told(6.0, 0.2)
    before = known.between_ms(SIZE, TOKENS, ONCE)
    for _ in range(2):
        known.learn(RoundTime(THREE, SIZE, 0, 400.0, num_joined=1), ROUND_MS)
    assert known.between_ms(SIZE, TOKENS, ONCE) == pytest.approx(before, rel=0.15)


def test_other_sizes_and_few_periods_are_not_spoken_for() -> None:
    known = told(6.0, 0.2)
    assert not known.between_ms(4, TOKENS, ONCE).any()
    few = Interruptions(SETTINGS)
    few.count_tokens(100)
    few.count_joined(1)
    for number in range(1, SETTINGS.min_periods):
        few.learn(RoundTime(THREE, SIZE, 0, 16.0, num_joined=number), ROUND_MS)
    assert not few.between_ms(SIZE, TOKENS, ONCE).any()


def test_traffic_without_newcomers_has_none() -> None:
    known = told(6.0, 0.2)
    for _ in range(30):
        known.count_tokens(SETTINGS.memory_tokens)
    assert known.between_ms(SIZE, TOKENS, ONCE).max() < 0.01
