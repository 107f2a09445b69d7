"""Do two samples of tokens come from one distribution? Pearson's chi-square, Holm, and power.

Samples are counts per token, one pair of them per stratum (a prompt). Tokens too rare for the
chi-square distribution to hold are pooled into one bin. Statistics and degrees of freedom of the
strata add up, so that one test asks about all prompts at once.

With n1 and n2 draws of distributions p and q the statistic has the noncentrality
n1 n2 / (n1 + n2) * sum((p - q)^2 / m), m their mean, which Cauchy-Schwarz bounds from below by
n1 n2 / (n1 + n2) * (2 TV)^2. So a total variation distance TV (over the bins) can be stated from
which on *any* difference is found with a wanted probability; over strata of equal size it is the
mean of their distances.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

REST = "rest"  # the bin of rare tokens
MIN_EXPECTED = 10.0  # in either sample; five is the textbook's least
_PRECISION = 1e-15
_MAX_TERMS = 100_000
_BISECTIONS = 100

Counts = Mapping[str, int]


class Statistic(NamedTuple):
    """A chi-square statistic with its degrees of freedom."""

    value: float
    freedom: int

    @property
    def p_value(self) -> float:
        """Probability of a value at least as large if nothing differs."""
        return survival(self.value, self.freedom)


def binned(first: Counts, second: Counts) -> list[tuple[int, int]]:
    """Returns the pairs of counts per bin; rare tokens share the last one."""
    num_first, num_second = sum(first.values()), sum(second.values())
    if not num_first or not num_second:
        raise ValueError(f"samples of {num_first} and {num_second} tokens: both need some.")
    least = MIN_EXPECTED * (num_first + num_second) / min(num_first, num_second)
    bins: list[tuple[int, int]] = []
    rest = (0, 0)
    for token in sorted({*first, *second}):
        pair = first.get(token, 0), second.get(token, 0)
        if token != REST and sum(pair) >= least:
            bins.append(pair)
        else:
            rest = _added(rest, pair)
    if 0 < sum(rest) < least and bins:  # too few even together
        smallest = min(bins, key=sum)
        bins.remove(smallest)
        rest = _added(rest, smallest)
    return [*bins, rest] if sum(rest) else bins


def _added(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return one[0] + other[0], one[1] + other[1]


def homogeneity(strata: Sequence[tuple[Counts, Counts]]) -> Statistic:
    """Returns the statistic of all strata together.

    Raises:
        ValueError: One of the samples is empty.
    """
    each = [_homogeneity(binned(first, second)) for first, second in strata]
    return Statistic(sum(one.value for one in each), sum(one.freedom for one in each))


def _homogeneity(bins: Sequence[tuple[int, int]]) -> Statistic:
    num_first = sum(first for first, _ in bins)
    num_second = sum(second for _, second in bins)
    to_second = math.sqrt(num_second / num_first)
    value = sum(
        (first * to_second - second / to_second) ** 2 / (first + second) for first, second in bins
    )
    return Statistic(value, len(bins) - 1)


def distance(strata: Sequence[tuple[Counts, Counts]]) -> float:
    """Returns the observed total variation distance over the bins, a mean over strata.

    Two samples of one distribution have one above zero, too: it is no estimate near zero.
    """
    each = []
    for first, second in strata:
        bins = binned(first, second)
        sizes = [sum(pair[side] for pair in bins) for side in (0, 1)]
        each.append(sum(abs(a / sizes[0] - b / sizes[1]) for a, b in bins) / 2)
    return sum(each) / len(each)


def holm(p_values: Sequence[float]) -> list[float]:
    """Returns p-values corrected for their number, in the order given (Holm 1979)."""
    order = sorted(range(len(p_values)), key=lambda idx: p_values[idx])
    corrected = [0.0] * len(p_values)
    highest = 0.0
    for place, idx in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - place) * p_values[idx]))
        corrected[idx] = highest
    return corrected


def detectable_distance(
    freedom: int, level: float, power: float, num_first: int, num_second: int
) -> float:
    """Returns the total variation distance from which on ``power`` is reached.

    For samples of equal size it equals the effect size w (Cohen) of the test.

    Args:
        freedom: degrees of freedom of the test.
        level: p-value below which it rejects.
        power: probability with which it is to reject.
        num_first: tokens of the first sample, all strata together.
        num_second: tokens of the second one.
    """
    needed = noncentrality(freedom, level, power)
    return 0.5 * math.sqrt(needed * (num_first + num_second) / (num_first * num_second))


def noncentrality(freedom: int, level: float, power: float) -> float:
    """Returns the noncentrality at which a test at ``level`` rejects with ``power``."""
    threshold = _solve(lambda value: level - survival(value, freedom), freedom + 1.0)
    return _solve(
        lambda value: noncentral_survival(threshold, freedom, value) - power, freedom + 1.0
    )


def survival(value: float, freedom: float) -> float:
    """Returns P(X >= value), X of the chi-square distribution."""
    if value <= 0 or freedom <= 0:
        return 1.0
    return _upper_gamma(freedom / 2, value / 2)


def noncentral_survival(value: float, freedom: float, noncentrality: float) -> float:
    """Returns P(X >= value), X noncentral: chi-squares weighted by a Poisson distribution."""
    half, mean = value / 2, noncentrality / 2
    shape, upper = freedom / 2, survival(value, freedom)
    # Q(a + 1, x) = Q(a, x) + x^a e^-x / Gamma(a + 1); logs, as both factors may underflow
    total, last = 0.0, int(mean + 12 * math.sqrt(mean) + 40)
    for count in range(last + 1):
        weight = math.exp(count * math.log(mean) - mean - math.lgamma(count + 1)) if mean else 1.0
        total += weight * upper
        if not mean:
            break
        upper += math.exp(shape * math.log(half) - half - math.lgamma(shape + 1))
        shape += 1
    return min(total, 1.0)


def _upper_gamma(shape: float, value: float) -> float:
    """Returns the regularised upper incomplete gamma function Q(shape, value)."""
    log_front = shape * math.log(value) - value - math.lgamma(shape)
    if value < shape + 1:  # a series for P = 1 - Q
        term = total = 1.0 / shape
        for step in range(1, _MAX_TERMS):
            term *= value / (shape + step)
            total += term
            if term < total * _PRECISION:
                break
        return 1.0 - total * math.exp(log_front)
    # Lentz's continued fraction
    tiny = 1e-300
    below = value + 1 - shape
    above, ratio = 1 / tiny, 1 / below
    total = ratio
    for step in range(1, _MAX_TERMS):
        factor = -step * (step - shape)
        below += 2
        ratio = 1 / _not_zero(factor * ratio + below, tiny)
        above = _not_zero(below + factor / above, tiny)
        total *= ratio * above
        if abs(ratio * above - 1) < _PRECISION:
            break
    return total * math.exp(log_front)


def _not_zero(value: float, tiny: float) -> float:
    return value if abs(value) > tiny else tiny


def _solve(rising: Callable[[float], float], start: float) -> float:
    """Returns where a rising function crosses zero, above 0."""
    low, high = 0.0, start
    while rising(high) < 0:
        low, high = high, 2 * high
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < 0 else (low, middle)
    return (low + high) / 2
