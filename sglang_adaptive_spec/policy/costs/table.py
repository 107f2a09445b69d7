"""How long a round of a tier takes: seeded at start-up, corrected while serving.

For tier t and a batch that pads to bucket k:

    round_ms = drift * (correction[t, k] * base[t, k] + slope[t, k] * context_tokens)

and at zero steps a share of the catch-ups, which have a scale of their own. base and slope come
from start-up (`Seeds`), correction and drift from served rounds. A correction
holds whatever the seed did not, such as host work that the GPU does not hide (`Corrections`). drift
is one factor for all tiers, as far as a neighbour explains it (`Drift`). What some tiers were seen
to do at a bucket says something about the rest (`Belief`), and what the CPU takes about all that
draft (`floor_log`). ms; no clock.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from sglang_adaptive_spec.policy.costs.corrections import Corrections
from sglang_adaptive_spec.policy.costs.curves import MIN_MS, Floats
from sglang_adaptive_spec.policy.costs.drift import Drift
from sglang_adaptive_spec.policy.costs.seeds import Seeds, out_of_order
from sglang_adaptive_spec.policy.costs.state import (
    CostState,
    new_state,
    state_from_dict,
    state_to_dict,
)
from sglang_adaptive_spec.policy.settings import DEFAULTS, CostSettings
from sglang_adaptive_spec.tiers import CATCH_UP_ROUNDS, PLAIN_TIER, RoundTime, Tier

# The host's own capture list with speculation (sglang 0.5.23 arg_groups/cuda_graph_hook.py).
DEFAULT_BUCKETS = (*range(1, 9), *range(10, 33, 2), *range(40, 65, 4), *range(72, 257, 8))


class CostTable:
    """Round times of every tier; the module has the model."""

    def __init__(self, state: CostState, settings: CostSettings = DEFAULTS.costs) -> None:
        self._state, self._settings = state, settings
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
        seeds = Seeds(state, self._settings)
        self._drift = Drift(state, self._settings)
        self._corrections = Corrections(state, seeds, self._drift, self._settings)

    @property
    def drift(self) -> float:
        """The factor of all rounds."""
        return self._drift.factor

    @property
    def is_seeded(self) -> bool:
        """Whether every tier was measured at start-up."""
        return all(self._state.seeds)

    def measured_at(self, tier: Tier) -> set[int]:
        """Returns the batch sizes that ``tier`` was measured at, at start-up."""
        return {point[0] for point in self._state.seeds[self._idx[tier]]}

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
        bucket = self._corrections.seeds.bucket(batch_size)
        return math.exp(self._corrections.belief.mean.item(self._idx[tier], bucket))

    def plain_extra_ms(self, batch_size: int, context_tokens: int) -> float:
        """Returns a catch-up's extra time, spread over the zero-step rounds between two."""
        scale = self._corrections.catch_up_scale
        if self._plain_idx is None or scale == 0.0:
            return 0.0
        seeded_ms = self._corrections.seeds.extra_ms(batch_size, context_tokens)
        return self.drift * scale * seeded_ms / self.catch_up_rounds

    def round_ms(self, tier: Tier, batch_size: int, context_tokens: int) -> float:
        """Returns the expected period of a round."""
        idx = self._idx[tier]
        ms = self.drift * self._alone_ms(idx, batch_size, context_tokens)
        if idx == self._plain_idx:
            ms += self.plain_extra_ms(batch_size, context_tokens)
        return ms

    def seeded_ms(self, tier: Tier, batch_size: int, context_tokens: int) -> float:
        """Returns what a round took at start-up: nothing that is learned moves it."""
        seeds = self._corrections.seeds
        bucket, num_above = seeds.bucket(batch_size), seeds.num_above(batch_size)
        return max(seeds.curves[self._idx[tier]].ms(bucket, context_tokens, num_above), MIN_MS)

    def round_ms_all(self, tiers: tuple[Tier, ...], batch_size: int, context_tokens: int) -> Floats:
        """Returns `round_ms` of every one of ``tiers``."""
        seeds = self._corrections.seeds
        bucket = seeds.bucket(batch_size)
        ms: Floats = seeds.slope[bucket] * context_tokens  # [T], a new array
        ms += self._corrections.base[bucket]
        if batch_size > seeds.buckets[-1]:
            ms += seeds.rise * (batch_size - seeds.buckets[-1])
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
        settings, belief = self._settings, self._corrections.belief
        bucket = self._corrections.seeds.bucket(batch_size)
        less = settings.least_z * belief.spread[:, bucket]
        rounds = self._corrections.known_rounds[:, bucket]
        is_in_doubt = (rounds > 0) & (rounds < settings.settle_rounds)
        less = np.where(is_in_doubt, np.maximum(less, belief.mean[:, bucket]), less)
        if self.drift > 1.0:
            drift = self._drift
            less += [drift.log - drift.shown(idx, bucket) for idx in range(len(less))]
        if is_curious:
            less = np.maximum(less, np.where(rounds == 0, math.log(settings.wrong_seed), 0.0))
        share: Floats = np.exp(-np.maximum(less, 0.0))
        return share if tiers == self.tiers else share[self._selection(tiers)]

    def relative_noise(self, tier: Tier) -> float:
        """Returns the standard error of the expected period, as a share of it."""
        return self._corrections.relative_noise(self._idx[tier])

    def observe(self, round_time: RoundTime) -> None:
        """Learns from one uninterrupted served round, whatever number of rounds it stands for.

        A tier that it does not hold is left alone.
        """
        plan, batch_size, context_tokens, ms = round_time[:4]
        idx = self._idx.get(plan.tier)
        if idx is None or not (math.isfinite(ms) and ms > 0):
            return
        corrections, drift = self._corrections, self._drift
        if plan.is_catch_up:
            expected_ms = drift.factor * max(
                self._alone_ms(idx, batch_size, context_tokens), MIN_MS
            )
            seeded_ms = corrections.seeds.extra_ms(batch_size, context_tokens)
            corrections.learn_catch_up(ms - expected_ms, seeded_ms)
            return
        corrections.visit(idx, round_time)
        alone_ms = max(self._alone_ms(idx, batch_size, context_tokens), MIN_MS)
        ratio = ms / (drift.factor * alone_ms)
        corrections.learn_residual(idx, ratio - 1)
        drift.learn(ms / alone_ms, corrections.learn(idx, round_time, ratio))
        if drift.is_below_alone:
            # What was booked on the tiers was a neighbour that has left since.
            drift.start_anew()
            corrections.forget()

    def forget_drift(self) -> None:
        """Takes drift back to 1: another process starts beside other neighbours."""
        self._drift.forget()

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

    def _alone_ms(self, idx: int, batch_size: int, context_tokens: int) -> float:
        corrections, seeds = self._corrections, self._corrections.seeds
        bucket = seeds.bucket(batch_size)
        ms = corrections.base.item(bucket, idx) + seeds.slope.item(bucket, idx) * context_tokens
        return float(ms + seeds.num_above(batch_size) * seeds.rise.item(idx))

    def _selection(self, tiers: tuple[Tier, ...]) -> list[int]:
        selection = self._selections.get(tiers)
        if selection is None:
            selection = self._selections[tiers] = [self._idx[tier] for tier in tiers]
        return selection
