"""Beliefs that one timing cannot turn: stalls, a slow start, and those of a server on an H200."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_adaptive_spec.policy.costs.table import CostTable
from sglang_adaptive_spec.policy.settings import DEFAULTS
from sglang_adaptive_spec.tiers import Plan, RoundTime, Tier, chain_tier
from tests.policy.cost_server import CONTEXT, FIVE, SEEDED_SIZES, THREE, TIERS, graph_ms, seeded

COSTS = DEFAULTS.costs
MOST_DEARER = 1.03
factors = st.floats(1.03, 25.0)


def noisy(spread: float) -> CostTable:
    """Returns a table whose seeds are right and said to be uncertain."""
    table = CostTable.empty(TIERS)
    for tier in TIERS:
        for size in SEEDED_SIZES:
            for tokens in (size * 500, size * 4000):
                table.seed(tier, size, tokens, graph_ms(tier, size, tokens), spread=spread)
    table.fit()
    return table


def tell(table: CostTable, tier: Tier, size: int, *times: float) -> None:
    """Tells of rounds that took so many times what they take."""
    for factor in times:
        ms = factor * graph_ms(tier, size, CONTEXT * size)
        table.observe(RoundTime(Plan(tier), size, CONTEXT * size, ms))


def dearer(table: CostTable, tier: Tier, size: int) -> float:
    """Returns how many times its time a round is believed to take."""
    return table.round_ms(tier, size, CONTEXT * size) / graph_ms(tier, size, CONTEXT * size)


@settings(deadline=None)
@given(factors, st.integers(0, 40), st.integers(0, 6), st.sampled_from([0.0, 0.02, 0.1, 0.3]))
def test_one_outlier_never_makes_a_tier_look_dearer_by_three_percent(
    factor: float, num_before: int, num_after: int, spread: float
) -> None:
    table, without = noisy(spread), noisy(spread)
    tell(table, FIVE, 16, *[1.0] * num_before, factor)
    tell(without, FIVE, 16, *[1.0] * num_before)
    for _ in range(num_after + 1):
        for tier in TIERS:
            for size in SEEDED_SIZES:
                most = max(MOST_DEARER, MOST_DEARER * dearer(without, tier, size))
                assert dearer(table, tier, size) <= most
        for one in (table, without):
            tell(one, FIVE, 16, 1.0)


@pytest.mark.parametrize("num_rounds", range(1, COSTS.firm_rounds))
@pytest.mark.parametrize("num_tiers", range(1, len(TIERS) + 1))
def test_a_spell_that_meets_several_tiers_does_not_either(num_tiers: int, num_rounds: int) -> None:
    table = noisy(0.05)
    for tier in TIERS[-num_tiers:]:
        tell(table, tier, 16, *[1.8] * num_rounds)
    for tier in TIERS:
        assert dearer(table, tier, 16) <= MOST_DEARER, tier


@settings(deadline=None)
@given(factors, st.integers(0, 40))
def test_an_outlier_among_rounds_of_another_tier_does_not_either(
    factor: float, num_before: int
) -> None:
    table = seeded()
    tell(table, FIVE, 16, *[1.0] * num_before)
    tell(table, THREE, 16, *[1.0] * COSTS.settle_rounds)
    tell(table, FIVE, 16, factor)
    assert max(dearer(table, tier, 16) for tier in TIERS) <= MOST_DEARER


@pytest.mark.parametrize("factor", [1.06, 1.2, 1.5, 2.0])
@pytest.mark.parametrize("num_settled", [0, COSTS.settle_rounds])
def test_rounds_that_agree_do(factor: float, num_settled: int) -> None:
    table = seeded()
    tell(table, THREE, 16, *[1.0] * num_settled)
    tell(table, FIVE, 16, *[factor] * (COSTS.firm_rounds - 1))
    assert dearer(table, FIVE, 16) <= MOST_DEARER
    tell(table, FIVE, 16, factor)
    assert dearer(table, FIVE, 16) == pytest.approx(factor, rel=0.08)
    assert dearer(table, FIVE, 16) > MOST_DEARER


def test_rounds_that_disagree_say_little() -> None:
    table = seeded()
    tell(table, FIVE, 16, 4.0, 2.5, 17.0, 3.0, 8.0)
    assert dearer(table, FIVE, 16) < 1.15


def test_a_faster_round_is_believed_at_once() -> None:
    """Nothing but its tier makes a round faster."""
    table = seeded()
    tell(table, FIVE, 16, 0.8, 0.8)
    assert dearer(table, FIVE, 16) < 0.9


@pytest.mark.parametrize("times", [[1.8], [2.0, 7.3], [2.0] * 6, [1.5] * (COSTS.settle_rounds - 1)])
def test_a_tier_in_doubt_may_be_as_fast_as_its_seed(times: list[float]) -> None:
    table = seeded()
    tell(table, FIVE, 16, *times)
    least = dearer(table, FIVE, 16) * table.least_share_all((FIVE,), 16)[0]
    assert least <= 1.001


def test_a_settled_tier_is_in_doubt_no_more() -> None:
    table = seeded()
    tell(table, FIVE, 16, *[1.1] * COSTS.settle_rounds)
    assert dearer(table, FIVE, 16) * table.least_share_all((FIVE,), 16)[0] > 1.08


def test_what_one_size_shows_about_another_counts_only_when_it_is_settled() -> None:
    """A dear small batch: no larger one takes less time."""
    table = seeded()
    before = [table.round_ms(FIVE, size, 0) for size in (2, 3, 4)]
    tell(table, FIVE, 1, *[2.0] * (COSTS.settle_rounds - 1))
    assert [table.round_ms(FIVE, size, 0) for size in (2, 3, 4)] == before
    tell(table, FIVE, 1, 2.0)
    assert min(table.round_ms(FIVE, size, 0) for size in (2, 3, 4)) >= 1.5 * before[0]


# --- one of four H200s, SGLang 0.5.21, FA3, 8B shapes: a server at its defaults, 24 to 96 requests

# Its seeds at contexts of 256 tokens (batch size -> ms) and their pooled relative error.
H200_SEEDS = {
    3: {1: 5.622, 3: 5.745, 6: 5.928, 12: 6.102, 32: 6.945, 64: 9.249, 128: 15.343},
    5: {1: 6.116, 3: 6.272, 6: 6.560, 12: 6.720, 32: 8.462, 64: 12.498, 128: 22.234},
    7: {1: 6.606, 3: 6.809, 6: 7.087, 12: 7.382, 32: 9.496, 64: 15.474, 128: 27.871},
}
H200_SPREAD = 0.005
# What it served of tiers that were not settled at a size: times its seeds.
H200_WARM_UP = (2.0, 22.0, 2.1, 2.0, 1.9, 1.9)  # 7 steps at batch 1
# Measured afterwards, static servers: steps and batch size -> ms.
H200_TRUE = {(3, 24): 7.2, (5, 24): 8.2, (7, 24): 9.5, (3, 48): 9.1, (5, 48): 11.4, (7, 48): 13.9}
CAPTURED = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)


def test_what_turned_a_server_s_table_leaves_it_as_its_seeds_were() -> None:
    """It believed 15.3 ms of 7 steps at 24 requests and 21.9 ms of 5 steps at 48."""
    table = CostTable.empty([chain_tier(steps) for steps in (0, *H200_SEEDS)], CAPTURED)
    for size in (1, 12, 40, 128):
        table.seed(chain_tier(0), size, 256 * size, 4.55 + 0.02 * size, spread=H200_SPREAD)
    for steps, seeds in H200_SEEDS.items():
        for size, ms in seeds.items():
            table.seed(chain_tier(steps), size, 256 * size, ms, spread=H200_SPREAD)
    table.fit()
    three, five, seven = map(chain_tier, H200_SEEDS)

    def serve(tier: Tier, size: int, *times: float) -> None:
        true_ms = H200_TRUE.get((tier.num_steps, size)) or H200_SEEDS[tier.num_steps][size]
        for factor in times:
            table.observe(RoundTime(Plan(tier), size, 256 * size, factor * true_ms))

    serve(seven, 1, *H200_WARM_UP)
    serve(three, 24, *[1.0] * 256)
    serve(seven, 24, 1.8)
    serve(three, 48, *[1.0] * 139)
    serve(five, 48, 1.0, 7.3)
    for (steps, size), true_ms in H200_TRUE.items():
        believed = table.round_ms(chain_tier(steps), size, 256 * size)
        assert believed == pytest.approx(true_ms, rel=0.05), (steps, size)
