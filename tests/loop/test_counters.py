"""Counters keep the terms of the field: proposed and correct exclude root and bonus."""

from hypothesis import given
from hypothesis import strategies as st

from sglang_adaptive_spec.loop.counters import RoundCounters
from sglang_adaptive_spec.tiers import PLAIN_TIER, Plan, chain_tier

THREE = chain_tier(3)


def test_a_round_books_proposed_correct_and_positions_per_request() -> None:
    counters = RoundCounters()
    counters.count_round(Plan(THREE), [0, 2, 3])
    counters.count_round(Plan(THREE), [3])
    assert counters.num_rounds[THREE] == 2
    assert counters.num_proposed_drafts(THREE) == 12
    assert counters.num_correct_drafts(THREE) == 8
    assert counters.accepted_per_position(THREE) == [3, 3, 2]


def test_a_packed_round_proposes_what_was_verified() -> None:
    counters = RoundCounters()
    counters.count_round(Plan(THREE, verify_lens=(1, 4, 3)), [0, 3, 1])
    counters.count_round(Plan(THREE), [0, 0, 0])
    assert (counters.num_rounds[THREE], counters.num_packed[THREE]) == (2, 1)
    assert counters.num_proposed_drafts(THREE) == 0 + 3 + 2 + 9
    assert counters.num_correct_drafts(THREE) == 4


def test_zero_steps_propose_nothing_and_an_unvisited_tier_counts_nothing() -> None:
    counters = RoundCounters()
    counters.count_round(Plan(PLAIN_TIER), [0, 0])
    assert counters.num_proposed_drafts(PLAIN_TIER) == 0
    assert counters.accepted_per_position(PLAIN_TIER) == []
    assert counters.num_proposed_drafts(THREE) == counters.num_correct_drafts(THREE) == 0
    assert counters.accepted_per_position(THREE) == []


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=8)))
def test_positions_never_rise_and_sum_to_the_correct_drafts(rounds: list[list[int]]) -> None:
    counters = RoundCounters()
    for num_correct_drafts in rounds:
        counters.count_round(Plan(THREE), num_correct_drafts)
    positions = counters.accepted_per_position(THREE)
    assert positions == sorted(positions, reverse=True)
    assert sum(positions) == counters.num_correct_drafts(THREE) == sum(map(sum, rounds))


def test_zero_step_rounds_are_counted_by_their_decodes() -> None:
    counters = RoundCounters()
    for num_decodes in (1, 8, 8):
        counters.count_round(Plan(PLAIN_TIER, num_decodes), [0, 0])
    counters.count_round(Plan(THREE), [1])
    assert counters.num_runs == {1: 1, 8: 2}
    assert counters.num_rounds[PLAIN_TIER] == 3
