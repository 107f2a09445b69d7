"""What a round takes that verifies another number of drafts per request.

Start-up measures a round for every number of tokens T that has a graph, in series of one depth and
batch size. Between two rounds of a series only the verify differs, so it gives the time of that by
T, up to a constant; series of other batch sizes are joined where they measured the same T. A packed
round of any depth t and batch n is a round of its tier, with another verify:

    round_ms(t, n, T) = ratio(t, T) * (round_ms(t, n) + packed_ms(T) - whole_ms(n * width of t))

Here packed_ms(T) verifies T tokens packed, and whole_ms all windows of a tier's own round: a series
measures its own whole round, too, and what packing adds to that is taken to rise evenly from 0.

T is taken from measured ones alone: times do not rise evenly (on an H200 448 tokens took 3 ms more
than 480). The width of the tier's own verify may lie between them, where the line through its
neighbours serves. What all this is off by is learned: ratio is served over expected time, one part
of the depth and one of T, each as far as its rounds are known. What start-up measured of one batch
size may be off where another's is not, so each size class has ratios of its own; until it has
rounds of a depth, those of the others count in part. ms; no clock.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean, median
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from sglang_adaptive_spec.policy.costs.curves import Floats
from sglang_adaptive_spec.policy.costs.table import CostTable
from sglang_adaptive_spec.policy.settings import DEFAULTS, PackingSettings
from sglang_adaptive_spec.size_classes import size_class, size_range
from sglang_adaptive_spec.tiers import Plan, RoundTime, Tier


class Series(NamedTuple):
    """Measured rounds of one depth and batch size."""

    num_tokens: int  # of whole windows
    whole_ms: float  # of a round that verifies them, and is not packed
    packed_ms: Mapping[int, float]  # by verified tokens
    # More, where the device chooses lengths by the draft's confidence; None: not measured.
    choosing_ms: float | None = None


class Line(NamedTuple):
    """ms through measured points, level beyond them."""

    at: npt.NDArray[np.int64]  # tokens, ascending
    ms: Floats

    @classmethod
    def through(cls, points: Mapping[int, float]) -> Self:
        """Returns the line through ms by tokens."""
        at = sorted(points)
        return cls(np.array(at, dtype=np.int64), np.array([points[width] for width in at]))

    def of(self, num_tokens: Sequence[int]) -> Floats:
        """Returns the ms of each: [len(num_tokens)]."""
        ms: Floats = np.interp(num_tokens, self.at, self.ms)
        return ms


class WidthCosts:
    """Owns the times of verifies by their tokens, and what serving taught about them."""

    def __init__(
        self,
        table: CostTable,
        series: Sequence[Series],
        settings: PackingSettings = DEFAULTS.packing,
    ) -> None:
        """Takes the table of rounds that are not packed, and measured rounds by their tokens.

        A number of tokens that is dearer than a larger one is never worth it: it is left out.

        Args:
            table: Of tiers.
            series: What start-up measured; one shares tokens with those before it, or is left out.
            settings: How fast serving corrects it.
        """
        self._table, self._settings = table, settings
        self._verify = Line.through(_joined([each.packed_ms for each in series]))
        cheapest = np.minimum.accumulate(self._verify.ms[::-1])[::-1]
        is_worth = self._verify.ms <= cheapest
        self.widths = self._verify.at[is_worth]  # [W] tokens, ascending
        self._verify_ms = self._verify.ms[is_worth]  # [W]
        added = {
            each.num_tokens: each.packed_ms[each.num_tokens] - each.whole_ms
            for each in series
            if each.num_tokens in each.packed_ms
        }
        self._added = Line.through({0: 0.0, **added})  # by packing
        choosing = {n: ms for n, _, _, ms in series if ms is not None}
        self._choosing = Line.through(choosing or {0: 0.0})
        self._served: dict[int, Served] = {}  # by size class

    def round_ms(self, tiers: tuple[Tier, ...], batch_size: int, context_tokens: int) -> Floats:
        """Returns what rounds of ``tiers`` take that verify `widths` tokens: [tiers, W]."""
        of_steps = [self._log_of_steps(tier.num_steps, batch_size) for tier in tiers]
        ratio = np.exp(np.array(of_steps)[:, None] + self._served_of(batch_size).of_width())
        round_ms: Floats = ratio * self._expected_ms(tiers, batch_size, context_tokens)
        return round_ms

    def choosing_ms(self, tiers: tuple[Tier, ...], batch_size: int) -> Floats:
        """Returns what it adds to rounds of ``tiers`` that the device chooses lengths: [tiers]."""
        own = [batch_size * tier.num_draft_tokens for tier in tiers]
        return self._choosing.of(own)

    def forget(self, batch_size: int) -> None:
        """Takes rounds of such batches for what start-up measured again, whatever others say.

        What serving taught may be over.
        """
        served = Served(len(self.widths), self._settings, is_alone=True)
        self._served[size_class(batch_size)] = served

    def describe(self) -> dict[str, dict[str, object]]:
        """Returns what verifies take beyond the fewest tokens, and what was learned of them.

        ``ratio`` is by batch size.
        """
        least_ms = float(self._verify_ms.min(initial=math.inf))
        served = sorted(self._served.items())
        return {
            "ms": _described(self.widths, self._verify_ms - least_ms),
            "added_ms": _described(*self._added),
            "choosing_ms": _described(*self._choosing),
            "ratio": {
                size_range(place): each.describe(self.widths)
                for place, each in served
                if each.is_told
            },
        }

    def of_round(self, round_time: RoundTime) -> float:
        """Returns what a packed round is expected to take."""
        plan, batch_size, context_tokens = round_time[:3]
        idx = self._idx(plan)
        if idx is None:
            return self._table.round_ms(plan.tier, batch_size, context_tokens)
        ms = float(self.round_ms((plan.tier,), batch_size, context_tokens)[0, idx])
        return ms + self._choosing_ms_of(plan, batch_size)

    def learn(self, round_time: RoundTime) -> None:
        """Takes a packed round that nothing interrupted; one of another width is left alone."""
        plan, batch_size, context_tokens, ms = round_time[:4]
        idx = self._idx(plan)
        if idx is None:
            return
        expected_ms = float(self._expected_ms((plan.tier,), batch_size, context_tokens)[0, idx])
        expected_ms += self._choosing_ms_of(plan, batch_size)
        served, steps = self._served_of(batch_size), plan.tier.num_steps
        served.learn(steps, idx, math.log(ms / expected_ms), self._shared(steps, served))

    def _choosing_ms_of(self, plan: Plan, batch_size: int) -> float:
        if plan.by_confidence is None:
            return 0.0
        return float(self.choosing_ms((plan.tier,), batch_size)[0])

    def _idx(self, plan: Plan) -> int | None:
        """Returns where a plan's width stands; None if it is left out."""
        assert plan.verify_lens is not None
        width = sum(plan.verify_lens)
        idx = int(np.searchsorted(self.widths, width))
        return idx if idx < len(self.widths) and self.widths[idx] == width else None

    def _expected_ms(self, tiers: tuple[Tier, ...], batch_size: int, context_tokens: int) -> Floats:
        base_ms = self._table.round_ms_all(tiers, batch_size, context_tokens)
        own = [batch_size * tier.num_draft_tokens for tier in tiers]
        own_ms = self._verify.of(own) - self._added.of(own)
        # Drafting takes a part of a round, whatever is verified.
        rest_ms = (base_ms - own_ms)[:, None] + self._verify_ms
        expected: Floats = np.maximum(rest_ms, base_ms[:, None] / 4)
        return expected

    def _log_of_steps(self, steps: int, batch_size: int) -> float:
        """Returns a depth's part: what other batch sizes share, until it has rounds of its own."""
        served = self._served_of(batch_size)
        own = served.of_steps(steps)
        return self._shared(steps, served) if own is None else own

    def _shared(self, steps: int, served: "Served") -> float:
        """Returns what others than ``served`` say of a depth, drawn to 0 where they are few."""
        if served.is_alone:
            return 0.0
        told = [each.of_steps(steps) for each in self._served.values() if each is not served]
        known = [log for log in told if log is not None]
        return sum(known) / (len(known) + 1)

    def _served_of(self, batch_size: int) -> "Served":
        place = size_class(batch_size)
        if place not in self._served:
            self._served[place] = Served(len(self.widths), self._settings)
        return self._served[place]


class Served:
    """What rounds of about one batch size were off by: logs of served over expected time."""

    def __init__(self, num_widths: int, settings: PackingSettings, is_alone: bool = False) -> None:
        self._settings = settings
        self.is_alone = is_alone  # what others say does not count
        self._logs: dict[tuple[int, int], list[float]] = {}  # the newest, by steps and width
        self._shared: dict[int, float] = {}  # by steps, what others said before its first round
        self._of_steps: dict[int, float] = {}
        self._of_width = np.zeros(num_widths)
        self._is_stale = False

    @property
    def is_told(self) -> bool:
        """Whether any round was learned."""
        return bool(self._logs)

    def learn(self, steps: int, width_idx: int, log: float, shared: float) -> None:
        """Takes a round; ``shared`` is what rounds of other sizes say of its depth."""
        self._shared.setdefault(steps, shared)
        logs = self._logs.setdefault((steps, width_idx), [])
        logs.append(log)
        del logs[: -self._settings.window]
        self._is_stale = True

    def of_steps(self, steps: int) -> float | None:
        """Returns a depth's part; None without a round of it."""
        self._fit()
        return self._of_steps.get(steps)

    def of_width(self) -> Floats:
        """Returns what is left to each width: [W]."""
        self._fit()
        return self._of_width

    def describe(self, widths: Iterable[int]) -> dict[str, object]:
        """Returns both parts as ratios, of depths and widths that were served."""
        served = self.of_width() != 0
        of_steps = dict(sorted(self._of_steps.items()))
        return {
            "of_steps": _described(of_steps, map(math.exp, of_steps.values())),
            "of_width": _described(np.array(widths)[served], np.exp(self.of_width()[served])),
        }

    def _fit(self) -> None:
        """Gives each depth what its rounds share, and each width what is left; once told more."""
        if not self._is_stale:
            return
        self._is_stale = False
        of_steps: dict[int, list[float]] = {}
        for (steps, _), logs in self._logs.items():
            of_steps.setdefault(steps, []).extend(logs)
        self._of_steps = {
            steps: self._drawn(logs, self._shared[steps]) for steps, logs in of_steps.items()
        }
        of_width: dict[int, list[float]] = {}
        for (steps, idx), logs in self._logs.items():
            known = self._of_steps[steps]
            of_width.setdefault(idx, []).extend(log - known for log in logs)
        self._of_width[:] = 0.0
        for idx, logs in of_width.items():
            self._of_width[idx] = self._drawn(logs, 0.0)

    def _drawn(self, logs: Sequence[float], before: float) -> float:
        """Returns the median of ``logs``, the nearer to what was thought before the fewer."""
        weight, prior = min(len(logs), self._settings.window), self._settings.prior_rounds
        return (weight * median(logs) + prior * before) / (weight + prior)


def _described(keys: Iterable[int], values: Iterable[float]) -> dict[str, object]:
    return {str(key): round(float(value), 4) for key, value in zip(keys, values, strict=True)}


def _joined(series: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """Returns the ms of all series, shifted to the first; of two for a width their mean."""
    joined: dict[int, list[float]] = {}
    for each in series:
        shared = joined.keys() & each.keys()
        if joined and not shared:
            continue
        shift = sum(mean(joined[width]) - each[width] for width in shared) / max(len(shared), 1)
        for width, ms in each.items():
            joined.setdefault(width, []).append(ms + shift)
    return {width: mean(each) for width, each in joined.items()}
