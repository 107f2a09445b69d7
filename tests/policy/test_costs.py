"""The cost table: what seeds say, what serving corrects, and what must not fool the comparison."""

import json
import math
import random
import statistics
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_adaptive_spec.policy.cost_curves import isotonic
from sglang_adaptive_spec.policy.costs import CATCH_UP_ROUNDS, DEFAULT_BUCKETS, CostTable
from sglang_adaptive_spec.policy.tiers import PLAIN_TIER, RoundTime, Tier, chain_tier

TIERS = tuple(chain_tier(steps) for steps in (0, 1, 2, 3, 5, 7))
THREE, FIVE, SEVEN = TIERS[3:]
SEEDED_SIZES = (1, 4, 16, 32, 64, 128)
NOISE = 0.01  # relative sigma of a round
CONTEXT = 1000  # tokens a request


def graph_ms(tier: Tier, batch_size: int, context_tokens: int) -> float:
    """What a round of the simulated GPU takes."""
    return (5 + 0.03 * batch_size) * (1 + 0.14 * tier.num_steps) + 2e-5 * context_tokens


def seeded(tiers=TIERS, factor=lambda tier: 1.0, catch_up_ms: float = 0.0) -> CostTable:
    table = CostTable.empty(tiers)
    for tier in tiers:
        for batch_size in SEEDED_SIZES:
            for context in (batch_size * 500, batch_size * 4000):
                ms = graph_ms(tier, batch_size, context)
                table.seed(tier, batch_size, context, factor(tier) * ms)
                if catch_up_ms and tier == PLAIN_TIER:
                    table.seed(tier, batch_size, context, ms + catch_up_ms, is_catch_up=True)
    table.fit()
    return table


class Server:
    """Serves rounds and tells their noisy periods, now and then with an outlier."""

    def __init__(self, table: CostTable, off_graph_ms: float = 0.0, seed: int = 0) -> None:
        self.table = table
        self.off_graph_ms = off_graph_ms
        self.neighbour = 1.0
        self.factor: dict[Tier, float] = {}  # what the seed of a tier did not know
        self._random = random.Random(seed)

    def expected_ms(self, tier: Tier, batch_size: int) -> float:
        ms = self.neighbour * self.factor.get(tier, 1.0)
        ms *= graph_ms(tier, batch_size, CONTEXT * batch_size)
        return ms + self.off_graph_ms

    def run(self, tier: Tier, batch_size: int, num_rounds: int) -> None:
        for _ in range(num_rounds):
            ms = self.expected_ms(tier, batch_size) * (1 + self._random.gauss(0, NOISE))
            if self._random.random() < 0.02:
                ms += 30.0
            self.table.observe(RoundTime(tier, batch_size, CONTEXT * batch_size, ms))

    def error(self, tier: Tier, batch_size: int) -> float:
        """Returns the relative error of the table, plus if it overrates the round."""
        said = self.table.round_ms(tier, batch_size, CONTEXT * batch_size)
        return said / self.expected_ms(tier, batch_size) - 1


sizes = st.integers(1, 300)
contexts = st.integers(0, 2_000_000)
seeds = st.lists(
    st.tuples(
        st.sampled_from(TIERS[:3]),
        st.integers(1, 200),
        st.integers(0, 500_000),
        st.floats(0.1, 200),
        st.booleans(),
    ),
    max_size=25,
)
rounds = st.lists(
    st.tuples(st.sampled_from(TIERS[:3]), st.integers(1, 300), st.floats(0.01, 1e4), st.booleans()),
    max_size=150,
)


def table_of(seeds, rounds) -> CostTable:
    table = CostTable.empty(TIERS[:3], (1, 2, 4, 8, 16, 64))
    for tier, batch_size, context, ms, is_catch_up in seeds:
        table.seed(tier, batch_size, context, ms, is_catch_up=is_catch_up and tier == PLAIN_TIER)
    table.fit()
    for tier, batch_size, ms, is_catch_up in rounds:
        is_catch_up = is_catch_up and tier == PLAIN_TIER
        table.observe(RoundTime(tier, batch_size, 100 * batch_size, ms, is_catch_up))
    return table


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


@given(seeds, rounds, contexts)
def test_more_requests_never_take_less_time(seeds, rounds, context) -> None:
    table = table_of(seeds, rounds)
    for tier in table.tiers:
        row = [table.round_ms(tier, size, context) for size in range(1, 220)]
        assert all(later >= before * (1 - 1e-12) for before, later in pairwise(row))


@given(seeds, rounds, sizes, contexts, contexts, contexts)
def test_time_is_linear_in_context_and_never_falls(seeds, rounds, size, one, two, three) -> None:
    table = table_of(seeds, rounds)
    low, middle, high = sorted((one, two, three))
    for tier in table.tiers:
        at = {context: table.round_ms(tier, size, context) for context in (low, middle, high)}
        assert at[low] <= at[middle] * (1 + 1e-12)
        share = (middle - low) / (high - low) if high > low else 0.0
        assert at[middle] == pytest.approx(at[low] + share * (at[high] - at[low]), rel=1e-9)


@given(seeds, rounds, sizes, contexts)
def test_whatever_was_told_costs_are_finite_and_never_negative(seeds, rounds, size, context):
    table = table_of(seeds, rounds)
    for tier in table.tiers:
        assert 0 <= table.round_ms(tier, size, context) < math.inf
        assert 0 <= table.relative_noise(tier) < math.inf
    assert table.plain_extra_ms(size, context) >= 0


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


@given(seeds, rounds, sizes, contexts)
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


# --- serving


@pytest.mark.parametrize("batch_size", [1, 24, 100])
def test_a_tier_visited_often_is_predicted_within_one_percent(batch_size: int) -> None:
    server = Server(seeded(factor=lambda tier: 0.93), off_graph_ms=0.4)
    for _ in range(40):
        server.run(THREE, batch_size, 40)
        server.run(FIVE, batch_size, 10)
    assert abs(server.error(THREE, batch_size)) < 0.01
    assert abs(server.error(FIVE, batch_size)) < 0.01


def test_time_outside_the_graphs_is_learned_and_lent_to_tiers_not_visited() -> None:
    server = Server(seeded(), off_graph_ms=0.8)
    server.run(THREE, 16, 40)
    for tier in TIERS:
        assert server.table.off_graph_ms(tier) == pytest.approx(0.8, abs=0.05)
        assert abs(server.error(tier, 16)) < 0.01
    assert server.table.drift == pytest.approx(1.0, abs=0.01)


def test_speculative_tiers_borrow_among_themselves_and_zero_steps_from_them() -> None:
    table = seeded()
    server = Server(table, off_graph_ms=0.2)
    server.run(PLAIN_TIER, 16, 32)
    assert table.off_graph_ms(THREE) == pytest.approx(0.2, abs=0.05)  # better than nothing
    server.off_graph_ms = 0.9
    server.run(FIVE, 16, 32)
    assert table.off_graph_ms(THREE) == pytest.approx(0.9, abs=0.1)
    assert table.off_graph_ms(PLAIN_TIER) == pytest.approx(0.2, abs=0.05)


@pytest.mark.parametrize("visited", [PLAIN_TIER, THREE, SEVEN])
def test_a_neighbour_is_followed_by_tiers_not_visited(visited: Tier) -> None:
    server = Server(seeded(), off_graph_ms=0.3)
    server.run(visited, 32, 200)
    for factor in (1.5, 1.0, 1.5):
        server.neighbour = factor
        server.run(visited, 32, 50)  # half a second at 10 ms a round
        for tier in TIERS:
            assert abs(server.error(tier, 32)) < 0.02


def test_a_neighbour_of_a_minute_leaves_no_tier_looking_better() -> None:
    server = Server(seeded(), off_graph_ms=0.3)
    for tier in (THREE, FIVE):
        server.run(tier, 32, 200)
    for factor in (1.5, 1.0):
        server.neighbour = factor
        server.run(THREE, 32, 6000)
        errors = [server.error(tier, 32) for tier in TIERS]
        assert max(errors) - min(errors) < 0.02


def test_what_one_tier_was_wrong_by_is_not_booked_on_the_clocks() -> None:
    """The seed of 5 steps is 6 % too low; staying there must not cheapen 3 steps, nor drift."""
    server = Server(seeded())
    server.factor[FIVE] = 1.06
    server.run(THREE, 32, 300)
    server.run(FIVE, 32, 2000)
    assert server.table.drift == pytest.approx(1.0, abs=0.01)
    assert abs(server.error(THREE, 32)) < 0.01
    assert abs(server.error(FIVE, 32)) < 0.01


def test_a_short_visit_corrects_a_tier_and_leaves_the_rest_alone() -> None:
    server = Server(seeded())
    server.run(THREE, 32, 300)
    before = server.table.round_ms(THREE, 32, 32 * CONTEXT)
    server.factor[SEVEN] = 1.1
    server.run(SEVEN, 32, 16)
    assert server.table.round_ms(THREE, 32, 32 * CONTEXT) == pytest.approx(before, rel=0.002)
    assert abs(server.error(SEVEN, 32)) < 0.02


@pytest.mark.parametrize("bias", [0.93, 1.08])
def test_a_common_error_at_one_batch_size_favours_no_tier(bias: float) -> None:
    """All seeds are wrong alike; only 3 steps are ever visited, at more than one batch size."""
    server = Server(seeded(factor=lambda tier: 1 / bias))
    for batch_size in (32, 100, 8, 100, 32):
        server.run(THREE, batch_size, 300)
        at_visited = server.error(THREE, batch_size)
        assert abs(at_visited) < 0.01
        for tier in TIERS[1:]:
            assert abs(server.error(tier, batch_size) - at_visited) < 0.03


def test_a_neighbour_that_was_there_from_the_start_is_forgotten_when_it_leaves() -> None:
    server = Server(seeded())
    server.neighbour = 1.5
    server.run(THREE, 32, 200)
    server.neighbour = 1.0
    server.run(THREE, 32, 200)
    for tier in TIERS:
        assert abs(server.error(tier, 32)) < 0.02


def test_stalls_do_not_move_the_prediction() -> None:
    server = Server(seeded())
    server.run(THREE, 32, 300)
    before = server.table.round_ms(THREE, 32, 0)
    for _ in range(10):
        server.table.observe(RoundTime(THREE, 32, 32 * CONTEXT, 2_000.0))
    assert server.table.round_ms(THREE, 32, 0) == pytest.approx(before, rel=0.005)


@pytest.mark.parametrize("ms", [0.0, -3.0, math.nan, math.inf])
def test_a_period_that_is_none_is_left_out(ms: float) -> None:
    table = seeded()
    before = table.to_dict()
    table.observe(RoundTime(THREE, 4, 100, ms))
    table.observe(RoundTime(chain_tier(11), 4, 100, 5.0))  # a tier it does not hold
    assert table.to_dict() == before


def test_noise_shrinks_with_rounds_and_tells_a_quiet_tier_from_a_loud_one() -> None:
    table = seeded()
    unseen = table.relative_noise(THREE)
    server = Server(table)
    server.run(THREE, 32, 16)
    after_16 = table.relative_noise(THREE)
    server.run(THREE, 32, 300)
    assert table.relative_noise(THREE) < after_16 < unseen
    assert 0.5 * NOISE < 8 * table.relative_noise(THREE) < 2 * NOISE
    assert table.relative_noise(SEVEN) > 4 * table.relative_noise(THREE)  # it borrows the spread


# --- catching up


def test_a_seeded_catch_up_is_spread_over_the_rounds_between_two() -> None:
    table = seeded(catch_up_ms=3.2)
    plain = seeded()
    for batch_size in (1, 50):
        assert table.plain_extra_ms(batch_size, 0) == pytest.approx(3.2 / CATCH_UP_ROUNDS)
        rest = table.round_ms(PLAIN_TIER, batch_size, 0) - 3.2 / CATCH_UP_ROUNDS
        assert rest == pytest.approx(plain.round_ms(PLAIN_TIER, batch_size, 0))
        assert table.round_ms(THREE, batch_size, 0) == plain.round_ms(THREE, batch_size, 0)


@pytest.mark.parametrize("seeded_ms", [0.0, 3.2])
def test_catch_ups_are_corrected_while_serving(seeded_ms: float) -> None:
    table = seeded(catch_up_ms=seeded_ms)
    for idx in range(400):
        is_catch_up = idx % CATCH_UP_ROUNDS == 0
        ms = graph_ms(PLAIN_TIER, 16, 16 * CONTEXT) + (4.8 if is_catch_up else 0.0)
        table.observe(RoundTime(PLAIN_TIER, 16, 16 * CONTEXT, ms, is_catch_up))
    expected = graph_ms(PLAIN_TIER, 16, 16 * CONTEXT) + 4.8 / CATCH_UP_ROUNDS
    assert table.round_ms(PLAIN_TIER, 16, 16 * CONTEXT) == pytest.approx(expected, rel=0.005)
    assert table.drift == pytest.approx(1.0, abs=0.005)


# --- not seeded


def test_without_any_round_deeper_costs_more() -> None:
    table = CostTable.empty(TIERS)
    assert not table.is_seeded
    row = table.round_ms_all(TIERS, 8, 1000)
    assert (np.diff(row) > 0).all()
    assert row[3] / row[0] == pytest.approx(1.42)


def test_one_tier_observed_gives_the_others_in_proportion() -> None:
    table = CostTable.empty(TIERS)
    for _ in range(20):
        table.observe(RoundTime(THREE, 4, 400, 14.2))
    assert table.round_ms(THREE, 4, 400) == pytest.approx(14.2)
    assert table.round_ms(PLAIN_TIER, 4, 400) == pytest.approx(10.0)
    assert table.round_ms(SEVEN, 4, 400) == pytest.approx(19.8)


def test_two_tiers_observed_give_the_line_through_them() -> None:
    table = CostTable.empty(TIERS)
    for _ in range(20):
        table.observe(RoundTime(chain_tier(1), 4, 400, 12.0))
        table.observe(RoundTime(THREE, 4, 400, 18.0))
    said = table.round_ms_all(TIERS, 4, 400)
    assert said == pytest.approx([9.0, 12.0, 15.0, 18.0, 24.0, 30.0])


def test_a_tier_seen_at_small_batches_alone_is_not_cheap_at_large_ones() -> None:
    table = CostTable.empty(TIERS)
    for _ in range(20):
        table.observe(RoundTime(chain_tier(1), 1, 400, 11.4))
        table.observe(RoundTime(THREE, 1, 400, 14.2))
        table.observe(RoundTime(THREE, 64, 400, 28.4))
    assert table.round_ms(chain_tier(1), 64, 400) == pytest.approx(22.8)


def test_an_unseeded_table_follows_a_neighbour_that_comes_and_one_that_leaves() -> None:
    server = Server(CostTable.empty(TIERS))
    server.neighbour = 1.5
    for tier in (chain_tier(1), FIVE):
        server.run(tier, 16, 100)
    for factor in (1.0, 2.0, 1.0):
        server.neighbour = factor
        server.run(FIVE, 16, 60)
        assert abs(server.error(FIVE, 16)) < 0.02
        assert abs(server.error(chain_tier(1), 16)) < 0.02


# --- keeping


@given(seeds, rounds, rounds, sizes, contexts)
def test_a_table_goes_through_json_exactly_and_goes_on_alike(
    seeds, rounds, later, size, context
) -> None:
    table = table_of(seeds, rounds)
    text = json.dumps(table.to_dict(), allow_nan=False)
    other = CostTable.from_dict(json.loads(text))
    assert json.dumps(other.to_dict()) == text
    for tier, batch_size, ms, is_catch_up in [*later, (TIERS[0], 1, 1.0, False)]:
        row = table.round_ms_all(table.tiers, size, context)
        assert list(row) == list(other.round_ms_all(table.tiers, size, context))
        for told in (table, other):
            told.observe(RoundTime(tier, batch_size, context, ms, is_catch_up))
    assert table.to_dict() == other.to_dict()


@pytest.mark.parametrize(
    "change",
    [
        {"tiers": [[0, 1, 1]]},
        {"buckets": [1, 2]},
        {"buckets": []},
        {"drift_ratios": ["a"]},
        {"unknown": 1},
        {"seeds": None},
    ],
)
def test_what_is_no_table_is_refused(change) -> None:
    with pytest.raises(ValueError, match="seed again"):
        CostTable.from_dict(seeded().to_dict() | change)


def test_forgetting_the_drift_keeps_the_rest() -> None:
    server = Server(seeded(), off_graph_ms=0.5)
    server.run(THREE, 32, 100)
    server.neighbour = 1.5
    server.run(THREE, 32, 100)
    server.table.forget_drift()
    server.neighbour = 1.0
    assert server.table.drift == 1.0
    errors = [abs(server.error(tier, 32)) for tier in TIERS]
    assert statistics.mean(errors) < 0.02
