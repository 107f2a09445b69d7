"""One factor for all round times: a neighbour on the GPU, the clocks.

It is the median ratio of the last rounds of settled tiers, and 1 while that is near 1. While one
tier runs, a change of its round time may be its own or drift. Rounds of another tier tell: either
they show the drift, too, or they do not, and then the change belongs to the tiers that did show it.
So it is kept which tiers have shown how much of it.
"""

import math
from bisect import bisect_left, insort
from collections.abc import Iterable
from statistics import median

from sglang_adaptive_spec.policy.costs.state import CostState, clamp
from sglang_adaptive_spec.policy.settings import CostSettings


class Drift:
    """Owns the factor, and ``drift_*`` and ``rounds_since_drift`` of the state."""

    def __init__(self, state: CostState, settings: CostSettings) -> None:
        self._state, self._settings = state, settings
        self._small = settings.small_drift
        self._sorted = sorted(state.drift_ratios)
        self.factor = self._of_window()

    @property
    def log(self) -> float:
        """The log of the factor."""
        return math.log(self.factor)

    @property
    def small(self) -> float:
        """A factor; less either way is 1."""
        return self._small

    @small.setter
    def small(self, factor: float) -> None:
        if factor != self._small:
            self._small = factor
            self.factor = self._of_window()

    @property
    def is_below_alone(self) -> bool:
        """Whether rounds are faster than alone for a whole window."""
        return self.factor < 1.0 and len(self._sorted) == self._settings.drift_window

    def learn(self, ratio: float, is_settled: bool) -> None:
        """Takes served over undrifted time of a round.

        What a new tier shows first is its own; drift stands for the settled ones.
        """
        state, window_size = self._state, self._settings.drift_window
        state.rounds_since_drift = 0 if is_settled else state.rounds_since_drift + 1
        if not is_settled and state.rounds_since_drift <= window_size:
            return
        state.drift_ratios.append(ratio)
        insort(self._sorted, ratio)
        if len(self._sorted) > window_size:
            del self._sorted[bisect_left(self._sorted, state.drift_ratios.pop(0))]
        self.factor = self._of_window()

    def forget(self) -> None:
        """Takes the factor back to 1: another process starts beside other neighbours."""
        self._state.drift_ratios.clear()
        self._state.drift_shown.clear()
        self._sorted = []
        self.factor = 1.0

    def start_anew(self) -> None:
        """Forgets what settled tiers said, as none is settled any more."""
        self._state.rounds_since_drift = 0
        self.forget()

    def is_small(self, ratio: float) -> bool:
        """Returns whether a ratio of times is too near to 1 for a neighbour."""
        return 1 / self._small < ratio < self._small

    def recent_log(self) -> float:
        """Returns the log of what the last rounds took beyond their prediction."""
        recent = self._state.drift_ratios[-self._settings.recent_rounds :]
        return math.log(median(recent) / self.factor) if recent else 0.0

    def shown(self, idx: int, bucket: int) -> float:
        """Returns the log of the drift that a tier has shown at a bucket."""
        return self._state.drift_shown.get(idx, {}).get(bucket, 0.0)

    def show(self, idx: int, bucket: int, log: float) -> None:
        """Notes that a tier has shown so much."""
        self._state.drift_shown.setdefault(idx, {})[bucket] = log

    def confirm(self, idx: int, bucket: int, alike: Iterable[int]) -> None:
        """Notes that a tier has shown all of it, and that tiers ``alike`` are half as doubtful."""
        log = self.log
        for other in alike:
            self.show(other, bucket, (self.shown(other, bucket) + log) / 2)
        self.show(idx, bucket, log)

    def showed_most(self) -> list[tuple[int, int]]:
        """Returns tiers and buckets that showed most of it."""
        least = self.log / 2
        return [
            (idx, bucket)
            for idx, by_bucket in self._state.drift_shown.items()
            for bucket, shown in by_bucket.items()
            if shown >= least
        ]

    def _of_window(self) -> float:
        if len(self._sorted) < self._settings.min_drift_rounds:
            return 1.0
        middle = self._sorted[len(self._sorted) // 2]
        drift = clamp(middle, self._settings.least_drift, self._settings.most_drift)
        return 1.0 if self.is_small(drift) else drift
