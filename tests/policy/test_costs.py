"""Costs while serving: what is corrected, and what must not fool the comparison of tiers."""

import json
import math
import statistics

import pytest
from hypothesis import given, settings

from sglang_adaptive_spec.policy.costs.table import CostTable
from sglang_adaptive_spec.policy.settings import DEFAULTS
from sglang_adaptive_spec.tiers import (
    CATCH_UP_ROUNDS,
    PLAIN_TIER,
    Plan,
    RoundTime,
    Tier,
    chain_tier,
)
from tests.policy.cost_server import (
    CONTEXT,
    FIVE,
    NOISE,
    SEEDED_SIZES,
    SEVEN,
    THREE,
    TIERS,
    Server,
    contexts,
    graph_ms,
    rounds_told,
    seeded,
    seeds_told,
    served,
    sizes,
    table_of,
)

LENT_SHARE = 0.5  # of its correction, by a tier seen alone (policy/costs/belief.py)

# --- serving


@pytest.mark.parametrize("batch_size", [1, 24, 100])
def test_a_tier_visited_often_is_predicted_within_one_percent(batch_size: int) -> None:
    server = Server(seeded(factor=lambda tier: 0.93), off_graph_ms=0.4)
    for _ in range(40):
        server.run(THREE, batch_size, 40)
        server.run(FIVE, batch_size, 10)
    assert abs(server.error(THREE, batch_size)) < 0.01
    assert abs(server.error(FIVE, batch_size)) < 0.01


def test_what_a_seed_did_not_see_is_learned_and_half_of_it_lent_to_drafting_tiers() -> None:
    server = Server(seeded(), off_graph_ms=0.8)
    server.run(THREE, 16, 40)
    own = server.table.correction(THREE, 16)
    assert own == pytest.approx(1 + 0.8 / 7.8, rel=0.02)
    assert abs(server.error(THREE, 16)) < 0.01
    for tier in (TIERS[1], FIVE, SEVEN):
        assert server.table.correction(tier, 16) == pytest.approx(own**LENT_SHARE)
    assert server.table.correction(THREE, 4) == 1.0  # of another batch size it says nothing
    assert server.table.drift == 1.0


def test_zero_steps_neither_lend_nor_borrow() -> None:
    server = Server(seeded(), off_graph_ms=0.8)
    server.run(THREE, 16, 40)
    assert server.table.correction(PLAIN_TIER, 16) == 1.0
    server = Server(seeded(), off_graph_ms=0.8)
    server.run(PLAIN_TIER, 16, 40)
    assert abs(server.error(PLAIN_TIER, 16)) < 0.01
    assert server.table.correction(THREE, 16) == 1.0


def test_a_scheduler_slower_than_the_graphs_of_a_small_model_is_no_neighbour() -> None:
    """SmolLM2 on an H200: zero steps seeded at 1.0 ms take 2.3 ms, three steps 4.9 for 3.9."""
    server = Server(seeded(factor=lambda tier: 0.2), off_graph_ms=1.3)
    server.graph_factor = 0.2
    for tier in (PLAIN_TIER, THREE):
        server.run(tier, 16, 80)
    for tier in (PLAIN_TIER, THREE):
        assert abs(server.error(tier, 16)) < 0.02
    assert server.table.drift == 1.0


class HidingServer(Server):
    """The host's work shows as far as a drafting round on the GPU is shorter than it."""

    host_ms = 8.0

    def expected_ms(self, tier: Tier, batch_size: int) -> float:
        ms = super().expected_ms(tier, batch_size)
        return ms + 0.2 if tier == PLAIN_TIER else max(ms, self.host_ms)


def test_what_a_small_batch_shows_of_the_host_s_work_a_large_one_hides() -> None:
    server = HidingServer(seeded())
    server.run(PLAIN_TIER, 1, 80)
    server.run(TIERS[1], 1, 80)  # 5.7 ms on the GPU: 2.3 ms of the host show
    for tier in TIERS[:2]:
        assert abs(server.error(tier, 1)) < 0.02
    for tier in TIERS:  # from 8.4 ms on
        assert abs(server.error(tier, 128)) < 0.02


def test_what_a_large_batch_shows_is_not_charged_to_a_small_one() -> None:
    """H200: 7 steps first ran at batch 32, 1.6 ms over their seed; batch 1 was charged with it."""
    server = Server(seeded())
    server.run(FIVE, 1, 80)
    server.factor[SEVEN] = 1.1
    server.run(SEVEN, 32, 80)
    assert abs(server.error(SEVEN, 32)) < 0.02
    server.factor[SEVEN] = 1.0
    assert abs(server.error(SEVEN, 1)) < 0.01


def test_a_slow_host_at_one_batch_size_does_not_look_like_a_neighbour_at_the_next() -> None:
    """H200: 3 steps took 10 % more than seeded at batch 1, and batch 32 was charged with it."""
    server = HidingServer(seeded())
    server.host_ms = 7.9
    server.run(THREE, 1, 300)  # 7.1 ms on the GPU
    server.run(THREE, 32, 300)
    for tier in (THREE, FIVE, SEVEN):  # which the GPU bounds there
        assert abs(server.error(tier, 32)) < 0.01
    assert server.table.drift == 1.0


@pytest.mark.parametrize("visited", [PLAIN_TIER, THREE, SEVEN])
def test_a_neighbour_is_followed_by_tiers_not_visited(visited: Tier) -> None:
    server = Server(seeded())
    server.run(visited, 32, 200)
    for factor in (1.5, 1.0, 1.5):
        server.neighbour = factor
        server.run(visited, 32, 50)  # half a second at 10 ms a round
        for tier in TIERS:
            assert abs(server.error(tier, 32)) < 0.02


def test_a_neighbour_of_a_minute_leaves_no_tier_looking_better() -> None:
    server = Server(seeded())
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
    assert server.table.round_ms(THREE, 32, 32 * CONTEXT) == pytest.approx(before, rel=0.01)
    assert abs(server.error(SEVEN, 32)) < 0.02


@pytest.mark.parametrize("bias", [0.93, 1.08])
def test_a_common_error_at_one_batch_size_favours_no_tier_by_more_than_half(bias: float) -> None:
    """All seeds are wrong alike; only 3 steps are ever visited, at more than one batch size."""
    server = Server(seeded(factor=lambda tier: 1 / bias))
    for batch_size in (32, 100, 8, 100, 32):
        server.run(THREE, batch_size, 300)
        at_visited = server.error(THREE, batch_size)
        assert abs(at_visited) < 0.01
        for tier in TIERS[1:]:
            assert abs(server.error(tier, batch_size) - at_visited) < abs(1 - bias) / 2 + 0.01


def test_a_neighbour_that_was_there_from_the_start_is_forgotten_when_it_leaves() -> None:
    server = Server(seeded())
    server.neighbour = 1.5
    server.run(THREE, 32, 200)
    server.neighbour = 1.0
    server.run(THREE, 32, 200)
    for tier in TIERS:
        assert abs(server.error(tier, 32)) < 0.02


def test_slow_first_rounds_are_paid_back() -> None:
    server = Server(seeded(), off_graph_ms=1.2)
    server.run(THREE, 32, 80)
    server.off_graph_ms = 0.2
    server.run(THREE, 32, 200)
    for tier in TIERS:
        assert abs(server.error(tier, 32)) < 0.04
    assert abs(server.error(THREE, 32)) < 0.01


def test_a_settled_tier_that_changes_is_followed_though_drift_is_held_by_another() -> None:
    server = Server(seeded())
    for change in (1.0, 1.04):
        server.factor[FIVE] = change
        for _ in range(120):
            server.run(THREE, 32, 20)
            server.run(FIVE, 32, 8)
    assert abs(server.error(THREE, 32)) < 0.01
    assert abs(server.error(FIVE, 32)) < 0.01


def test_a_correction_is_not_drowned_by_smaller_batches_nobody_served() -> None:
    """Batch 32 beats its seed, which is as high at every size: the order has to be restored.

    Were the unserved sizes to pull 32 up again, drift would fall and cheapen 128.
    """
    table = CostTable.empty((THREE, FIVE))
    for tier in table.tiers:
        for batch_size in SEEDED_SIZES:
            table.seed(tier, batch_size, 0, 10.0 + tier.num_steps)
    table.fit()
    for _ in range(150):
        table.observe(RoundTime(Plan(THREE), 32, 0, 12.0))
    assert table.round_ms(THREE, 32, 0) == pytest.approx(12.0, rel=0.01)
    assert table.round_ms(THREE, 128, 0) == pytest.approx(13.0, rel=0.02)
    ratio = table.round_ms(FIVE, 32, 0) / table.round_ms(THREE, 32, 0)
    assert ratio == pytest.approx(15 / 13 * (13 / 12) ** (1 - LENT_SHARE), rel=0.005)


def test_stalls_do_not_move_the_prediction() -> None:
    server = Server(seeded())
    server.run(THREE, 32, 300)
    before = server.table.round_ms(THREE, 32, 0)
    for _ in range(10):
        server.table.observe(RoundTime(Plan(THREE), 32, 32 * CONTEXT, 2_000.0))
    assert server.table.round_ms(THREE, 32, 0) == pytest.approx(before, rel=0.005)


@pytest.mark.parametrize("ms", [0.0, -3.0, math.nan, math.inf])
def test_a_period_that_is_none_is_left_out(ms: float) -> None:
    table = seeded()
    before = table.to_dict()
    table.observe(RoundTime(Plan(THREE), 4, 100, ms))
    table.observe(RoundTime(Plan(chain_tier(11)), 4, 100, 5.0))  # a tier it does not hold
    assert table.to_dict() == before


def test_noise_shrinks_with_rounds_and_tells_a_quiet_tier_from_a_loud_one() -> None:
    table = seeded()
    unseen = table.relative_noise(THREE)
    server = Server(table)
    server.run(THREE, 32, 300)
    assert 0.5 * NOISE < 8 * table.relative_noise(THREE) < 2 * NOISE
    assert table.relative_noise(SEVEN) > 4 * table.relative_noise(THREE)  # it borrows the spread
    assert table.relative_noise(SEVEN) < unseen


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
    for idx in range(30 * CATCH_UP_ROUNDS):
        is_catch_up = idx % CATCH_UP_ROUNDS == 0
        ms = graph_ms(PLAIN_TIER, 16, 16 * CONTEXT) + (4.8 if is_catch_up else 0.0)
        table.observe(RoundTime(served(PLAIN_TIER, is_catch_up), 16, 16 * CONTEXT, ms))
    expected = graph_ms(PLAIN_TIER, 16, 16 * CONTEXT) + 4.8 / CATCH_UP_ROUNDS
    assert table.round_ms(PLAIN_TIER, 16, 16 * CONTEXT) == pytest.approx(expected, rel=0.005)
    assert table.drift == pytest.approx(1.0, abs=0.005)


# --- keeping


@settings(deadline=None)
@given(seeds_told, rounds_told, rounds_told, sizes, contexts)
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
            told.observe(RoundTime(served(tier, is_catch_up), batch_size, context, ms))
    assert table.to_dict() == other.to_dict()


def test_a_table_not_rebuilt_since_its_last_round_goes_over_as_it_predicts_next() -> None:
    table = CostTable.empty(TIERS)
    settled = [1.0] * DEFAULTS.costs.settle_rounds
    for ms in settled + [1.01] * 20:  # the 20 count at the next rebuild only
        table.observe(RoundTime(Plan(THREE), 1, 0, ms))
    table.forget_drift()
    before_ms = table.round_ms(THREE, 1, 0)
    other = CostTable.from_dict(table.to_dict())
    assert other.round_ms(THREE, 1, 0) == table.round_ms(THREE, 1, 0) > before_ms


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
    server = Server(seeded())
    server.run(THREE, 32, 100)
    server.neighbour = 1.5
    server.run(THREE, 32, 100)
    server.table.forget_drift()
    server.neighbour = 1.0
    assert server.table.drift == 1.0
    errors = [abs(server.error(tier, 32)) for tier in TIERS]
    assert statistics.mean(errors) < 0.02
