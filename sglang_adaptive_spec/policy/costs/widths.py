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
of the depth and one of T, each as far as its rounds are known. ms; no clock.
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
        self._logs: dict[tuple[int, int], list[float]] = {}  # newest served over expected
        self._log_of_steps: dict[int, float] = {}
        self._log_of_width = np.zeros(len(self.widths))
        self._is_stale = False

    def round_ms(self, tiers: tuple[Tier, ...], batch_size: int, context_tokens: int) -> Floats:
        """Returns what rounds of ``tiers`` take that verify `widths` tokens: [tiers, W]."""
        self._fit()
        of_steps = [self._log_of_steps.get(tier.num_steps, 0.0) for tier in tiers]
        ratio = np.exp(np.array(of_steps)[:, None] + self._log_of_width)
        round_ms: Floats = ratio * self._expected_ms(tiers, batch_size, context_tokens)
        return round_ms

    def choosing_ms(self, tiers: tuple[Tier, ...], batch_size: int) -> Floats:
        """Returns what it adds to rounds of ``tiers`` that the device chooses lengths: [tiers]."""
        own = [batch_size * tier.num_draft_tokens for tier in tiers]
        return self._choosing.of(own)

    def forget(self) -> None:
        """Takes rounds for what start-up measured again: what serving taught may be over."""
        self._logs.clear()
        self._is_stale = True

    def describe(self) -> dict[str, dict[str, object]]:
        """Returns what verifies take beyond the fewest tokens, and what was learned of them."""
        self._fit()
        least_ms = float(self._verify_ms.min(initial=math.inf))
        ratios = np.exp(self._log_of_width)
        of_steps = {steps: math.exp(log) for steps, log in self._log_of_steps.items()}
        return {
            "ms": _described(self.widths, self._verify_ms - least_ms),
            "added_ms": _described(*self._added),
            "choosing_ms": _described(*self._choosing),
            "ratio": _described(self.widths, ratios),
            "ratio_of_steps": _described(of_steps, of_steps.values()),
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
        logs = self._logs.setdefault((plan.tier.num_steps, idx), [])
        logs.append(math.log(ms / expected_ms))
        del logs[: -self._settings.window]
        self._is_stale = True

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

    def _fit(self) -> None:
        """Gives each depth what its rounds share, and each width what is left; once told more."""
        if not self._is_stale:
            return
        of_steps: dict[int, list[float]] = {}
        for (steps, _), logs in self._logs.items():
            of_steps.setdefault(steps, []).extend(logs)
        self._log_of_steps = {steps: self._typical(logs) for steps, logs in of_steps.items()}
        of_width: dict[int, list[float]] = {}
        for (steps, idx), logs in self._logs.items():
            left = (log - self._log_of_steps[steps] for log in logs)
            of_width.setdefault(idx, []).extend(left)
        self._log_of_width[:] = 0.0
        for idx, logs in of_width.items():
            self._log_of_width[idx] = self._typical(logs)
        self._is_stale = False

    def _typical(self, logs: list[float]) -> float:
        """Returns their median, the nearer to 0 the fewer they are."""
        weight = min(len(logs), self._settings.window)
        return weight / (weight + self._settings.prior_rounds) * median(logs) if logs else 0.0


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
