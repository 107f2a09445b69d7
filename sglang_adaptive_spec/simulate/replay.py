"""Replays a workload against a policy, round by round, as the scheduler would run it.

What the server does and the replay does, too:
- results arrive one round late: round i is observed after the tier of round i + 1 was chosen, its
  period one round later still, and not if a request joined right after it. A policy that takes
  several at once gets them together, or when the batch changes;
- at zero steps the draft falls behind. Every `CATCH_UP_ROUNDS` rounds one round catches it up, and
  so does one more zero-step round before a deeper tier starts. The round after it, or after
  a prefill, says for free whether the first draft would have held.
Left out, alike for every policy: prefill, sampling, rows that finished one round before.
"""

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from sglang_adaptive_spec.loop.timing import Sampling
from sglang_adaptive_spec.simulate.workload import Clock, Live, Workload
from sglang_adaptive_spec.tiers import (
    CATCH_UP_ROUNDS,
    PLAIN_TIER,
    DecodeBatch,
    Observation,
    RoundTime,
    Tier,
)

TIME_NOISE = 0.02  # relative standard deviation of a measured period


class RoundCosts(Protocol):
    """The true costs; a `CostTable` is one."""

    def round_ms(self, tier: Tier, batch_size: int, context_tokens: int) -> float:
        """Returns the period; at zero steps the mean of rounds with and without catch-up."""

    def plain_extra_ms(self, batch_size: int, context_tokens: int) -> float:
        """Returns what catching the draft up adds to a zero-step round, spread over all of them."""


class Chooser(Protocol):
    """The part of `Policy` that a replay needs."""

    @property
    def results_at_once(self) -> int:
        """How many results it takes together next."""

    def choose(self, batch: DecodeBatch) -> Tier:
        """Returns the tier for the decode batch that is about to launch."""

    def observe(self, observation: Observation) -> None:
        """Learns from a finished round."""

    def observe_time(self, round_time: RoundTime) -> None:
        """Learns what a round took."""


class RoundRecorder(Protocol):
    """Takes finished rounds, as `TraceRecorder` does."""

    def observe(self, observation: Observation, context_tokens: int, now_s: float) -> None:
        """Takes one finished round."""


@dataclass(slots=True)
class ReplayResult:
    """What a policy served."""

    num_tokens: int = 0
    time_s: float = 0.0
    num_rounds: int = 0
    num_switches: int = 0
    rounds_by_steps: dict[int, int] = field(default_factory=dict)
    ms_by_steps: dict[int, float] = field(default_factory=dict)

    @property
    def tokens_per_s(self) -> float:
        """Throughput over the whole replay."""
        return self.num_tokens / self.time_s if self.time_s else 0.0


@dataclass(frozen=True, slots=True)
class Round:
    """A round whose result the policy has not seen yet."""

    observation: Observation
    period: RoundTime | None


class Replay:
    """One policy on one workload; `run` may be called once."""

    def __init__(
        self,
        policy: Chooser,
        workload: Workload,
        costs: RoundCosts,
        *,
        seed: int = 1,
        recorder: RoundRecorder | None = None,
    ) -> None:
        self.result = ReplayResult()
        self._policy = policy
        self._workload = workload
        self._costs = costs
        self._noise = np.random.default_rng(seed)
        self._recorder = recorder
        self.live = Live()
        self._next_request = 0
        self._chosen: Tier | None = None
        self._ran: Tier | None = None
        self._rounds_behind = 0  # rounds that the draft has not seen
        # Requests that the draft is level with: caught up by the round before, or just prefilled.
        self._is_caught_up: tuple[int, ...] = ()
        self._unseen: Round | None = None
        self._unseen_period: RoundTime | None = None
        self._waiting: list[tuple[Observation, RoundTime | None]] = []
        self._sampling = Sampling()

    def run(self) -> ReplayResult:
        """Replays until the workload is over."""
        result = self.result
        while not self._workload.is_over(self.clock):
            has_joined = self._admit()
            if not self.live.size:
                break
            if has_joined and self._unseen is not None:  # prefill cut into the round before
                self._unseen = Round(self._unseen.observation, None)
            context_tokens = self._workload.context_tokens(self.clock, self.live)
            self._report(self._run_round(self._choose(context_tokens), context_tokens))
            result.num_rounds += 1
        return result

    @property
    def clock(self) -> Clock:
        """How far the replay is."""
        return Clock(self.result.time_s, self.result.num_tokens)

    def _admit(self) -> bool:
        """Lets requests in up to the concurrency; returns whether any joined."""
        has_joined = False
        while self.live.size < self._workload.concurrency(self.clock):
            request = self._workload.request(self._next_request)
            if request is None:
                break
            self.live.join(self._next_request, request)
            self._is_caught_up = (*self._is_caught_up, self._next_request)
            self._next_request += 1
            has_joined = True
        return has_joined

    def _choose(self, context_tokens: int) -> Tier:
        """Returns the tier that runs: the chosen one, or zero steps while the draft catches up."""
        live = self.live
        if self._unseen is not None and live.requests != self._unseen.observation.requests:
            self._tell()
        batch = DecodeBatch(live.size, live.requests, context_tokens, self.clock.now_s)
        chosen = self._policy.choose(batch)
        self._chosen = chosen
        return PLAIN_TIER if self._rounds_behind else chosen

    def _run_round(self, tier: Tier, context_tokens: int) -> Round:
        live, clock = self.live, self.clock
        phase = self._workload.phase(clock)
        num_correct = self._workload.num_correct_drafts(phase, live, tier.num_steps)
        first = self._first_drafts(phase) if tier == PLAIN_TIER else None
        is_catch_up = self._catches_up(tier)
        ms = self._ms(tier, context_tokens, is_catch_up)
        ms *= self._workload.slowdown(clock, tier.num_steps)
        observation = Observation(tier, live.size, live.requests, num_correct.tolist(), first)
        if self._recorder is not None:
            self._recorder.observe(observation, context_tokens, clock.now_s)
        measured_ms = ms * (1 + TIME_NOISE * float(self._noise.standard_normal()))
        stands_for, period = self._sampling.stands_for(tier, live.size), None
        if stands_for:
            period = RoundTime(
                tier, live.size, context_tokens, measured_ms, is_catch_up, stands_for
            )
        self._is_caught_up = live.requests if is_catch_up else ()
        self._count(tier, ms, live.advance(num_correct + 1))
        return Round(observation, period)

    def _catches_up(self, tier: Tier) -> bool:
        """Moves the draft's backlog on; says whether this round clears it."""
        if tier != PLAIN_TIER:
            return False
        self._rounds_behind += 1
        is_catch_up = self._chosen != PLAIN_TIER or self._rounds_behind == CATCH_UP_ROUNDS
        if is_catch_up:
            self._rounds_behind = 0
        return is_catch_up

    def _first_drafts(self, phase: int) -> list[bool | None] | None:
        """Returns which first drafts would hold, for the requests that were just caught up."""
        if not self._is_caught_up:
            return None
        caught_up = set(self._is_caught_up)
        correct = self._workload.num_correct_drafts(phase, self.live, 1).tolist()
        return [
            bool(one) if request in caught_up else None
            for request, one in zip(self.live.requests, correct, strict=True)
        ]

    def _ms(self, tier: Tier, context_tokens: int, is_catch_up: bool) -> float:
        batch_size = self.live.size
        ms = self._costs.round_ms(tier, batch_size, context_tokens)
        if tier == PLAIN_TIER:  # the table's mean, taken apart again
            extra_ms = self._costs.plain_extra_ms(batch_size, context_tokens)
            ms += extra_ms * (CATCH_UP_ROUNDS * is_catch_up - 1)
        return ms

    def _count(self, tier: Tier, ms: float, num_tokens: int) -> None:
        result, steps = self.result, tier.num_steps
        result.num_switches += self._ran is not None and tier != self._ran
        self._ran = tier
        result.num_tokens += num_tokens
        result.time_s += ms / 1e3
        result.rounds_by_steps[steps] = result.rounds_by_steps.get(steps, 0) + 1
        result.ms_by_steps[steps] = result.ms_by_steps.get(steps, 0.0) + ms

    def _report(self, newest: Round) -> None:
        """Has the round before ``newest`` told to the policy, and the period before that."""
        if self._unseen is not None:
            self._waiting.append((self._unseen.observation, self._unseen_period))
        if len(self._waiting) >= self._policy.results_at_once:
            self._tell()
        self._unseen_period = None if self._unseen is None else self._unseen.period
        self._unseen = newest

    def _tell(self) -> None:
        for observation, period in self._waiting:
            self._policy.observe(observation)
            if period is not None:
                self._policy.observe_time(period)
        self._waiting = []
