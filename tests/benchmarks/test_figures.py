"""Figures with intervals: a miss must be beyond the noise."""

import math
import statistics

import pytest

from benchmarks.figures import NORMAL_95, Figure, Ratio, exact, geometric_mean, lowest, quantile


def test_the_quantiles_fall_from_few_repeats_to_the_normal_one() -> None:
    values = [quantile(freedom) for freedom in range(1, 40)]
    assert values == sorted(values, reverse=True)
    assert values[-1] == NORMAL_95 == round(statistics.NormalDist().inv_cdf(0.975), 3)


def test_the_interval_lies_around_the_value_on_a_log_scale() -> None:
    low, high = Ratio(0.95, 0.004, 8).interval
    assert math.sqrt(low * high) == pytest.approx(0.95)
    assert math.log(high / 0.95) == pytest.approx(2.306 * 0.004)


def test_a_limit_within_the_interval_is_kept_and_one_beyond_is_missed() -> None:
    assert Figure("near", Ratio(0.965, 0.004, 8), 0.97).is_met
    assert not Figure("far", Ratio(0.95, 0.004, 8), 0.97).is_met
    assert not Figure("unknown error", exact(0.969), 0.97).is_met
    assert Figure("upper", exact(0.004), 0.005, is_upper=True).is_met
    assert not Figure("upper", exact(0.006), 0.005, is_upper=True).is_met


def test_a_geometric_mean_is_surer_than_its_parts() -> None:
    mean = geometric_mean([Ratio(0.9, 0.01, 4), Ratio(1.1, 0.01, 4)])
    assert mean.value == pytest.approx(math.sqrt(0.99))
    assert mean.stderr == pytest.approx(0.01 / math.sqrt(2))
    assert mean.freedom == 8


def test_one_unknown_error_makes_the_mean_s_unknown() -> None:
    assert geometric_mean([Ratio(0.9, 0.01, 4), exact(1.0)]).stderr is None


def test_the_lowest_is_a_certain_miss_before_an_uncertain_one() -> None:
    ratios = [("noisy", Ratio(0.94, 0.05, 4)), ("sure", Ratio(0.96, 0.001, 4))]
    assert lowest("worst", ratios, 0.97).claim == "worst (sure)"
    assert lowest("worst", ratios, 0.9).claim == "worst (noisy)"
