"""Replays a workload against a policy, round by round, as the scheduler would run it.

The loop is the server's: the real `AdaptiveController` chooses, catches the draft up and hands out
results, around a pool that swaps nothing, a clock of simulated time, and the real round timer.
Results arrive one round late, as under the overlap schedule, and a prefill comes before the round
that a request joins. Where the draft was level, a zero-step round says for free whether its first
draft would have held. Left out, alike for every policy: prefill, sampling, rows that finished one
round before.

Stalls are told to the clock and kept apart from `time_s`, by which traffic changes and throughput
is counted: with them and without a replay meets the same traffic, and its throughput tells what
they did to the choices.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sglang_adaptive_spec.loop.catch_up import CatchUpSchedule
from sglang_adaptive_spec.loop.controller import AdaptiveController
from sglang_adaptive_spec.loop.round import Round
from sglang_adaptive_spec.loop.timing import RING_SIZE, RoundTimer
from sglang_adaptive_spec.policy.acceptance.confidence import ASKED_EVERY, hazards_by
from sglang_adaptive_spec.policy.packing import lengths
from sglang_adaptive_spec.policy.protocol import Choices
from sglang_adaptive_spec.simulate.stalls import Stalls, Tail
from sglang_adaptive_spec.simulate.workload import Clock, Live, Workload
from sglang_adaptive_spec.tiers import (
    CATCH_UP_ROUNDS,
    PLAIN_TIER,
    DecodeBatch,
    Observation,
    Tier,
)

TIME_NOISE = 0.02  # relative standard deviation of a measured period
NO_TAIL = Tail(0.0, first_factor=1.0)


class RoundCosts(Protocol):
    """The true costs; a `CostTable` is one."""

    def round_ms(self, tier: Tier, batch_size: int, context_tokens: int) -> float:
        """Returns the period; at zero steps the mean of rounds with and without catch-up."""

    def plain_extra_ms(self, batch_size: int, context_tokens: int) -> float:
        """Returns what catching the draft up adds to a zero-step round, spread over all of them."""


# The true period of a packed round, of tier, batch size, context and verified tokens.
PackedMs: TypeAlias = Callable[[Tier, int, int, int], float]


class RoundRecorder(Protocol):
    """Takes finished rounds, as `TraceRecorder` does."""

    def record(self, observation: Observation, context_tokens: int, now_s: float) -> None:
        """Takes one finished round."""


@dataclass(slots=True)
class ReplayResult:
    """What a policy served."""

    num_tokens: int = 0
    time_s: float = 0.0
    stalled_s: float = 0.0  # beyond that
    probing_s: float = 0.0  # rounds for which a look at a tier was asked
    num_rounds: int = 0
    num_switches: int = 0
    rounds_by_steps: dict[int, int] = field(default_factory=dict)
    ms_by_steps: dict[int, float] = field(default_factory=dict)

    @property
    def tokens_per_s(self) -> float:
        """Throughput over the whole replay."""
        return self.num_tokens / self.time_s if self.time_s else 0.0

    @property
    def probing_share(self) -> float:
        """Share of the time that probes took."""
        return self.probing_s / self.time_s if self.time_s else 0.0


class SimulatedPool:
    """Has nothing to swap."""

    def __init__(self, tier: Tier) -> None:
        self.current = tier

    def activate(self, tier: Tier) -> None:
        """Notes the tier in force."""
        self.current = tier


class SimulatedClock:
    """Marks are readings of a replay's time; what lies between two is measured with noise."""

    def __init__(self, result: ReplayResult, seed: int, stalls: Stalls) -> None:
        self._result = result
        self._stalls = stalls
        self._noise = np.random.default_rng(seed)
        self._marks_s = [0.0] * RING_SIZE

    def mark(self, idx: int) -> None:
        """Reads the time."""
        self._marks_s[idx] = self._result.time_s + self._result.stalled_s

    def elapsed_ms(self, begin_idx: int, end_idx: int) -> float:
        """Returns the time between two marks, a little off."""
        off = 1 + TIME_NOISE * float(self._noise.standard_normal())
        off *= self._stalls.of_reading()
        return (self._marks_s[end_idx] - self._marks_s[begin_idx]) * 1e3 * off


class KnownFirstDrafts(NamedTuple):
    """Whether first drafts would have held; there from the start."""

    correct: Sequence[bool | None]

    def read(self) -> Sequence[bool | None]:
        """Returns the answer per row."""
        return self.correct


class KnownConfidences(NamedTuple):
    """What the simulated draft's confidence was, and which drafts were verified."""

    kept: Sequence[int] | None
    confidence: NDArray[np.float64]

    def read(self) -> tuple[Sequence[int] | None, NDArray[np.float64]]:
        """Returns both."""
        return self.kept, self.confidence


class Replay:
    """One policy on one workload; `run` may be called once."""

    def __init__(
        self,
        policy: Choices,
        workload: Workload,
        costs: RoundCosts,
        *,
        seed: int = 1,
        recorder: RoundRecorder | None = None,
        tail: Tail = NO_TAIL,
        packed_ms: PackedMs | None = None,
    ) -> None:
        """Takes what is replayed; ``packed_ms`` where the policy may plan packed rounds."""
        self.result = ReplayResult()
        self.live = Live()
        self._workload = workload
        self._costs, self._packed_ms = costs, packed_ms
        self._recorder = recorder
        startup_tier = policy.ladder.tiers[-1]
        self._stalls = Stalls(tail, seed)
        clock = SimulatedClock(self.result, seed, self._stalls)
        timer = RoundTimer("simulated", clock, warm_up_rounds=0)  # it has served before
        # A table lags behind nothing.
        schedule = None if workload.has_table else CatchUpSchedule(can_write_kv_alone=True)
        self._controller = AdaptiveController(
            policy,
            SimulatedPool(startup_tier),
            startup_tier,
            timer,
            schedule,
        )
        self._next_request = 0

    def run(self) -> ReplayResult:
        """Replays until the workload is over.

        Raises:
            RuntimeError: The policy failed; the log has the traceback.
        """
        unseen: list[int] | None = None  # the result of the round in flight
        while not self._workload.is_over(self.clock):
            has_joined = self._admit()
            if not self.live.size:
                break
            if has_joined:
                self._controller.before_extend()
            context_tokens = self._workload.context_tokens(self.clock, self.live)
            batch = DecodeBatch(
                self.live.size, self.live.requests, context_tokens, self.clock.now_s
            )
            launched = self._launch(batch)
            if unseen is not None:
                self._controller.observe(unseen, len(unseen))
            unseen = self._run_round(launched)
            if self._controller.counters.num_policy_errors:
                raise RuntimeError(f"the policy failed in round {launched.number} of a replay")
        self.result.num_switches = sum(self._controller.counters.num_switches.values())
        return self.result

    @property
    def clock(self) -> Clock:
        """How far the replay is."""
        return Clock(self.result.time_s, self.result.num_tokens)

    def _admit(self) -> bool:
        """Lets requests in up to the concurrency; returns whether any joined."""
        first = self._next_request
        while self.live.size < self._workload.concurrency(self.clock):
            request = self._workload.request(self._next_request)
            if request is None:
                break
            self.live.join(self._next_request, request)
            self._next_request += 1
        return self._next_request > first

    def _launch(self, batch: DecodeBatch) -> Round:
        """Plans a round; a table is asked before, where that is wanted, or after."""
        if not self._workload.has_table:
            return self._controller.before_decode(batch)
        found: list[int] = self._workload.found(self.live).tolist()
        if self._controller.wants_found(batch):
            batch = batch._replace(found=found)
        launched = self._controller.before_decode(batch)
        steps = launched.tier.num_steps
        if steps:
            launched.found, launched.kept = found, [min(drafts, steps) for drafts in found]
        return launched

    def _run_round(self, launched: Round) -> list[int]:
        """Runs a round; returns the accepted drafts per request."""
        live, tier, batch = self.live, launched.tier, launched.batch
        phase = self._workload.phase(self.clock)
        num_correct = self._workload.num_correct_drafts(phase, live, tier.num_steps)
        confidence = self._workload.confidences(phase, live, tier.num_steps)
        first = self._first_drafts(phase, launched.debts) if tier == PLAIN_TIER else None
        if launched.plan.verify_lens is not None:
            kept = np.array(launched.plan.verify_lens) - 1
            if launched.plan.by_confidence is not None:
                assert confidence is not None, "the policy knows of none"
                hazards = hazards_by(confidence, launched.plan.by_confidence)
                kept = lengths(np.multiply.accumulate(hazards, 0), int(kept.sum()))
                launched.kept = kept.tolist()
            first = [
                bool(count > most) if most <= count and most < tier.num_steps else None
                for count, most in zip(num_correct.tolist(), kept.tolist(), strict=True)
            ]
            num_correct = np.minimum(num_correct, kept)
        is_asked = launched.plan.by_confidence is not None or not launched.number % ASKED_EVERY
        if confidence is not None and is_asked:
            launched.confidences = KnownConfidences(launched.kept, confidence)
        launched.first_drafts = None if first is None else KnownFirstDrafts(first)
        ms = self._ms(launched) * self._workload.slowdown(self.clock, tier.num_steps)
        correct: list[int] = num_correct.tolist()
        if self._recorder is not None:
            observation = Observation(
                *(launched.plan, live.size, batch.requests, correct, first),
                *(launched.found, launched.kept),
            )
            self._recorder.record(observation, batch.context_tokens, batch.now_s)
        self._count(launched, ms, live.advance(num_correct + 1))
        slower = self._stalls.of_round(tier, batch.size) - 1
        self.result.stalled_s += slower * ms / 1e3
        return correct

    def _first_drafts(self, phase: int, debts: Sequence[int]) -> list[bool | None] | None:
        """Returns which first drafts would hold, for requests that lack none but this round's."""
        if 1 not in debts:
            return None
        correct = self._workload.num_correct_drafts(phase, self.live, 1).tolist()
        return [bool(one) if debt == 1 else None for debt, one in zip(debts, correct, strict=True)]

    def _ms(self, launched: Round) -> float:
        batch, lens = launched.batch, launched.plan.verify_lens
        if lens is not None:
            assert self._packed_ms is not None, "nobody knows what packed rounds take"
            return self._packed_ms(launched.tier, batch.size, batch.context_tokens, sum(lens))
        ms = self._costs.round_ms(launched.tier, batch.size, batch.context_tokens)
        if launched.tier == PLAIN_TIER:  # the table's mean, taken apart again
            extra_ms = self._costs.plain_extra_ms(batch.size, batch.context_tokens)
            ms += extra_ms * (CATCH_UP_ROUNDS * launched.plan.is_catch_up - 1)
        return ms

    def _count(self, launched: Round, ms: float, num_tokens: int) -> None:
        result, steps = self.result, launched.tier.num_steps
        result.num_rounds += 1
        result.num_tokens += num_tokens
        result.time_s += ms / 1e3
        result.probing_s += launched.is_probe * ms / 1e3
        result.rounds_by_steps[steps] = result.rounds_by_steps.get(steps, 0) + 1
        result.ms_by_steps[steps] = result.ms_by_steps.get(steps, 0.0) + ms
