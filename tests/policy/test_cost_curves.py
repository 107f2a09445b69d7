"""Costs from measured points: seeds, and the first served rounds where nothing was seeded."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_adaptive_spec.policy.costs.curves import isotonic
from sglang_adaptive_spec.policy.costs.table import DEFAULT_BUCKETS, CostTable
from sglang_adaptive_spec.policy.settings import DEFAULTS
from tests.policy.cost_server import (
    SEEDED_SIZES,
    THREE,
    TIERS,
    contexts,
    graph_ms,
    rounds_told,
    seeded,
    seeds_told,
    sizes,
    table_of,
)

# --- seeds


def test_measured_points_come_back_and_are_joined_by_lines() -> None:
    table = seeded()
    for tier in TIERS:
        for batch_size in SEEDED_SIZES:
            for context in (batch_size * 500, batch_size * 20_000):
                said = table.round_ms(tier, batch_size, context)
                assert said == pytest.approx(graph_ms(tier, batch_size, context))
        between = table.round_ms(tier, 24, 0)
        ends = table.round_ms(tier, 16, 0), table.round_ms(tier, 32, 0)
        assert between == pytest.approx(sum(ends) / 2)
    assert table.is_seeded


def test_a_batch_costs_what_the_captured_size_it_pads_to_costs() -> None:
    table = CostTable.empty((THREE,), (1, 8, 16))
    for batch_size in (1, 8, 16):
        table.seed(THREE, batch_size, 0, 10.0 + batch_size)
    table.fit()
    assert [table.round_ms(THREE, size, 0) for size in (1, 2, 8, 9, 16)] == [11, 18, 18, 26, 26]
    assert table.round_ms(THREE, 20, 0) == 30  # beyond the captured sizes it goes on as it rose
    assert table.round_ms(THREE, 24, 0) == 34


def test_below_the_smallest_measured_size_the_cost_is_constant() -> None:
    table = CostTable.empty((THREE,))
    table.seed(THREE, 16, 0, 10.0)
    table.seed(THREE, 32, 0, 12.0)
    table.fit()
    assert table.round_ms(THREE, 1, 0) == table.round_ms(THREE, 16, 0) == 10.0


def test_the_order_of_measuring_is_irrelevant() -> None:
    points = [(s, c * s, graph_ms(THREE, s, c * s)) for s in SEEDED_SIZES for c in (10, 999)]
    tables = []
    for order in (points, points[::-1], sorted(points, key=lambda point: -point[2])):
        table = CostTable.empty((THREE,))
        for point in order:
            table.seed(THREE, *point)
        table.fit()
        tables.append([table.round_ms(THREE, size, 10 * size) for size in range(1, 200)])
    assert tables[0] == pytest.approx(tables[1])
    assert tables[0] == pytest.approx(tables[2])


@settings(deadline=None)
@given(seeds_told, rounds_told, contexts)
def test_more_requests_never_take_less_time(seeds, rounds, context) -> None:
    """Sizes apart where a tier has few rounds: those count for no other size."""
    table = table_of(seeds, rounds)
    curves = table._corrections.seeds
    for tier, told in zip(table.tiers, table._state.num_corrected, strict=True):
        sizes = [
            size
            for size in range(1, 220)
            if not 0 < told[curves.bucket(size)] < DEFAULTS.costs.settle_rounds
        ]
        row = [table.round_ms(tier, size, context) for size in sizes]
        assert all(later >= before * (1 - 1e-12) for before, later in pairwise(row))


@settings(deadline=None)
@given(seeds_told, rounds_told, sizes, contexts, contexts, contexts)
def test_time_is_linear_in_context_and_never_falls(seeds, rounds, size, one, two, three) -> None:
    table = table_of(seeds, rounds)
    low, middle, high = sorted((one, two, three))
    for tier in table.tiers:
        at = {context: table.round_ms(tier, size, context) for context in (low, middle, high)}
        assert at[low] <= at[middle] * (1 + 1e-12)
        share = (middle - low) / (high - low) if high > low else 0.0
        assert at[middle] == pytest.approx(at[low] + share * (at[high] - at[low]), rel=1e-9)


@settings(deadline=None)
@given(seeds_told, rounds_told, sizes, contexts)
def test_whatever_was_told_costs_are_finite_and_never_negative(seeds, rounds, size, context):
    table = table_of(seeds, rounds)
    for tier in table.tiers:
        assert 0 <= table.round_ms(tier, size, context) < math.inf
        assert 0 <= table.relative_noise(tier) < math.inf
    assert table.plain_extra_ms(size, context) >= 0


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(-100, 100), st.floats(0.1, 10)), min_size=1, max_size=12))
def test_isotonic_is_ordered_and_keeps_the_weighted_mean(pairs) -> None:
    values, weights = np.array(pairs).T
    fitted = isotonic(values, weights)
    assert (np.diff(fitted) >= -1e-9).all()
    assert fitted @ weights == pytest.approx(values @ weights, abs=1e-6)
    assert isotonic(np.sort(values), weights) == pytest.approx(np.sort(values))


def test_isotonic_pools_what_is_out_of_order() -> None:
    assert list(isotonic(np.array([1.0, 4.0, 2.0, 5.0]), np.array([1.0, 1.0, 3.0, 1.0]))) == [
        1.0,
        2.5,
        2.5,
        5.0,
    ]


@pytest.mark.parametrize("ms", [0.0, -1.0, math.nan, math.inf])
def test_what_is_no_measurement_is_refused(ms: float) -> None:
    with pytest.raises(ValueError, match="cannot seed"):
        CostTable.empty(TIERS).seed(THREE, 1, 0, ms)


def test_the_default_buckets_are_ascending() -> None:
    assert sorted(set(DEFAULT_BUCKETS)) == list(DEFAULT_BUCKETS)


# --- all tiers at once


@settings(deadline=None)
@given(seeds_told, rounds_told, sizes, contexts)
def test_all_at_once_is_one_by_one(seeds, rounds, size, context) -> None:
    table = table_of(seeds, rounds)
    for tiers in (table.tiers, table.tiers[1:], table.tiers[::-1]):
        row = table.round_ms_all(tiers, size, context)
        expected = [table.round_ms(tier, size, context) for tier in tiers]
        assert row == pytest.approx(expected, rel=1e-12)


def test_a_row_belongs_to_the_caller() -> None:
    table = seeded()
    before = table.round_ms(THREE, 8, 100)
    table.round_ms_all(TIERS, 8, 100)[:] = 0.0
    assert table.round_ms(THREE, 8, 100) == before


# --- not seeded


def test_without_any_round_deeper_costs_more() -> None:
    table = CostTable.empty(TIERS)
    assert not table.is_seeded
    row = table.round_ms_all(TIERS, 8, 1000)
    assert (np.diff(row) > 0).all()
    assert row[3] / row[0] == pytest.approx(1.42)


def test_what_an_older_server_learned_without_seeds_can_still_be_read() -> None:
    state = CostTable.empty(TIERS).to_dict()
    state["learned"] = [{"3": [4, 10.0]}, *({} for _ in TIERS[1:])]
    assert CostTable.from_dict(state).round_ms(THREE, 8, 0) == pytest.approx(1.42)


def test_a_measured_leap_between_near_sizes_stays() -> None:
    table = CostTable.empty(TIERS, [56, 60, 64, 72, 80])
    for size, ms in ((56, 10.0), (60, 10.1), (64, 10.2), (72, 12.0), (80, 12.2)):
        table.seed(THREE, size, 0, ms, spread=0.002)
    table.fit()
    for size, ms in ((64, 10.2), (72, 12.0)):
        assert table.round_ms(THREE, size, 0) == pytest.approx(ms, rel=0.01)
