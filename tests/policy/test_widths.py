"""Round times by verified tokens: from one measured series, and from what is served."""

from typing import Any

import numpy as np
import pytest

from sglang_adaptive_spec.policy.costs.widths import WidthCosts
from sglang_adaptive_spec.policy.settings import DEFAULTS
from sglang_adaptive_spec.tiers import Plan, RoundTime, Tier, chain_tier
from tests.simulate.packed_world import Fa3Costs

TRUE = Fa3Costs()
GRID = (64, 128, 192, 256, 320, 384, 416, 448, 480, 512)
CONTEXT = 150
DEEP = chain_tier(7)


def width_costs(grid: tuple[int, ...] = GRID, size: int = 128) -> WidthCosts:
    table: Any = TRUE
    measured = {width: TRUE.packed_ms(DEEP, size, size * CONTEXT, width) for width in grid}
    return WidthCosts(table, [measured])


def served(tier: Tier, size: int, width: int, ms: float) -> RoundTime:
    lens = (width - size + 1, *[1] * (size - 1))  # whatever they are, their sum counts
    return RoundTime(Plan(tier, verify_lens=lens), size, size * CONTEXT, ms)


def test_a_width_dearer_than_a_larger_one_is_left_out() -> None:
    assert width_costs().widths.tolist() == [64, 128, 192, 256, 320, 384, 416, 480, 512]


@pytest.mark.parametrize(("steps", "size"), [(7, 128), (7, 64), (3, 64), (5, 96), (2, 128)])
def test_rounds_of_other_depths_and_sizes_follow_from_one_series(steps: int, size: int) -> None:
    costs, tier = width_costs((*GRID, 640, 768, 1024)), chain_tier(steps)
    (expected,) = costs.round_ms((tier,), size, size * CONTEXT).tolist()
    for width, ms in zip(costs.widths.tolist(), expected, strict=True):
        if size < width < size * tier.num_draft_tokens:
            assert ms == pytest.approx(TRUE.packed_ms(tier, size, size * CONTEXT, width), rel=0.05)


def test_series_of_two_batch_sizes_are_joined_where_they_measured_the_same() -> None:
    def series(size: int, *widths: int) -> dict[int, float]:
        return {width: TRUE.packed_ms(DEEP, size, size * CONTEXT, width) for width in widths}

    table: Any = TRUE
    small, large = series(64, 128, 256, 320), series(128, 256, 320, 512, 640, 1024)
    apart = series(16, 20, 40)  # shares none: where it would stand nobody knows
    costs = WidthCosts(table, [large, small, apart])
    assert costs.widths.tolist() == [128, 256, 320, 512, 640, 1024]
    for size in (64, 96):
        (expected,) = costs.round_ms((DEEP,), size, size * CONTEXT).tolist()
        for width, ms in zip(costs.widths.tolist(), expected, strict=True):
            assert ms == pytest.approx(TRUE.packed_ms(DEEP, size, size * CONTEXT, width), rel=0.05)


def test_a_width_that_serves_slower_is_known_soon_and_the_others_follow_until_they_serve() -> None:
    costs = width_costs()
    (before,) = costs.round_ms((DEEP,), 64, 64 * CONTEXT)
    at = costs.widths.tolist().index(256)
    for _ in range(8):
        costs.learn(served(DEEP, 64, 256, 1.2 * before[at]))
    (ratio,) = costs.round_ms((DEEP,), 64, 64 * CONTEXT) / before
    assert ratio[at] == pytest.approx(1.2)
    np.testing.assert_allclose(ratio, 1.2)
    other = costs.widths.tolist().index(320)
    for _ in range(DEFAULTS.packing.window):
        costs.learn(served(DEEP, 64, 320, before[other]))
    (ratio,) = costs.round_ms((DEEP,), 64, 64 * CONTEXT) / before
    assert ratio[other] == pytest.approx(1.0, abs=0.02)
    assert ratio[at] == pytest.approx(1.17, abs=0.03)
    assert 1.0 < ratio[0] < 1.2


def test_a_width_that_is_left_out_teaches_nothing() -> None:
    costs = width_costs()
    before = costs.round_ms((DEEP,), 64, 64 * CONTEXT).tolist()
    for width in (448, 100, 2000):
        costs.learn(served(DEEP, 64, width, 100.0))
        assert costs.of_round(served(DEEP, 64, width, 1.0)) == TRUE.round_ms(DEEP, 64, 64 * CONTEXT)
    assert costs.round_ms((DEEP,), 64, 64 * CONTEXT).tolist() == before


def test_a_stall_is_no_time_of_its_width() -> None:
    costs = width_costs()
    expected = costs.of_round(served(DEEP, 64, 256, 1.0))
    for ms in (expected, expected, 10 * expected, expected):
        costs.learn(served(DEEP, 64, 256, ms))
    assert costs.of_round(served(DEEP, 64, 256, 1.0)) == pytest.approx(expected)


def test_drafting_keeps_its_part_of_a_round() -> None:
    table: Any = TRUE
    costs = WidthCosts(table, [{64: 1.0, 512: 100.0}])  # as if verifying took all of a round
    (least, whole) = costs.round_ms((DEEP,), 64, 64 * CONTEXT)[0]
    assert whole == pytest.approx(TRUE.round_ms(DEEP, 64, 64 * CONTEXT))
    assert least == pytest.approx(whole / 4)


def test_old_rounds_of_a_width_give_way_and_all_can_be_forgotten() -> None:
    costs = width_costs()
    expected = costs.of_round(served(DEEP, 64, 256, 1.0))
    for factor in (2.0, 1.0):
        for _ in range(DEFAULTS.packing.window):
            costs.learn(served(DEEP, 64, 256, factor * expected))
    assert costs.of_round(served(DEEP, 64, 256, 1.0)) == pytest.approx(expected)
    costs.learn(served(DEEP, 64, 320, 50.0))
    costs.forget()
    assert costs.of_round(served(DEEP, 64, 256, 1.0)) == pytest.approx(expected)
