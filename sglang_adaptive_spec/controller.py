"""The loop: choose -> activate -> observe. Start reading here.

Once per decode round the worker calls `before_decode`: the policy chooses a tier, the pool swaps
it in by reference, and the launch is remembered. One round later (the overlap schedule processes
results late) the worker calls `observe` with the accepted drafts; the oldest launch says which
tier, batch and requests they belong to. Extend and mixed batches run on the start-up tier.

Nothing here touches a GPU, allocates device memory or logs per round.
"""

import logging
from collections import deque
from collections.abc import Hashable, Sequence
from typing import NamedTuple, Protocol

from sglang_adaptive_spec.counters import RoundCounters
from sglang_adaptive_spec.policy.tiers import Observation, Policy, Tier

logger = logging.getLogger(__name__)


class TierPool(Protocol):
    """Holds the runtime state of every tier and knows the one in force."""

    current: Tier

    def activate(self, tier: Tier) -> None:
        """Swaps ``tier`` in, all or nothing."""


class Launch(NamedTuple):
    """A decode round in flight."""

    tier: Tier
    batch_size: int
    requests: Sequence[Hashable]


class AdaptiveController:
    """Chooses a tier per decode round and gives every result to the round that produced it."""

    def __init__(self, policy: Policy, pool: TierPool, startup_tier: Tier) -> None:
        self.policy = policy
        self.pool = pool
        self.startup_tier = startup_tier
        self.counters = RoundCounters()
        self.decode_tier = startup_tier  # the tier of the newest decode round
        self._batch_size = 0  # of the newest decode round
        self._in_flight: deque[Launch] = deque()
        self._policy_error_logged = False

    def before_extend(self) -> None:
        """Puts the start-up tier in force for an extend or mixed batch."""
        if self.pool.current != self.startup_tier:
            self.pool.activate(self.startup_tier)
            self.counters.num_prefill_activations += 1

    def before_decode(self, batch_size: int, requests: Sequence[Hashable]) -> None:
        """Chooses and activates the tier of the decode round that is about to launch."""
        tier = self._choose(batch_size)
        if tier != self.pool.current:
            self.pool.activate(tier)
        self._in_flight.append(Launch(tier, batch_size, tuple(requests)))

    def observe(self, num_correct_drafts: Sequence[int], batch_size: int) -> None:
        """Takes the result of the oldest round in flight: accepted drafts per request."""
        if not self._in_flight or self._in_flight[0].batch_size != batch_size:
            # A result without its launch cannot be attributed, nor can those queued behind it.
            self._in_flight.clear()
            self.counters.num_feedback_mismatches += 1
            return
        launch = self._in_flight.popleft()
        self.counters.count_round(launch.tier, num_correct_drafts)
        observation = Observation(launch.tier, batch_size, launch.requests, num_correct_drafts)
        try:
            self.policy.observe(observation)
        except Exception:  # noqa: BLE001 - any policy must leave serving alive
            self._count_policy_error("observe")

    def _choose(self, batch_size: int) -> Tier:
        try:
            tier = self.policy.choose(batch_size)
            if tier != self.decode_tier:
                self._switch_to(tier, batch_size)
        except Exception:  # noqa: BLE001 - any policy must leave serving alive
            self._count_policy_error("choose")
            return self.decode_tier
        self._batch_size = batch_size
        return tier

    def _switch_to(self, tier: Tier, batch_size: int) -> None:
        if self._batch_size:  # else it is the first choice, which switches from nothing
            is_same_slot = self.policy.slot(self._batch_size) == self.policy.slot(batch_size)
            reason = "policy" if is_same_slot else "batch_size"
            self.counters.num_switches[reason] += 1
            logger.debug("tier %s -> %s (%s)", self.decode_tier, tier, reason)
        self.decode_tier = tier

    def _count_policy_error(self, call: str) -> None:
        self.counters.num_policy_errors += 1
        if not self._policy_error_logged:
            self._policy_error_logged = True
            logger.exception(
                "ADAPTIVE_EAGLE policy failed in %s(); the last tier stays in force. "
                "Further failures are counted in /server_info (fallbacks.policy_error).",
                call,
            )
