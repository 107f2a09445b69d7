"""A figure with its 95 % interval, its limit and the verdict; ratios and geometric means of them.

Errors of different arms count as independent. The interval takes Student's quantile for the
repeats there are; with one repeat the error is unknown, and so is whether a limit is kept. A wide
interval is no verdict: measure longer.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

# Two-sided 95 % quantile of Student's distribution by degrees of freedom; above, the normal one.
STUDENT_95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
)  # fmt: skip
NORMAL_95 = 1.960
MET, NOT_KNOWN, MISSED = "met", "not known", "MISSED"
MOST_UNSURE = 0.03  # half the interval, as a share of the value or the limit, which is larger


class Ratio(NamedTuple):
    """A ratio of two means, with its relative standard error and degrees of freedom.

    The error is None where there was one repeat, and 0 of what was counted.
    """

    value: float
    stderr: float | None
    freedom: int

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval."""
        if self.stderr is None:
            return 0.0, math.inf
        reach = quantile(self.freedom) * self.stderr
        return self.value * math.exp(-reach), self.value * math.exp(reach)


def stated(ratio: Ratio) -> dict[str, Any]:
    """Returns a ratio as a result file has it."""
    is_known = ratio.stderr is not None
    return {
        "ratio": round(ratio.value, 4),
        "interval": [round(end, 4) for end in ratio.interval] if is_known else None,
    }


class Figure(NamedTuple):
    """A claim of the project, what was measured, and whether the limit is kept."""

    claim: str
    ratio: Ratio
    limit: float
    is_upper: bool = False  # the limit is the largest allowed value

    @property
    def verdict(self) -> str:
        """What may be said: `met` and `MISSED` by the value, if the interval is narrow.

        Where it is wide, `not known`, unless all of it is beyond the limit: `MISSED`.
        """
        low, high = self.ratio.interval
        is_narrow = (high - low) / 2 <= MOST_UNSURE * max(self.ratio.value, self.limit)
        best = self.ratio.value if is_narrow else low if self.is_upper else high
        if not (best <= self.limit if self.is_upper else best >= self.limit):
            return MISSED
        return MET if is_narrow else NOT_KNOWN

    @property
    def is_met(self) -> bool:
        """Whether the limit is kept, and surely so."""
        return self.verdict == MET

    def row(self) -> tuple[Any, ...]:
        """Returns the figure as a row of a table."""
        return (
            self.claim,
            f"{self.ratio.value:.4f}",
            span(self.ratio),
            f"{'<=' if self.is_upper else '>='} {self.limit:.4g}",
            self.verdict,
        )


HEADER = ("target", "measured", "95 % interval", "limit", "verdict")


def quantile(freedom: int) -> float:
    """Returns the two-sided 95 % quantile for so many degrees of freedom."""
    return STUDENT_95[freedom - 1] if freedom <= len(STUDENT_95) else NORMAL_95


def span(ratio: Ratio) -> str:
    """Returns the interval as tables have it."""
    return "one repeat" if ratio.stderr is None else "{:.4f} .. {:.4f}".format(*ratio.interval)


def exact(value: float) -> Ratio:
    """Returns a figure without an error: it was counted."""
    return Ratio(value, 0.0, 1)


def of_one_repeat(value: float) -> Ratio:
    """Returns a figure whose error nobody knows."""
    return Ratio(value, None, 1)


def geometric_mean(ratios: Sequence[Ratio]) -> Ratio:
    """Returns the geometric mean of independent ratios."""
    number = len(ratios)
    value = math.exp(sum(math.log(ratio.value) for ratio in ratios) / number)
    errors = [ratio.stderr for ratio in ratios]
    known = [error for error in errors if error is not None]
    if len(known) < number:
        return of_one_repeat(value)
    stderr = math.sqrt(sum(error**2 for error in known)) / number
    return Ratio(value, stderr, sum(ratio.freedom for ratio in ratios))


def ratio_of_pairs(mine: Sequence[float], others: Sequence[float]) -> Ratio:
    """Returns the geometric mean of the ratios of pairs; how they scatter is its error."""
    logs = [math.log(one / other) for one, other in zip(mine, others, strict=True)]
    value = math.exp(statistics.fmean(logs))
    if len(logs) < 2:
        return of_one_repeat(value)
    return Ratio(value, statistics.stdev(logs) / math.sqrt(len(logs)), len(logs) - 1)


def ratio_at_same_place(mine: Mapping[Any, float], others: Mapping[Any, float]) -> Ratio:
    """Returns `ratio_of_pairs` of the values under a key that both have.

    Raises:
        ValueError: There is none.
    """
    both = sorted(mine.keys() & others.keys())
    if not both:
        raise ValueError(f"no pair: {sorted(mine)} beside {sorted(others)}; measure both in one.")
    return ratio_of_pairs([mine[key] for key in both], [others[key] for key in both])


def lowest(claim: str, ratios: Sequence[tuple[str, Ratio]], limit: float) -> Figure:
    """Returns the figure of the worst of several ratios: a miss, else one that is not known."""
    return worst([Figure(f"{claim} ({name})", ratio, limit) for name, ratio in ratios])


def worst(figures: Sequence[Figure]) -> Figure:
    """Returns the worst of several figures whose limits are the least allowed values."""
    return max(figures, key=lambda each: (rank(each), each.limit - each.ratio.value))


def rank(figure: Figure) -> int:
    """Returns how bad a figure's verdict is."""
    return (MET, NOT_KNOWN, MISSED).index(figure.verdict)
