"""Figures with intervals: a miss must be beyond the noise."""

import math
import statistics

import pytest

from benchmarks.stats.figures import (
    NORMAL_95,
    Figure,
    Ratio,
    exact,
    geometric_mean,
    lowest,
    quantile,
    ratio_of_pairs,
)


def test_the_quantiles_fall_from_few_repeats_to_the_normal_one() -> None:
    values = [quantile(freedom) for freedom in range(1, 40)]
    assert values == sorted(values, reverse=True)
    assert values[-1] == NORMAL_95 == round(statistics.NormalDist().inv_cdf(0.975), 3)


def test_the_interval_lies_around_the_value_on_a_log_scale() -> None:
    low, high = Ratio(0.95, 0.004, 8).interval
    assert math.sqrt(low * high) == pytest.approx(0.95)
    assert math.log(high / 0.95) == pytest.approx(2.306 * 0.004)


@pytest.mark.parametrize(
    ("ratio", "limit", "is_upper", "verdict"),
    [
        (Ratio(0.975, 0.004, 8), 0.97, False, "met"),
        (Ratio(0.965, 0.004, 8), 0.97, False, "MISSED"),  # near, but narrow
        (Ratio(0.975, 0.02, 8), 0.97, False, "not known"),
        (Ratio(1.3, 0.02, 8), 0.97, False, "not known"),  # wide never means met
        (Ratio(3.0, 0.01, 8), 0.97, False, "met"),
        (Ratio(0.965, 0.02, 8), 0.97, False, "not known"),
        (Ratio(0.9, 0.02, 8), 0.97, False, "MISSED"),  # wide, and all of it below
        (exact(0.969), 0.97, False, "MISSED"),
        (exact(0.004), 0.005, True, "met"),
        (exact(0.006), 0.005, True, "MISSED"),
        (Ratio(1.2, 0.02, 8), 1.0, True, "MISSED"),
        (Ratio(0.99, 0.02, 8), 1.0, True, "not known"),
        (Ratio(0.0032, 0.02, 20), 0.01, True, "met"),  # far below, and the limit is the scale
        (exact(0.0), 0.0, True, "met"),
        (exact(1.0), 0.0, True, "MISSED"),
    ],
)
def test_a_wide_interval_never_means_met(
    ratio: Ratio, limit: float, is_upper: bool, verdict: str
) -> None:
    figure = Figure("claim", ratio, limit, is_upper=is_upper)
    assert figure.verdict == figure.row()[-1] == verdict
    assert figure.is_met == (verdict == "met")


def test_a_geometric_mean_is_surer_than_its_parts() -> None:
    mean = geometric_mean([Ratio(0.9, 0.01, 4), Ratio(1.1, 0.01, 4)])
    assert mean.value == pytest.approx(math.sqrt(0.99))
    assert mean.stderr == pytest.approx(0.01 / math.sqrt(2))
    assert mean.freedom == 8


def test_one_unknown_error_makes_the_mean_s_unknown() -> None:
    mean = geometric_mean([Ratio(0.9, 0.01, 4), ratio_of_pairs([1.0], [1.0])])
    assert mean.stderr is None
    assert Figure("mean", mean, 0.5).verdict == "not known"


def test_the_lowest_is_a_certain_miss_before_an_uncertain_one() -> None:
    ratios = [("noisy", Ratio(0.94, 0.05, 4)), ("sure", Ratio(0.96, 0.001, 4))]
    assert lowest("worst", ratios, 0.97).claim == "worst (sure)"
    assert lowest("worst", ratios, 0.9).claim == "worst (noisy)"


def test_pairs_have_the_scatter_of_their_ratios_as_error() -> None:
    assert ratio_of_pairs([3.0], [2.0]) == Ratio(1.5, None, 1)
    three = ratio_of_pairs([2.0, 24.0, 4.0], [1.0, 3.0, 1.0])  # 2, 8 and 4 times
    assert three == pytest.approx(Ratio(4.0, math.log(2) / math.sqrt(3), 2))
