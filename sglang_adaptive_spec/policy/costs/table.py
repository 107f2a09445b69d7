"""How long a round of a tier takes: seeded at start-up, corrected while serving.

For tier t and a batch that pads to bucket k:

    round_ms = drift * (correction[t, k] * base[t, k] + slope[t, k] * context_tokens)

base and slope come from the seed (`cost_curves`), the rest from served rounds. correction is a low
median ratio of the first rounds of a tier at a bucket, then follows: it holds whatever the seed did
not, such as host work that the GPU does not hide. Until it is settled it says nothing about other
buckets, and few rounds, or such as disagree, move it little (`cost_belief`). drift, one factor for
all tiers, is the median ratio of the last rounds of any settled tier, as far as a neighbour
explains it: a little is booked on the corrections, and so is what another tier does not show
(`cost_visits`). What some tiers were seen to do at a bucket says something about the rest. ms; no
clock.
"""

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import msgspec
import numpy as np

from sglang_adaptive_spec.policy.costs.belief import (
    believe,
    prior,
)
from sglang_adaptive_spec.policy.costs.curves import (
    MIN_MS,
    Floats,
    corrected,
    difference,
    extrapolate,
    fit_curve,
    fit_learned,
)
from sglang_adaptive_spec.policy.costs.seeds import covariance_at, out_of_order, smooth
from sglang_adaptive_spec.policy.costs.state import (
    CostState,
    clamp,
    location,
    new_state,
    push,
    spread,
    standard_error,
    state_from_dict,
    state_to_dict,
)
from sglang_adaptive_spec.policy.costs.visits import (
    VISIT_ROUNDS,
    confirm_drift,
    learn_anew,
    moved_since,
    recent_log,
    show_drift,
    showed_drift,
    shown_drift,
)
from sglang_adaptive_spec.policy.settings import DEFAULTS, CostSettings
from sglang_adaptive_spec.tiers import CATCH_UP_ROUNDS, PLAIN_TIER, RoundTime, Tier

# The host's own capture list with speculation (sglang 0.5.23 arg_groups/cuda_graph_hook.py).
DEFAULT_BUCKETS = (*range(1, 9), *range(10, 33, 2), *range(40, 65, 4), *range(72, 257, 8))

# A settled correction rebuilds the tables when it has moved by so much, or weighs twice as much
# where order must be restored.
REFRESH_MOVE = 0.01


class CostTable:
    """Round times of every tier; the module has the model."""

    def __init__(self, state: CostState, settings: CostSettings = DEFAULTS.costs) -> None:
        self._state, self._settings = state, settings
        # Rounds of a tier at a bucket: a rebuild is too long for every one.
        self._learned_at = frozenset((1, 2, 3, settings.firm_rounds, 8, 16, settings.settle_rounds))
        self._refresh_at = frozenset((64, 128, settings.max_evidence))
        self.catch_up_rounds = CATCH_UP_ROUNDS  # the server's own, where that differs
        self.tiers = tuple(Tier(*fields) for fields in state.tiers)
        self._idx = {tier: idx for idx, tier in enumerate(self.tiers)}
        self._plain_idx = self._idx.get(PLAIN_TIER)
        self._selections: dict[tuple[Tier, ...], list[int]] = {}
        self.fit()

    @classmethod
    def empty(
        cls,
        tiers: Sequence[Tier],
        buckets: Sequence[int] = DEFAULT_BUCKETS,
        settings: CostSettings = DEFAULTS.costs,
    ) -> "CostTable":
        """Returns a table of ``tiers`` that knows nothing; ``buckets`` are captured batch sizes."""
        return cls(new_state(tuple(dict.fromkeys(tiers)), sorted(set(buckets))), settings)

    def seed(
        self,
        tier: Tier,
        batch_size: int,
        context_tokens: int,
        ms: float,
        is_catch_up: bool = False,
        spread: float = 0.0,
    ) -> None:
        """Takes one measured round; counts from the next `fit` on.

        Args:
            tier: The tier that ran.
            batch_size: Requests.
            context_tokens: Summed over the requests.
            ms: The period, or the mean of several.
            is_catch_up: Whether it is a zero-step round that caught the draft up.
            spread: Relative standard error of ``ms``; 0 if it is not known.

        Raises:
            ValueError: It is no measurement.
        """
        if not (math.isfinite(ms) and ms > 0 and batch_size > 0 and context_tokens >= 0):
            raise ValueError(
                f"a round of {ms} ms at batch {batch_size} with {context_tokens} context tokens "
                "cannot seed a cost; allowed: finite and above zero; fix: measure it again."
            )
        point = (batch_size, context_tokens, ms)
        if is_catch_up:
            self._state.catch_up_seeds.append(point)
            return
        self._state.seeds[self._idx[tier]].append(point)
        self._state.seed_spreads[self._idx[tier]].append(spread)

    def fit(self) -> None:
        """Fits the curves to the seeds; a size seeded outside the buckets becomes one."""
        state = self._state
        sizes = {point[0] for points in state.seeds for point in points}
        if not sizes <= set(state.buckets):
            grown = new_state(self.tiers, sorted(sizes.union(state.buckets)))
            for name in ("seeds", "seed_spreads", "catch_up_seeds"):
                setattr(grown, name, getattr(state, name))
            self._state = state = grown
        self._buckets = state.buckets
        self._fit_curves()
        self._disagreement = np.zeros((len(self.tiers), len(state.buckets)))  # of unsettled rounds
        if self._has_seeds:
            for idx, windows in enumerate(state.unsettled_pairs):
                for bucket, window in windows.items():
                    self._disagreement[idx, bucket] = standard_error(window)
        self._sorted_ratios = sorted(state.drift_ratios)
        self.drift = self._drift_of_window()
        self._refresh()

    @property
    def is_seeded(self) -> bool:
        """Whether every tier was measured at start-up."""
        return all(self._state.seeds)

    def is_measured(self, tier: Tier) -> bool:
        """Returns whether ``tier`` was measured at start-up."""
        return bool(self._state.seeds[self._idx[tier]])

    @property
    def measured_sizes(self) -> list[int]:
        """The batch sizes measured at start-up, ascending."""
        return sorted({point[0] for points in self._state.seeds for point in points})

    def out_of_order(self) -> list[tuple[Tier, int]]:
        """Returns tiers and batch sizes whose seeds contradict a neighbour's, to measure again."""
        return out_of_order(self.tiers, self._state.seeds, self._state.seed_spreads, self._settings)

    def describe(self, batch_size: int, context_tokens: int) -> dict[str, Any]:
        """Returns what a batch's rounds are expected to take, and how sure that is."""

        def of_tiers(value: Callable[[Tier], float]) -> dict[str, float]:
            return {tier.label: round(float(value(tier)), 4) for tier in self.tiers}

        return {
            "is_seeded": self.is_seeded,
            "batch_size": batch_size,
            "context_tokens": context_tokens,
            "round_ms": of_tiers(lambda tier: self.round_ms(tier, batch_size, context_tokens)),
            "correction": of_tiers(lambda tier: self.correction(tier, batch_size)),
            "relative_noise": of_tiers(self.relative_noise),
            "catch_up_ms_per_round": round(self.plain_extra_ms(batch_size, context_tokens), 4),
            "drift": round(self.drift, 4),
        }

    def correction(self, tier: Tier, batch_size: int) -> float:
        """Returns what the seed of ``tier`` without context is multiplied with, own or lent."""
        return math.exp(self._belief.mean.item(self._idx[tier], self._bucket(batch_size)))

    def plain_extra_ms(self, batch_size: int, context_tokens: int) -> float:
        """Returns a catch-up's extra time, spread over the zero-step rounds between two."""
        if self._plain_idx is None or self._catch_up_scale == 0.0:
            return 0.0
        unit = self._extra_unit_ms(batch_size, context_tokens)
        return self.drift * self._catch_up_scale * unit / self.catch_up_rounds

    def round_ms(self, tier: Tier, batch_size: int, context_tokens: int) -> float:
        """Returns the expected period of a round."""
        idx = self._idx[tier]
        ms = self.drift * self._alone_ms(idx, batch_size, context_tokens)
        if idx == self._plain_idx:
            ms += self.plain_extra_ms(batch_size, context_tokens)
        return ms

    def round_ms_all(self, tiers: tuple[Tier, ...], batch_size: int, context_tokens: int) -> Floats:
        """Returns `round_ms` of every one of ``tiers``."""
        bucket = self._bucket(batch_size)
        ms: Floats = self._slope[bucket] * context_tokens  # [T], a new array
        ms += self._base[bucket]
        if batch_size > self._buckets[-1]:
            ms += self._rise * (batch_size - self._buckets[-1])
        ms *= self.drift
        if self._plain_idx is not None:
            ms[self._plain_idx] += self.plain_extra_ms(batch_size, context_tokens)
        return ms if tiers == self.tiers else ms[self._selection(tiers)]

    def least_share_all(
        self, tiers: tuple[Tier, ...], batch_size: int, is_curious: bool = False
    ) -> Floats:
        """Returns the share of `round_ms` that every one of ``tiers`` may take, as far as known.

        That is some standard errors less, and the drift less that the tier itself has not shown
        yet. One that is not settled and looks dearer may be as fast as its seed. The curious
        believe half of a tier never served: its seed may be another machine's.
        """
        bucket = self._bucket(batch_size)
        less = self._settings.least_z * self._belief.spread[:, bucket]
        rounds = np.array([by_bucket[bucket] for by_bucket in self._state.num_corrected])
        is_in_doubt = (rounds > 0) & (rounds < self._settings.settle_rounds)
        less = np.where(is_in_doubt, np.maximum(less, self._belief.mean[:, bucket]), less)
        if self.drift > 1.0:
            drift_log = math.log(self.drift)
            less += [drift_log - shown_drift(self._state, idx, bucket) for idx in range(len(less))]
        if is_curious:
            less = np.maximum(less, np.where(rounds == 0, math.log(self._settings.wrong_seed), 0.0))
        share: Floats = np.exp(-np.maximum(less, 0.0))
        return share if tiers == self.tiers else share[self._selection(tiers)]

    def relative_noise(self, tier: Tier) -> float:
        """Returns the standard error of the expected period, as a share of it.

        It is the robust spread of the tier's recent residuals over the root of their number; a
        tier hardly observed takes the spread of all tiers, undivided.
        """
        own, settings = self._state.residuals[self._idx[tier]], self._settings
        if len(own) >= settings.min_noise_rounds:
            return spread(own) / math.sqrt(len(own))
        pooled = [residual for window in self._state.residuals for residual in window]
        is_told = len(pooled) >= settings.min_noise_rounds
        return spread(pooled) if is_told else settings.unseen_noise

    def observe(self, round_time: RoundTime) -> None:
        """Learns from one uninterrupted served round; a tier it does not hold is left alone."""
        idx = self._idx.get(round_time.tier)
        batch_size, context_tokens, ms, is_catch_up = round_time[1:5]
        if idx is None or not (math.isfinite(ms) and ms > 0):
            return
        alone_ms = max(self._alone_ms(idx, batch_size, context_tokens), MIN_MS)
        expected = self.drift * alone_ms
        if is_catch_up:
            self._learn_catch_up(ms - expected, self._extra_unit_ms(batch_size, context_tokens))
            return
        if self._has_seeds:
            self._visit(idx, round_time)
            alone_ms = max(self._alone_ms(idx, batch_size, context_tokens), MIN_MS)
            expected = self.drift * alone_ms
        push(self._state.residuals[idx], ms / expected - 1, self._settings.residual_window)
        self._state.rounds_since_drift += 1
        if self._settle(idx, round_time, ms / expected):
            self._state.rounds_since_drift = 0
        elif self._state.rounds_since_drift <= self._settings.drift_window:
            return  # what a new tier shows first is its own; drift stands for the settled ones
        self._follow_drift(ms / alone_ms)

    def forget_drift(self) -> None:
        """Takes drift back to 1: another process starts beside other neighbours."""
        self._state.drift_ratios.clear()
        self._state.drift_shown.clear()
        self._sorted_ratios = []
        self.drift = 1.0

    def snapshot(self) -> dict[str, Any]:
        """Returns the state as it is, as JSON has it, for whoever asks the server."""
        plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(state_to_dict(self._state)))
        return plain

    def to_dict(self) -> dict[str, Any]:
        """Returns the whole state as builtins that JSON holds exactly.

        The table rebuilds itself from it, too: both sides predict the same to the last bit.
        """
        self.fit()
        return state_to_dict(self._state)

    @classmethod
    def from_dict(
        cls, data: Mapping[str, Any], settings: CostSettings = DEFAULTS.costs
    ) -> "CostTable":
        """Returns the table that `to_dict` gave ``data`` for.

        Raises:
            ValueError: ``data`` is no such state.
        """
        return cls(state_from_dict(data), settings)

    def _visit(self, idx: int, round_time: RoundTime) -> None:
        """Finds out from a tier's first rounds after another one what has changed meanwhile."""
        state, settings = self._state, self._settings
        bucket = self._bucket(round_time.batch_size)
        if state.visited != (idx, bucket):
            state.visited, state.visit = (idx, bucket), []
        if len(state.visit) >= VISIT_ROUNDS:
            return
        state.visit.append(self._observed_log(idx, bucket, round_time))
        moved = moved_since(state.visit, self._belief.mean.item(idx, bucket), settings.visit_change)
        if len(state.visit) > 1 or moved:
            moved += self._weigh_drift(idx, bucket, moved)
        num_rounds = state.num_corrected[idx][bucket]
        if num_rounds >= settings.settle_rounds and moved > math.log(settings.small_drift):
            return  # as if it were drift, until another tier shows that it is not
        beyond = moved - recent_log(state.drift_ratios, self.drift, settings.recent_rounds)
        if moved and abs(beyond) > settings.visit_change and num_rounds:
            learn_anew(state, idx, bucket)

    def _weigh_drift(self, idx: int, bucket: int, moved: float) -> float:
        """Tells drift from changes of the tiers that showed it, by one that had not yet.

        Returns what to add to logs relative to drift: it is 1 again if it was none.
        """
        state, drift_log = self._state, math.log(self.drift)
        if shown_drift(state, idx, bucket) >= drift_log / 2 or drift_log <= 0:
            return 0.0
        if abs(moved) < abs(moved + drift_log):
            drafting = [other for other in range(len(self.tiers)) if other != self._plain_idx]
            confirm_drift(state, idx, bucket, drift_log, drafting if idx in drafting else ())
            return 0.0
        for one, at in showed_drift(state, drift_log):
            self._set_correction(one, at, state.correction_log[one][at] + drift_log)
            window = state.unsettled_pairs[one].get(at, [])
            window[:] = [log + drift_log for log in window]
        state.visit = [log + drift_log for log in state.visit]
        self.forget_drift()
        self._refresh()
        return drift_log

    def _settle(self, idx: int, round_time: RoundTime, ratio: float) -> bool:
        """Learns what is the tier's own; returns whether the tier was settled at this bucket."""
        bucket = self._bucket(round_time.batch_size)
        num_rounds = self._state.num_corrected[idx][bucket]
        settled = self._settings.settle_rounds
        if not self._has_seeds and num_rounds < settled:
            self._learn_point(idx, bucket, round_time)
            return False
        log = self._observed_log(idx, bucket, round_time)
        if num_rounds < settled:
            self._learn_correction(idx, bucket, log)
            return False
        self._follow_correction(idx, bucket, log, is_own=self._is_small(ratio))
        if self.drift != 1.0 and self._is_small(ratio) and len(self._state.visit) >= VISIT_ROUNDS:
            show_drift(self._state, idx, bucket, math.log(self.drift))
        return True

    def _learn_correction(self, idx: int, bucket: int, log: float) -> None:
        """Takes the log of observed over seeded of a tier new to a bucket."""
        window = self._state.unsettled_pairs[idx].setdefault(bucket, [])
        window.append(log)
        if len(window) in self._learned_at:
            self._set_correction(idx, bucket, location(window, self._settings.num_smaller))
            self._disagreement[idx, bucket] = standard_error(window)
        self._count_unsettled(idx, bucket, len(window))

    def _follow_correction(self, idx: int, bucket: int, log: float, is_own: bool) -> None:
        state = self._state
        if is_own:  # else it is a stall or a neighbour: nothing of the tier's
            before = state.correction_log[idx][bucket]
            self._set_correction(idx, bucket, before + self._settings.slow_rate * (log - before))
        moved = abs(state.correction_log[idx][bucket] - self._shown_log.item(idx, bucket))
        has_grown = state.num_corrected[idx][bucket] < self._settings.max_evidence
        if has_grown:
            state.num_corrected[idx][bucket] += 1
        num_rounds = state.num_corrected[idx][bucket]
        if moved > REFRESH_MOVE or (has_grown and num_rounds in self._refresh_at):
            self._refresh()

    def _learn_point(self, idx: int, bucket: int, round_time: RoundTime) -> None:
        """Stands in for a seed: a tier's first rounds at a bucket, whatever their context."""
        state = self._state
        window = state.unsettled_pairs[idx].setdefault(bucket, [])
        window.append(round_time.ms / self.drift)
        if len(window) in self._learned_at:
            size = max(round_time.batch_size, self._buckets[bucket])
            state.learned[idx][bucket] = (size, location(window, self._settings.num_smaller))
            self._fit_curves()
        self._count_unsettled(idx, bucket, len(window))

    def _count_unsettled(self, idx: int, bucket: int, num_rounds: int) -> None:
        self._state.num_corrected[idx][bucket] = num_rounds
        if num_rounds == self._settings.settle_rounds:
            del self._state.unsettled_pairs[idx][bucket]
            self._disagreement[idx, bucket] = 0.0
        if num_rounds in self._learned_at:
            self._refresh()

    def _set_correction(self, idx: int, bucket: int, value: float) -> None:
        limit = self._settings.max_correction_log
        self._state.correction_log[idx][bucket] = clamp(value, -limit, limit)

    def _learn_catch_up(self, extra_ms: float, unit_ms: float) -> None:
        if unit_ms > 0:
            window = self._state.catch_up_ratios
            ratio = max(extra_ms, 0.0) / (self.drift * unit_ms)
            push(window, ratio, self._settings.drift_window)
            self._catch_up_scale = self._catch_up_scale_of_window()

    def _follow_drift(self, ratio: float) -> None:
        window, num_rounds = self._state.drift_ratios, self._settings.drift_window
        window.append(ratio)
        insort(self._sorted_ratios, ratio)
        if len(window) > num_rounds:
            del self._sorted_ratios[bisect_left(self._sorted_ratios, window.pop(0))]
        self.drift = self._drift_of_window()
        # Faster than alone: what was booked on the tiers was a neighbour that has left since.
        if self._has_seeds and len(window) == num_rounds and self.drift < 1.0:
            self._forget_corrections()

    def _drift_of_window(self) -> float:
        ratios, settings = self._sorted_ratios, self._settings
        if len(ratios) < settings.min_drift_rounds:
            return 1.0
        least = settings.least_drift if self._has_seeds else settings.least_unseeded_drift
        drift = clamp(ratios[len(ratios) // 2], least, settings.most_drift)
        return 1.0 if self._is_small(drift) else drift

    def _is_small(self, ratio: float) -> bool:
        """Returns whether a ratio of times is too near to 1 for a neighbour."""
        most = self._settings.small_drift
        return 1 / most < ratio < most

    def _forget_corrections(self) -> None:
        fresh = new_state(self.tiers, self._state.buckets)
        kept = (
            "seeds",
            "seed_spreads",
            "catch_up_seeds",
            "learned",
            "catch_up_ratios",
            "residuals",
        )
        for name in kept:
            setattr(fresh, name, getattr(self._state, name))
        self._state = fresh
        self._disagreement[:] = 0.0
        self.forget_drift()
        self._refresh()

    def _bucket(self, batch_size: int) -> int:
        """Returns the index of the bucket a batch pads to; the last one if it exceeds all."""
        return min(bisect_left(self._buckets, batch_size), len(self._buckets) - 1)

    def _alone_ms(self, idx: int, batch_size: int, context_tokens: int) -> float:
        bucket = self._bucket(batch_size)
        ms = self._base.item(bucket, idx) + self._slope.item(bucket, idx) * context_tokens
        return float(ms + max(batch_size - self._buckets[-1], 0) * self._rise.item(idx))

    def _observed_log(self, idx: int, bucket: int, round_time: RoundTime) -> float:
        """Returns the log of the correction that explains a round."""
        curve = self._curves[idx]
        above = max(round_time.batch_size - self._buckets[-1], 0)
        base = curve.base.item(bucket)
        rest = curve.ms(bucket, round_time.context_tokens, above) - base
        ms = round_time.ms / self.drift - rest
        return math.log(max(ms, MIN_MS) / max(base, MIN_MS))

    def _extra_unit_ms(self, batch_size: int, context_tokens: int) -> float:
        above = max(batch_size - self._buckets[-1], 0)
        return self._extra.ms(self._bucket(batch_size), context_tokens, above)

    def _fit_curves(self) -> None:
        state, settings = self._state, self._settings
        self._has_seeds = any(state.seeds)
        if self._has_seeds:
            smoothed = smooth(self.tiers, state.seeds, state.seed_spreads, settings)
            unknown = covariance_at(smoothed, len(self.tiers), state.buckets)
            own = {
                tier: fit_curve(points, state.buckets)
                for tier, points in zip(self.tiers, smoothed.points, strict=True)
                if points
            }
        else:
            points_by_tier = zip(self.tiers, state.learned, strict=True)
            learned = {tier: list(points.values()) for tier, points in points_by_tier if points}
            own = fit_learned(learned, state.buckets, settings.step_share)
            unknown = np.zeros((len(state.buckets), len(self.tiers), len(self.tiers)))
        self._covariance = prior(unknown, self._plain_idx, settings)
        self._curves = [
            own.get(tier) or extrapolate(tier, own, settings.step_share) for tier in self.tiers
        ]
        self._slope = np.array([curve.slope for curve in self._curves]).T.copy()  # [K, T]
        self._rise = np.array([curve.rise for curve in self._curves])
        # A catch-up that was not seeded is counted in zero-step rounds.
        self._extra = self._curves[self._plain_idx or 0]
        if state.catch_up_seeds:
            self._extra = difference(fit_curve(state.catch_up_seeds, state.buckets), self._extra)
        self._catch_up_scale = self._catch_up_scale_of_window()

    def _catch_up_scale_of_window(self) -> float:
        ratios = self._state.catch_up_ratios
        if self._state.catch_up_seeds and len(ratios) < self._settings.min_catch_ups:
            return 1.0
        return median(ratios) if ratios else 0.0

    def _refresh(self) -> None:
        """Rebuilds the tables that predictions read."""
        rounds = np.array(self._state.num_corrected)
        self._shown_log = np.array(self._state.correction_log)
        error = np.maximum(self._settings.round_spread / np.maximum(rounds, 1), self._disagreement)
        self._belief = believe(rounds, self._shown_log, error, self._covariance, self._settings)
        factor = np.exp(self._belief.mean)
        self._base = corrected(self._curves, rounds, factor, self._settings)  # [K, T]

    def _selection(self, tiers: tuple[Tier, ...]) -> list[int]:
        selection = self._selections.get(tiers)
        if selection is None:
            selection = self._selections[tiers] = [self._idx[tier] for tier in tiers]
        return selection
