"""A batch size that was served little is believed to be as one next to it that was served."""

import pytest

from sglang_adaptive_spec.policy.costs.table import CostTable
from sglang_adaptive_spec.policy.settings import DEFAULTS
from sglang_adaptive_spec.tiers import Plan, RoundTime, Tier, chain_tier
from tests.policy.cost_server import CONTEXT, FIVE, THREE, graph_ms, seeded

COSTS = DEFAULTS.costs
DEARER = 2.0  # in service than at start-up, such as drafts that a CPU looks up
SERVED = 8


def tell(table: CostTable, tier: Tier, size: int, factor: float, num_rounds: int) -> None:
    ms = factor * graph_ms(tier, size, CONTEXT * size)
    for _ in range(num_rounds):
        table.observe(RoundTime(Plan(tier), size, CONTEXT * size, ms))


def dearer(table: CostTable, tier: Tier, size: int) -> float:
    seeded_ms = table.seeded_ms(tier, size, CONTEXT * size)
    return table.round_ms(tier, size, CONTEXT * size) / seeded_ms


def served_table(num_rounds: int = 2 * COSTS.settle_rounds) -> CostTable:
    table = seeded()
    for tier in (THREE, FIVE):
        tell(table, tier, SERVED, DEARER, num_rounds)
    return table


@pytest.mark.parametrize("size", [6, 7, 9, 10])
@pytest.mark.parametrize("tier", [THREE, FIVE])
def test_a_size_next_to_one_that_was_served_is_believed_to_be_like_it(
    tier: Tier, size: int
) -> None:
    table = served_table()
    assert dearer(table, tier, size) == pytest.approx(dearer(table, tier, SERVED), rel=0.02)


def test_of_a_rare_size_few_rounds_say_as_little_as_before() -> None:
    """A table before them and one behind them would choose alike."""
    table = served_table()
    tell(table, THREE, 7, DEARER, 2)
    for tier in (THREE, FIVE):
        assert dearer(table, tier, 7) == pytest.approx(DEARER, rel=0.05)


def test_what_a_size_shows_itself_counts_more() -> None:
    table = served_table(8 * COSTS.settle_rounds)
    tell(table, THREE, 7, 0.8 * DEARER, 2 * COSTS.settle_rounds)
    assert dearer(table, THREE, 7) == pytest.approx(0.8 * DEARER, rel=0.05)
    assert dearer(table, FIVE, 7) >= 0.8 * DEARER


def test_nobody_who_was_served_little_speaks_for_others() -> None:
    table = served_table(COSTS.settle_rounds // 2 - 1)
    assert dearer(table, THREE, 7) < 1.1


def test_a_size_that_is_far_keeps_its_seeds() -> None:
    table = served_table()
    assert dearer(table, chain_tier(3), 2) < 1.1


def test_a_tier_that_was_served_next_to_a_size_is_no_curiosity_there() -> None:
    """One never served may be as fast as half its seed; one that was is known."""
    tiers, table = (THREE, FIVE), served_table()
    known = table.least_share_all(tiers, 7, is_curious=True)
    unknown = table.least_share_all(tiers, 2, is_curious=True)
    assert min(known) > 0.8
    assert max(unknown) <= 1 / COSTS.wrong_seed
