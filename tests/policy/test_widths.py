"""Round times by verified tokens: from one measured series, and from what is served."""

from typing import Any

import pytest

from sglang_adaptive_spec.policy.costs.widths import Series, WidthCosts
from sglang_adaptive_spec.policy.settings import DEFAULTS
from sglang_adaptive_spec.tiers import Plan, RoundTime, Tier, chain_tier
from tests.simulate.packed_world import Fa3Costs, measured_series

TRUE = Fa3Costs()
GRID = (64, 128, 192, 256, 320, 384, 416, 448, 480, 512)
CONTEXT = 150
DEEP = chain_tier(7)


def width_costs(grid: tuple[int, ...] = GRID, size: int = 128) -> WidthCosts:
    table: Any = TRUE
    return WidthCosts(table, [measured_series(TRUE, DEEP, size, grid)])


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
    def series(size: int, *widths: int) -> Series:
        return measured_series(TRUE, DEEP, size, widths)

    table: Any = TRUE
    small, large = series(64, 128, 256, 320), series(128, 256, 320, 512, 640, 1024)
    apart = series(16, 20, 40)  # shares none: where it would stand nobody knows
    costs = WidthCosts(table, [large, small, apart])
    assert costs.widths.tolist() == [128, 256, 320, 512, 640, 1024]
    for size in (64, 96):
        (expected,) = costs.round_ms((DEEP,), size, size * CONTEXT).tolist()
        for width, ms in zip(costs.widths.tolist(), expected, strict=True):
            assert ms == pytest.approx(TRUE.packed_ms(DEEP, size, size * CONTEXT, width), rel=0.05)


def ratios(costs: WidthCosts, tier: Tier, before: Any) -> Any:
    """Returns expected times of 64 requests over those of ``before``."""
    (now,) = costs.round_ms((tier,), 64, 64 * CONTEXT)
    return now / before


def test_a_width_that_serves_slower_is_known_soon() -> None:
    costs, window = width_costs(), DEFAULTS.packing.window
    (before,) = costs.round_ms((DEEP,), 64, 64 * CONTEXT)
    slow, other = (costs.widths.tolist().index(width) for width in (256, 320))
    for _ in range(8):
        costs.learn(served(DEEP, 64, 256, 1.2 * before[slow]))
    ratio = ratios(costs, DEEP, before)
    assert ratio[slow] == pytest.approx(1.18, abs=0.02)
    assert ratio[other] == pytest.approx(1.13, abs=0.02)  # perhaps it is the depth's
    for _ in range(2 * window):
        costs.learn(served(DEEP, 64, 320, before[other]))
        costs.learn(served(DEEP, 64, 384, before[other + 1]))
    ratio = ratios(costs, DEEP, before)
    assert ratio[slow] == pytest.approx(1.15, abs=0.03)
    assert ratio[other] == pytest.approx(1.0, abs=0.01)


def test_a_depth_that_serves_slower_says_nothing_of_the_others() -> None:
    costs, shallow = width_costs(), chain_tier(2)
    expected = costs.round_ms((DEEP, shallow), 64, 64 * CONTEXT)
    widths = [costs.widths.tolist().index(width) for width in (256, 320, 384, 512)]
    for _ in range(DEFAULTS.packing.window):
        for at in widths:
            costs.learn(served(DEEP, 64, int(costs.widths[at]), 1.1 * expected[0, at]))
    assert ratios(costs, DEEP, expected[0])[widths] == pytest.approx(1.1, abs=0.01)
    assert ratios(costs, shallow, expected[1])[widths] == pytest.approx(1.0, abs=0.02)


def test_other_batch_sizes_are_believed_in_part_until_a_size_has_rounds_of_its_own() -> None:
    costs = width_costs()

    def ratio(size: int) -> float:
        return costs.of_round(served(DEEP, size, 256, 1.0)) / expected[size]

    def serve(size: int, off: float) -> None:
        for _ in range(DEFAULTS.packing.window):
            costs.learn(served(DEEP, size, 256, off * expected[size]))

    expected = {size: costs.of_round(served(DEEP, size, 256, 1.0)) for size in (32, 50, 64, 128)}
    serve(64, 1.2)
    assert ratio(64) == ratio(50) == pytest.approx(1.2, abs=0.02)
    assert ratio(128) == pytest.approx(1.08, abs=0.02)
    serve(128, 1.2)
    assert ratio(32) == pytest.approx(1.11, abs=0.02)  # two sizes agree
    serve(32, 1.0)
    assert ratio(32) == pytest.approx(1.0, abs=0.01)
    assert ratio(64) == pytest.approx(1.2, abs=0.02)
    assert set(costs.describe()["ratio"]) == {"17-32", "33-64", "65-128"}


def test_a_size_that_forgets_believes_no_other_and_leaves_them_alone() -> None:
    costs = width_costs()
    rounds = {size: served(DEEP, size, 256, 1.0) for size in (32, 64, 128)}
    expected = {size: costs.of_round(each) for size, each in rounds.items()}
    for size, each in rounds.items():
        for _ in range(DEFAULTS.packing.window):
            costs.learn(each._replace(ms=1.2 * expected[size]))
    costs.forget(64)
    ratio = {size: costs.of_round(each) / expected[size] for size, each in rounds.items()}
    assert ratio == pytest.approx({32: 1.19, 64: 1.0, 128: 1.19}, abs=0.01)


def test_sizes_that_are_off_alike_are_not_taken_for_more_than_that() -> None:
    costs, sizes = width_costs(), (32, 64, 128, 16)
    rounds = {size: served(DEEP, size, 128, 1.0) for size in sizes}
    expected = {size: costs.of_round(each) for size, each in rounds.items()}
    for _ in range(200):
        for size, each in rounds.items():
            costs.learn(each._replace(ms=1.2 * expected[size]))
    for size, each in rounds.items():
        assert 1.18 < costs.of_round(each) / expected[size] <= 1.2


def test_what_packing_adds_is_no_part_of_what_a_tier_verifies() -> None:
    table: Any = TRUE
    deep = measured_series(TRUE, DEEP, 128, (*GRID, 640, 768, 1024))
    dear = deep._replace(packed_ms={T: ms + T / 1024 * 4.0 for T, ms in deep.packed_ms.items()})
    costs, context = WidthCosts(table, [dear]), 128 * CONTEXT
    for steps in (2, 3, 7):
        tier = chain_tier(steps)
        (expected,) = costs.round_ms((tier,), 128, context)
        for width, ms in zip(costs.widths.tolist(), expected, strict=True):
            if 128 < width < 128 * tier.num_draft_tokens:
                true_ms = TRUE.packed_ms(tier, 128, context, width) + width / 1024 * 4.0
                assert ms == pytest.approx(true_ms, rel=0.02)


def test_what_choosing_by_confidence_adds_is_no_fault_of_depth_or_width() -> None:
    table: Any = TRUE
    measured = [measured_series(TRUE, DEEP, size, GRID) for size in (128, 32, 8)]
    added = dict(zip((128, 32, 8), (0.4, 0.2, None), strict=True))
    costs = WidthCosts(
        table,
        [each._replace(choosing_ms=ms) for each, ms in zip(measured, added.values(), strict=True)],
    )
    assert costs.choosing_ms((DEEP,), 128).tolist() == [0.4]
    assert costs.choosing_ms((DEEP,), 16).tolist() == [0.2]  # of 8 nobody asks the draft
    context, width = 128 * CONTEXT, int(costs.widths[-2])
    plain = served(DEEP, 128, width, 1.0)
    chosen = plain._replace(plan=plain.plan._replace(by_confidence=(1.0,)))
    ms = costs.of_round(plain)
    assert costs.of_round(chosen) == pytest.approx(ms + 0.4)
    before = costs.round_ms((DEEP,), 128, context).tolist()
    for _ in range(50):
        costs.learn(chosen._replace(ms=ms + 0.4))
    assert costs.round_ms((DEEP,), 128, context)[0] == pytest.approx(before[0])


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
    measured = {64: 1.0, 512: 100.0}  # as if verifying took all of a round
    costs = WidthCosts(table, [Series(512, 100.0, measured)])
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
    costs.forget(50)  # of the same class
    assert costs.of_round(served(DEEP, 64, 256, 1.0)) == pytest.approx(expected)
