"""The loop: choose -> activate -> observe. Start reading here.

Once per decode round the worker calls `before_decode`: the policy chooses a tier, the pool swaps
it in by reference, and the launch is remembered. One round later (the overlap schedule processes
results late) the worker calls `observe` with the accepted drafts; the oldest launch says which
tier, batch and requests they belong to. Results are worked through a few at a time, and before a
batch changes: by the time a round comes round again the CPU's caches have forgotten the code.
Extend and mixed batches run on the start-up tier.

Zero-step rounds let the draft fall behind (host/serving/backlog.py); the last of them catches it
up, so leaving zero steps takes one round more. Where a batch is too large to draft at all, no round
does.

Nothing here touches a GPU, allocates device memory or logs per round.
"""

import logging
from collections import deque
from collections.abc import Hashable, Sequence
from typing import NamedTuple, Protocol

from sglang_adaptive_spec.loop.counters import RoundCounters
from sglang_adaptive_spec.loop.sharing import SharedTimes
from sglang_adaptive_spec.policy.protocol import Choices, results_at_once
from sglang_adaptive_spec.tiers import PLAIN_TIER, DecodeBatch, Observation, RoundTime, Tier

logger = logging.getLogger(__name__)

# Rounds whose results were not worked through: the overlap schedule has two in flight, and a few
# results wait. More are not waited for.
MAX_LAUNCHES = 16


class TierPool(Protocol):
    """Holds the runtime state of every tier and knows the one in force."""

    current: Tier

    def activate(self, tier: Tier) -> None:
        """Swaps ``tier`` in, all or nothing."""


class DraftSchedule(Protocol):
    """Knows how far the draft is behind (catch_up.py:CatchUpSchedule)."""

    def is_behind(self, requests: Sequence[Hashable]) -> bool:
        """Returns whether the draft lacks a token of any of ``requests``."""

    def add_round(self, requests: Sequence[Hashable], is_last: bool) -> bool:
        """Books a zero-step round; returns whether it must end with a catch-up."""


class RoundClock(Protocol):
    """Times decode rounds without waiting for the device (loop/timing.py:RoundTimer)."""

    def start(
        self,
        tier: Tier,
        batch_size: int,
        context_tokens: int,
        is_catch_up: bool,
        num_in_flight: int,
    ) -> None:
        """Marks the head of a decode round; others are in flight if their results are not there."""

    def interrupt(self) -> None:
        """Tells that the round in flight is not followed by another at once."""

    def poll(self) -> RoundTime | None:
        """Takes note of the oldest round's end; returns a period, if a new one is known."""


class FirstDrafts(Protocol):
    """Whether the drafts that a zero-step round did not propose would have held."""

    def read(self) -> Sequence[bool | None]:
        """Returns the answer per row, None where it is not known; on the CPU by now."""


class Launch(NamedTuple):
    """A decode round in flight."""

    tier: Tier
    batch_size: int
    requests: Sequence[Hashable]
    is_catch_up: bool = False
    first_drafts: FirstDrafts | None = None


class AdaptiveController:
    """Chooses a tier per decode round and gives every result to the round that produced it."""

    def __init__(
        self,
        policy: Choices,
        pool: TierPool,
        startup_tier: Tier,
        clock: RoundClock | None = None,
        draft_schedule: DraftSchedule | None = None,
    ) -> None:
        self.policy = policy
        self.pool = pool
        self.startup_tier = startup_tier
        self.clock = clock
        self.draft_schedule = draft_schedule  # None: every zero-step round extends the draft
        self.shared_times: SharedTimes | None = None  # of a rank among several
        self.counters = RoundCounters()
        self.decode_tier = startup_tier  # the tier of the newest decode round
        self._batch_size = 0  # of the newest decode round
        self._requests: Sequence[Hashable] = ()  # of the newest decode round
        self._launches: deque[Launch] = deque()  # whose results were not worked through
        # Accepted drafts per request and batch size of the oldest of them, in launch order.
        self._results: list[tuple[Sequence[int], int]] = []
        self._results_at_once = results_at_once(policy)
        self._policy_error_logged = False

    def before_extend(self) -> None:
        """Puts the start-up tier in force for an extend or mixed batch."""
        self.learn()
        if self.clock is not None:
            self.clock.interrupt()
        if self.pool.current != self.startup_tier:
            self.pool.activate(self.startup_tier)
            self.counters.num_prefill_activations += 1

    def before_decode(self, batch: DecodeBatch) -> Launch:
        """Chooses and activates the tier of the decode round that is about to launch."""
        if self.shared_times is not None:  # before all that a policy has a part in
            self._learn_shared(self.shared_times)
        has_changed = batch.requests != self._requests
        if has_changed:
            self._requests = tuple(batch.requests)
            self.learn()
        chosen = self._choose(batch)
        if has_changed:
            self._results_at_once = results_at_once(self.policy)
        tier, is_catch_up = self._with_draft_caught_up(chosen, batch.requests)
        if tier != self.decode_tier:
            self._count_switch(tier, batch.size)
        self._batch_size = batch.size
        if tier != self.pool.current:
            self.pool.activate(tier)
        if self.clock is not None:
            num_in_flight = len(self._launches) - len(self._results)
            self.clock.start(tier, batch.size, batch.context_tokens, is_catch_up, num_in_flight)
        launch = Launch(tier, batch.size, self._requests, is_catch_up)
        self._launches.append(launch)
        if len(self._launches) > MAX_LAUNCHES:
            self._give_up_lost()
        return launch

    def may_draft(self, batch_size: int) -> bool:
        """Returns whether a batch may run another tier than zero steps."""
        return self.policy.ladder.of(batch_size) != (PLAIN_TIER,)

    def attach(self, first_drafts: FirstDrafts) -> None:
        """Keeps what the newest round learned about first drafts beside its launch."""
        self._launches[-1] = self._launches[-1]._replace(first_drafts=first_drafts)

    def observe(self, num_correct_drafts: Sequence[int], batch_size: int) -> None:
        """Takes the result of the oldest round in flight: accepted drafts per request."""
        self._results.append((num_correct_drafts, batch_size))
        if len(self._results) >= self._results_at_once:
            self.learn()

    def learn(self) -> None:
        """Works through the results taken so far; whoever reads counters or policy calls it."""
        results, self._results = self._results, []
        for num_correct_drafts, batch_size in results:
            self._learn(num_correct_drafts, batch_size)
        self._results_at_once = results_at_once(self.policy)

    def _learn(self, num_correct_drafts: Sequence[int], batch_size: int) -> None:
        sizes = [launch.batch_size for launch in self._launches]
        if batch_size not in sizes:  # nobody launched such a round
            self.counters.num_feedback_mismatches += 1
            return
        if older := sizes.index(batch_size):  # their results were lost
            self._give_up(older)
        launch = self._launches.popleft()
        round_time = self.clock.poll() if self.clock is not None else None  # once per launch
        if round_time is not None and self.shared_times is not None:
            self.shared_times.add(round_time)
        try:
            self.counters.count_round(launch.tier, num_correct_drafts)
            firsts = launch.first_drafts.read() if launch.first_drafts is not None else None
            self.policy.observe(
                Observation(launch.tier, batch_size, launch.requests, num_correct_drafts, firsts)
            )
            if round_time is not None:
                self.policy.observe_time(round_time)
        except Exception:  # noqa: BLE001 - any policy must leave serving alive
            self._count_policy_error("observe")

    def _give_up_lost(self) -> None:
        """Waits for the newest launch alone, if so many are in flight that results were lost."""
        self.learn()
        if len(self._launches) > MAX_LAUNCHES:
            self._give_up(MAX_LAUNCHES)

    def _give_up(self, num_launches: int) -> None:
        """Waits no longer for the results of the oldest launches."""
        for _ in range(num_launches):
            self._launches.popleft()
            if self.clock is not None:
                self.clock.poll()
        self.counters.num_feedback_mismatches += num_launches

    def _learn_shared(self, times: SharedTimes) -> None:
        for round_time in times.tick():  # a message among the ranks: its failure ends the server
            try:
                times.learn(round_time)
            except Exception:  # noqa: BLE001 - any policy must leave serving alive
                self._count_policy_error("learn_time")

    def _with_draft_caught_up(self, tier: Tier, requests: Sequence[Hashable]) -> tuple[Tier, bool]:
        """Returns the tier to run and whether the round ends with a catch-up of the draft."""
        schedule = self.draft_schedule
        if schedule is None:
            return tier, False
        if tier == PLAIN_TIER:
            is_due = schedule.add_round(requests, is_last=False)
            return tier, is_due and self.may_draft(len(requests))
        if schedule.is_behind(requests):
            return PLAIN_TIER, schedule.add_round(requests, is_last=True)
        return tier, False

    def _choose(self, batch: DecodeBatch) -> Tier:
        try:
            return self.policy.choose(batch)
        except Exception:  # noqa: BLE001 - any policy must leave serving alive
            self._count_policy_error("choose")
            return self.decode_tier

    def _count_switch(self, tier: Tier, batch_size: int) -> None:
        if self._batch_size:  # else it is the first choice, which switches from nothing
            bound = self.policy.ladder.bound
            reason = "policy" if bound(self._batch_size) == bound(batch_size) else "batch_size"
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
