"""A CPU that bounds drafting rounds: what it takes for some, it takes for all the others, too."""

import pytest

from sglang_adaptive_spec.policy.costs.table import CostTable
from sglang_adaptive_spec.policy.settings import DEFAULTS
from sglang_adaptive_spec.tiers import PLAIN_TIER, Plan, RoundTime, Tier, chain_tier
from tests.policy.cost_server import CONTEXT, FIVE, SEVEN, THREE, graph_ms, seeded

HOST_MS = 15.0  # 1.3 times the longest round of the GPU at 8 requests
ONE = chain_tier(1)


def serve(
    table: CostTable,
    size: int,
    *tiers: Tier,
    ms: float = HOST_MS,
    num_rounds: int = DEFAULTS.costs.firm_rounds,
) -> None:
    """Tells of rounds, by default just enough to count."""
    for tier in tiers:
        for _ in range(num_rounds):
            table.observe(RoundTime(Plan(tier), size, CONTEXT * size, ms))


def believed(table: CostTable, tier: Tier, size: int) -> float:
    return table.round_ms(tier, size, CONTEXT * size)


def test_tiers_and_sizes_that_never_ran_take_what_the_host_takes() -> None:
    table = seeded()
    serve(table, 8, THREE, FIVE, SEVEN)
    for tier in (ONE, THREE, SEVEN):
        for size in (4, 7, 9, 16, 30):
            assert believed(table, tier, size) == pytest.approx(HOST_MS, rel=0.05), (tier, size)


def test_what_takes_longer_on_the_gpu_stays_as_it_was() -> None:
    table, before = seeded(), seeded()
    serve(table, 8, THREE, FIVE, SEVEN)
    assert believed(table, SEVEN, 128) == pytest.approx(believed(before, SEVEN, 128), rel=0.01)


def test_zero_steps_have_no_part_in_it() -> None:
    table, before = seeded(), seeded()
    serve(table, 8, THREE, FIVE, SEVEN)
    for size in (1, 8, 32):
        assert believed(table, PLAIN_TIER, size) == believed(before, PLAIN_TIER, size)


def test_much_smaller_batches_may_be_less_work() -> None:
    table, before = seeded(), seeded()
    serve(table, 64, THREE, FIVE, SEVEN, ms=20.0)
    assert believed(table, ONE, 8) == believed(before, ONE, 8)
    assert believed(table, ONE, 32) > 1.5 * believed(before, ONE, 32)


@pytest.mark.parametrize("factor", [1.2, 1.25, 1.5, 2.0])
@pytest.mark.parametrize("num_rounds", [DEFAULTS.costs.firm_rounds, 10])
def test_a_slower_gpu_is_no_floor(factor: float, num_rounds: int) -> None:
    """It takes so many times longer for every tier, which says little of other sizes."""
    table, before = seeded(), seeded()
    for tier in (THREE, FIVE, SEVEN):
        ms = factor * graph_ms(tier, 8, 8 * CONTEXT)
        serve(table, 8, tier, ms=ms, num_rounds=num_rounds)
    for size in (4, 12, 16, 32):
        assert believed(table, ONE, size) <= 1.1 * believed(before, ONE, size)


@pytest.mark.parametrize("factor", [1.2, 1.3])
def test_a_tier_that_takes_its_seed_rules_a_floor_out(factor: float) -> None:
    table, before = seeded(), seeded()
    for tier in (THREE, FIVE, SEVEN):
        serve(table, 8, tier, ms=factor * graph_ms(tier, 8, 8 * CONTEXT))
    serve(table, 8, ONE, ms=graph_ms(ONE, 8, 8 * CONTEXT), num_rounds=30)
    for size in (4, 8, 16):
        assert believed(table, ONE, size) <= 1.05 * believed(before, ONE, size)


def test_a_deep_tier_that_is_slow_alone_says_nothing_of_shallower_ones() -> None:
    table = seeded()
    serve(table, 8, THREE, FIVE, SEVEN)
    slow_ms = 1.2 * graph_ms(SEVEN, 128, 128 * CONTEXT)
    serve(table, 128, SEVEN, ms=slow_ms)
    assert believed(table, THREE, 128) < 1.2 * graph_ms(THREE, 128, 128 * CONTEXT)
    assert believed(table, FIVE, 128) < 1.05 * graph_ms(FIVE, 128, 128 * CONTEXT)


def test_two_places_say_nothing_of_others() -> None:
    table, before = seeded(), seeded()
    serve(table, 8, THREE, FIVE)
    assert believed(table, ONE, 16) < 1.1 * believed(before, ONE, 16)


def test_a_larger_batch_has_a_floor_of_its_own_and_the_deep_keep_their_time() -> None:
    """A tier that the host makes dear there lends nothing to one that the GPU bounds."""
    table = seeded()
    serve(table, 8, THREE, FIVE, SEVEN)
    deep_ms = graph_ms(SEVEN, 128, 128 * CONTEXT)
    serve(table, 128, ONE, ms=deep_ms)
    assert believed(table, THREE, 128) == pytest.approx(deep_ms, rel=0.05)
    assert believed(table, SEVEN, 128) == pytest.approx(deep_ms, rel=0.05)


def test_a_floor_that_falls_is_followed() -> None:
    table = seeded()
    serve(table, 8, THREE, FIVE, SEVEN)
    for _ in range(20):
        serve(table, 8, THREE, FIVE, SEVEN, ms=12.5)
    assert believed(table, ONE, 8) == pytest.approx(12.5, rel=0.05)


def slow_spell(table: CostTable) -> float:
    """Lets rounds of 3 steps take half as long again for a while; returns what 5 steps then do."""
    serve(table, 8, THREE, ms=1.5 * believed(table, THREE, 8), num_rounds=64)
    return believed(table, FIVE, 8)


def test_the_pace_of_a_cpu_that_bounds_rounds_is_no_drift() -> None:
    """It changes within a second; zero steps, which it does not bound, take what they took."""
    table = seeded()
    serve(table, 8, PLAIN_TIER, ms=believed(table, PLAIN_TIER, 8), num_rounds=40)
    plain_ms = believed(table, PLAIN_TIER, 8)
    serve(table, 8, THREE, FIVE, SEVEN, num_rounds=40)
    slow_spell(table)
    assert table.drift == 1.0
    assert believed(table, PLAIN_TIER, 8) == pytest.approx(plain_ms, rel=0.01)


def test_a_visit_in_a_slow_spell_is_one_of_many() -> None:
    table = seeded()
    serve(table, 8, PLAIN_TIER, ms=believed(table, PLAIN_TIER, 8), num_rounds=40)
    serve(table, 8, THREE, FIVE, SEVEN, num_rounds=40)
    before = believed(table, FIVE, 8)
    serve(table, 8, FIVE, ms=1.6 * before, num_rounds=4)
    assert believed(table, FIVE, 8) < 1.15 * before


def test_where_zero_steps_take_longer_too_it_is_drift_as_ever() -> None:
    table = seeded()
    serve(table, 8, PLAIN_TIER, ms=1.7 * believed(table, PLAIN_TIER, 8), num_rounds=40)
    serve(table, 8, THREE, FIVE, SEVEN, num_rounds=40)
    before = believed(table, FIVE, 8)
    assert slow_spell(table) > 1.3 * before
