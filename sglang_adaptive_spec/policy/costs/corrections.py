"""What serving taught of each tier: how its rounds differ from its seed, without drift.

A correction is the log of served over seeded time of a tier at a bucket: a low median of its first
rounds, then it follows. Until it is settled it says nothing about other buckets, but for the host's
floor (`floor_log`) and for what buckets next to each other lend (`_lend`). A tier's first timed
rounds after another one ran are a visit: they tell drift from what is the tier's own. One that
disagrees with what the tier took when seen last is learned anew. What all corrections say together
is a `Belief`, which the tables for predictions are made from: it is about what lies beyond the
larger of seed and floor.
"""

import math
from collections.abc import Sequence
from statistics import median

import numpy as np
import numpy.typing as npt

from sglang_adaptive_spec.policy.costs.belief import Belief, believe
from sglang_adaptive_spec.policy.costs.curves import Floats, corrected
from sglang_adaptive_spec.policy.costs.drift import Drift
from sglang_adaptive_spec.policy.costs.floor import floor_log, is_host_bound
from sglang_adaptive_spec.policy.costs.seeds import Seeds
from sglang_adaptive_spec.policy.costs.state import (
    CostState,
    clamp,
    location,
    new_state,
    push,
    spread,
    standard_error,
)
from sglang_adaptive_spec.policy.settings import CostSettings
from sglang_adaptive_spec.tiers import RoundTime

Places = npt.NDArray[np.int64]  # indexes of buckets

# Rounds after another tier ran that are not timed: CPU and GPU find their pace again. On an H200
# (FA3, 8B shapes, 128 requests) probes of 3 steps took 1.09, 1.05 and 1.13, 1.03 times a static
# server's round.
SETTLING_ROUNDS = 2
VISIT_ROUNDS = 3  # of a tier then: their median leaves a stall out
# A settled correction rebuilds the tables when it has moved by so much, or weighs twice as much
# where order must be restored.
REFRESH_MOVE = 0.01


class Corrections:
    """Owns what serving taught in the state, but for drift."""

    def __init__(
        self, state: CostState, seeds: Seeds, drift: Drift, settings: CostSettings
    ) -> None:
        self._state, self._drift, self._settings = state, drift, settings
        self.seeds = seeds
        # Rounds of a tier at a bucket: a rebuild is too long for every one.
        self._learned_at = frozenset((1, 2, 3, settings.firm_rounds, 8, 16, settings.settle_rounds))
        self._refresh_at = frozenset((64, 128, settings.max_evidence))
        self._disagreement = np.zeros((len(state.tiers), len(state.buckets)))  # of unsettled rounds
        for idx, windows in enumerate(state.unsettled_pairs):
            for bucket, window in windows.items():
                self._disagreement[idx, bucket] = standard_error(window)
        self.catch_up_scale = self._catch_up_scale()
        self.belief: Belief
        self.known_rounds: npt.NDArray[np.int64]  # [T, K] behind it, a lender's included
        self.base: Floats  # [num_buckets, num_tiers] ms without context and drift
        self.refresh()

    def visit(self, idx: int, round_time: RoundTime) -> None:
        """Finds out from a tier's first rounds after another one what has changed meanwhile."""
        state, settings = self._state, self._settings
        bucket = self.seeds.bucket(round_time.batch_size)
        if state.visited != (idx, bucket):
            state.visited, state.visit = (idx, bucket), []
        if len(state.visit) >= VISIT_ROUNDS:
            return
        state.visit.append(self.seeds.correction_log(idx, bucket, round_time, self._drift.factor))
        moved = _moved_since(state.visit, self.belief.mean.item(idx, bucket), self._visit_change)
        if len(state.visit) > 1 or moved:
            moved += self._weigh_drift(idx, bucket, moved)
        num_rounds = state.num_corrected[idx][bucket]
        if num_rounds >= settings.settle_rounds and moved > math.log(self._drift.small):
            return  # as if it were drift, until another tier shows that it is not
        beyond = moved - self._drift.recent_log()
        if moved and abs(beyond) > self._visit_change and num_rounds:
            # The visit's rounds replace all that was known; the newest is yet to be learned.
            state.unsettled_pairs[idx][bucket] = state.visit[:-1]
            state.num_corrected[idx][bucket] = len(state.visit) - 1

    def learn(self, idx: int, round_time: RoundTime, ratio: float) -> bool:
        """Takes a round and its served over predicted time; returns whether its tier is settled."""
        bucket = self.seeds.bucket(round_time.batch_size)
        log = self.seeds.correction_log(idx, bucket, round_time, self._drift.factor)
        if self._state.num_corrected[idx][bucket] < self._settings.settle_rounds:
            self._learn_first(idx, bucket, log)
            return False
        is_own = self._drift.is_small(ratio)
        self._follow(idx, bucket, log, is_own)
        if self._drift.factor != 1.0 and is_own and len(self._state.visit) >= VISIT_ROUNDS:
            self._drift.show(idx, bucket, self._drift.log)
        return True

    def learn_residual(self, idx: int, residual: float) -> None:
        """Takes by what share a round was longer than predicted."""
        push(self._state.residuals[idx], residual, self._settings.residual_window)

    def learn_catch_up(self, extra_ms: float, seeded_ms: float) -> None:
        """Takes the extra time of a catch-up, and what start-up measured of it."""
        if seeded_ms > 0:
            ratio = max(extra_ms, 0.0) / (self._drift.factor * seeded_ms)
            push(self._state.catch_up_ratios, ratio, self._settings.drift_window)
            self.catch_up_scale = self._catch_up_scale()

    def relative_noise(self, idx: int) -> float:
        """Returns the standard error of a tier's expected period, as a share of it.

        It is the robust spread of the tier's recent residuals over the root of their number; a
        tier hardly observed takes the spread of all tiers, undivided.
        """
        own, settings = self._state.residuals[idx], self._settings
        if len(own) >= settings.min_noise_rounds:
            return standard_error(own)
        pooled = [residual for window in self._state.residuals for residual in window]
        is_enough = len(pooled) >= settings.min_noise_rounds
        return spread(pooled) if is_enough else settings.unseen_noise

    def forget(self) -> None:
        """Takes the corrections back to none."""
        state = self._state
        fresh = new_state(self.seeds.tiers, state.buckets)
        for name in ("correction_log", "num_corrected", "unsettled_pairs", "visit", "visited"):
            setattr(state, name, getattr(fresh, name))
        self._disagreement[:] = 0.0
        self.refresh()

    def refresh(self) -> None:
        """Rebuilds the tables that predictions read."""
        rounds = np.array(self._state.num_corrected)
        self._shown_log = np.array(self._state.correction_log)
        self._fit_pace(rounds)
        error = np.maximum(self._settings.round_spread / np.maximum(rounds, 1), self._disagreement)
        floor = floor_log(
            self.seeds.base,
            rounds,
            self._shown_log,
            self.seeds.plain_idx,
            self.seeds.buckets,
            self._settings,
        )
        beyond = np.where(rounds > 0, self._shown_log - floor, 0.0)
        belief = believe(rounds, beyond, error, self.seeds.covariance, self._settings)
        self.belief = belief._replace(mean=belief.mean + floor)
        self._lend(rounds, error)
        self.base = corrected(
            self.seeds.curves, self.known_rounds, np.exp(self.belief.mean), self._settings
        )

    def _lend(self, rounds: npt.NDArray[np.int64], error: Floats) -> None:
        """Believes of sizes served little what is believed of one next to it, until they show.

        Args:
            rounds: Behind every correction, [T, K].
            error: Standard errors of the corrections, [T, K].
        """
        at, of = self._lenders(rounds.sum(axis=0))
        self.known_rounds = rounds
        if not len(at):
            return
        mean, spread = self.belief.mean[:, of], self.belief.spread[:, of]
        own = rounds[:, at]
        is_seen = own.any(axis=0)
        if is_seen.any():  # their own rounds are measurements of how they differ
            seen, lent = at[is_seen], mean[:, is_seen]
            beyond = np.where(own[:, is_seen] > 0, self._shown_log[:, seen] - lent, 0.0)
            prior = self.seeds.covariance[seen]
            belief = believe(rounds[:, seen], beyond, error[:, seen], prior, self._settings)
            mean[:, is_seen], spread[:, is_seen] = belief.mean + lent, belief.spread
        self.belief.mean[:, at], self.belief.spread[:, at] = mean, spread
        self.known_rounds = rounds.copy()
        self.known_rounds[:, at] = np.maximum(own, rounds[:, of])

    def _lenders(self, num_rounds: Floats) -> tuple[Places, Places]:
        """Returns buckets, and of each the nearest that was served more and may speak for others.

        A closed loop of 8 clients runs 7 requests for a round or two before each prefill. Such
        rounds are hardly ever timed, so nothing would be known of them but their seeds.
        """
        settings = self._settings
        may_lend = (num_rounds >= settings.settle_rounds) & (num_rounds > num_rounds[:, None])
        distance = np.where(may_lend, self.seeds.distance, np.inf)
        nearest = distance.argmin(axis=1)
        at = np.flatnonzero(distance.min(axis=1) <= math.log(settings.lending_reach))
        return at, nearest[at]

    def _fit_pace(self, rounds: npt.NDArray[np.int64]) -> None:
        settings = self._settings
        is_host = is_host_bound(rounds, self._shown_log, self.seeds.plain_idx, settings)
        self._visit_change = settings.host_visit_change if is_host else settings.visit_change
        self._drift.small = settings.host_small_drift if is_host else settings.small_drift

    def _weigh_drift(self, idx: int, bucket: int, moved: float) -> float:
        """Tells drift from changes of the tiers that showed it, by one that had not yet.

        Returns what to add to logs relative to drift: it is 1 again if it was none.
        """
        state, drift_log = self._state, self._drift.log
        if self._drift.shown(idx, bucket) >= drift_log / 2 or drift_log <= 0:
            return 0.0
        if abs(moved) < abs(moved + drift_log):
            plain_idx = self.seeds.plain_idx
            drafting = [other for other in range(len(state.tiers)) if other != plain_idx]
            self._drift.confirm(idx, bucket, drafting if idx in drafting else ())
            return 0.0
        for one, at in self._drift.showed_most():
            self._set(one, at, state.correction_log[one][at] + drift_log)
            window = state.unsettled_pairs[one].get(at, [])
            window[:] = [log + drift_log for log in window]
        state.visit = [log + drift_log for log in state.visit]
        self._drift.forget()
        self.refresh()
        return drift_log

    def _learn_first(self, idx: int, bucket: int, log: float) -> None:
        """Takes a round of a tier new to a bucket."""
        window = self._state.unsettled_pairs[idx].setdefault(bucket, [])
        window.append(log)
        if len(window) in self._learned_at:
            self._set(idx, bucket, location(window, self._settings.num_smaller))
            self._disagreement[idx, bucket] = standard_error(window)
        self._count(idx, bucket, len(window))

    def _count(self, idx: int, bucket: int, num_rounds: int) -> None:
        self._state.num_corrected[idx][bucket] = num_rounds
        if num_rounds == self._settings.settle_rounds:
            del self._state.unsettled_pairs[idx][bucket]
            self._disagreement[idx, bucket] = 0.0
        if num_rounds in self._learned_at:
            self.refresh()

    def _follow(self, idx: int, bucket: int, log: float, is_own: bool) -> None:
        state = self._state
        if is_own:  # else it is a stall or a neighbour: nothing of the tier's
            before = state.correction_log[idx][bucket]
            self._set(idx, bucket, before + self._settings.slow_rate * (log - before))
        moved = abs(state.correction_log[idx][bucket] - self._shown_log.item(idx, bucket))
        has_grown = state.num_corrected[idx][bucket] < self._settings.max_evidence
        if has_grown:
            state.num_corrected[idx][bucket] += 1
        num_rounds = state.num_corrected[idx][bucket]
        if moved > REFRESH_MOVE or (has_grown and num_rounds in self._refresh_at):
            self.refresh()

    def _catch_up_scale(self) -> float:
        ratios = self._state.catch_up_ratios
        if self._state.catch_up_seeds and len(ratios) < self._settings.min_catch_ups:
            return 1.0
        return median(ratios) if ratios else 0.0

    def _set(self, idx: int, bucket: int, log: float) -> None:
        limit = self._settings.max_correction_log
        self._state.correction_log[idx][bucket] = clamp(log, -limit, limit)


def _moved_since(visit: Sequence[float], known: float, change: float) -> float:
    """Returns by how much a visit's logs differ from what was known, 0 if they cannot tell yet.

    Nothing but its tier makes a round faster; the slower one of two may be a stall.
    """
    moves = [log - known for log in visit]
    if len(moves) == 1 and moves[0] > -change:
        return 0.0
    return median(moves) if len(moves) > 2 else min(moves, key=abs)
