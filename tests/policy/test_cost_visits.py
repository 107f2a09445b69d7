"""A look at another tier tells what is its own from what all share."""

import math

import pytest

from sglang_adaptive_spec.policy.costs.table import CostTable
from sglang_adaptive_spec.tiers import PLAIN_TIER
from tests.policy.cost_server import (
    CONTEXT,
    FIVE,
    SEEDED_SIZES,
    SEVEN,
    THREE,
    TIERS,
    Server,
    graph_ms,
    seeded,
)

LOOK = 3  # rounds


def dear_home() -> Server:
    """Three steps got dearer by half on their own, and nothing else has run since."""
    server = Server(seeded())
    server.run(FIVE, 32, 100)
    server.run(THREE, 32, 100)
    server.factor[THREE] = 1.5
    server.run(THREE, 32, 100)
    return server


def test_until_another_tier_runs_a_change_counts_as_drift_and_the_others_are_in_doubt() -> None:
    table = dear_home().table
    assert table.drift == pytest.approx(1.5, rel=0.02)
    share = dict(zip(TIERS, table.least_share_all(TIERS, 32), strict=True))
    assert share[THREE] > 0.97
    for tier in (PLAIN_TIER, FIVE, SEVEN):
        assert share[tier] <= 1 / 1.45


def test_a_look_that_does_not_show_the_drift_gives_it_to_the_tier_that_did() -> None:
    server = dear_home()
    server.run(FIVE, 32, LOOK)
    assert server.table.drift == 1.0
    for tier in (THREE, FIVE):
        assert abs(server.error(tier, 32)) < 0.03
    assert abs(server.error(PLAIN_TIER, 32)) < 0.03
    assert server.table.correction(THREE, 4) < 1.1  # of another batch size it says little


def test_one_round_is_enough_if_it_was_faster() -> None:
    server = dear_home()
    server.run(FIVE, 32, 1)
    assert server.table.drift == 1.0


def test_a_look_that_shows_the_drift_settles_that_tier_and_half_of_the_others_doubt() -> None:
    server = Server(seeded())
    server.run(FIVE, 32, 100)
    server.run(THREE, 32, 100)
    server.neighbour = 1.5
    server.run(THREE, 32, 100)
    before = dict(zip(TIERS, server.table.least_share_all(TIERS, 32), strict=True))
    server.run(FIVE, 32, LOOK)
    after = dict(zip(TIERS, server.table.least_share_all(TIERS, 32), strict=True))
    assert server.table.drift == pytest.approx(1.5, rel=0.02)
    assert after[FIVE] > 0.97
    assert after[SEVEN] / before[SEVEN] == pytest.approx(math.sqrt(1.5), rel=0.1)
    assert after[PLAIN_TIER] == pytest.approx(before[PLAIN_TIER], rel=0.05)
    for tier in TIERS:
        assert abs(server.error(tier, 32)) < 0.03


def test_a_neighbour_that_leaves_during_a_look_is_known_when_the_tier_is_back() -> None:
    server = Server(seeded())
    server.run(FIVE, 32, 100)
    server.run(THREE, 32, 100)
    server.neighbour = 1.5
    server.run(THREE, 32, 100)
    server.neighbour = 1.0
    server.run(FIVE, 32, LOOK)
    server.run(THREE, 32, LOOK)
    for tier in (THREE, FIVE):
        assert abs(server.error(tier, 32)) < 0.03


def test_a_tier_that_got_faster_while_another_ran_is_learned_anew_at_once() -> None:
    server = Server(seeded())
    server.run(FIVE, 32, 300)
    server.run(THREE, 32, 100)
    server.factor[FIVE] = 0.8
    server.run(FIVE, 32, LOOK)
    assert abs(server.error(FIVE, 32)) < 0.05
    assert abs(server.error(THREE, 32)) < 0.01


# --- uncertain seeds


def noisy(spread: float, factor: float, tier=FIVE) -> CostTable:
    """Returns a table whose seed of ``tier`` at batch 16 is wrong by a factor."""
    table = CostTable.empty(TIERS)
    for one in TIERS:
        for size in SEEDED_SIZES:
            ms = graph_ms(one, size, 256 * size)
            ms *= factor if (one, size) == (tier, 16) else 1.0
            table.seed(one, size, 256 * size, ms, spread=spread)
    table.fit()
    return table


def error_at_16(table: CostTable, tier=FIVE) -> float:
    return table.round_ms(tier, 16, 256 * 16) / graph_ms(tier, 16, 256 * 16) - 1


def test_a_noisy_seed_is_drawn_to_its_neighbours_and_an_exact_one_is_not() -> None:
    assert error_at_16(noisy(0.0, 1.05)) == pytest.approx(0.05)
    assert error_at_16(noisy(0.005, 1.05)) > 0.04
    assert abs(error_at_16(noisy(0.2, 1.05))) < 0.02


def test_a_tier_not_served_carries_the_spread_of_its_seed() -> None:
    shares = [noisy(spread, 1.0).least_share_all(TIERS, 16)[-1] for spread in (0.0, 0.1, 0.3)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] - shares[-1] > 0.05


def test_two_served_rounds_outweigh_a_noisy_seed() -> None:
    table = noisy(0.3, 1.3)
    server = Server(table)
    server.run(FIVE, 16, 3)
    assert abs(server.error(FIVE, 16)) < 0.06
    assert table.least_share_all((FIVE,), 16)[0] > 0.93


def test_seeds_out_of_order_are_named_with_their_neighbour() -> None:
    """The demo machine: 1, 3 and 5 steps were seeded at 137, 121 and 160 ms."""
    table = CostTable.empty((TIERS[1], THREE, FIVE))
    for tier, ms in ((TIERS[1], 137.0), (THREE, 121.0), (FIVE, 160.0)):
        table.seed(tier, 1, 64, ms, spread=0.02)
    assert table.out_of_order() == [(TIERS[1], 1), (THREE, 1)]
    for tier, ms in ((TIERS[1], 104.0), (TIERS[1], 105.0), (THREE, 121.0)):
        table.seed(tier, 1, 64, ms, spread=0.02)
    assert table.out_of_order() == []  # by their medians
    assert seeded().out_of_order() == []


def test_a_larger_batch_that_took_less_is_out_of_order_unless_it_is_within_the_spread() -> None:
    for spread, expected in ((0.01, [(THREE, 1), (THREE, 2)]), (0.1, [])):
        table = CostTable.empty((THREE,))
        table.seed(THREE, 1, 64, 110.0, spread=spread)
        table.seed(THREE, 2, 128, 100.0, spread=spread)
        assert table.out_of_order() == expected


def test_a_table_kept_before_spreads_were_is_read() -> None:
    kept = seeded().to_dict()
    for name in ("seed_spreads", "drift_shown", "visit", "visited"):
        del kept[name]
    table = CostTable.from_dict(kept)
    assert table.round_ms(FIVE, 16, 16 * CONTEXT) == seeded().round_ms(FIVE, 16, 16 * CONTEXT)
