"""What the measuring plugin may change or time inside a running scheduler, for benchmarks only.

Acceptance: `SIMULATE_ACC_LEN`, the host's own switch, which `SGLANG_SIMULATE_ACC_LEN` sets at start
(sglang 0.5.21 eagle_utils.py:eagle_sample reads it each round). Policy: ours, or a
forced alternation of every tier that the batch may choose, or one depth throughout. Time: the calls
of the adaptive controller, ours or the host's, and what reads a batch for ours, wrapped on the
instance.
"""

import itertools
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sglang_adaptive_spec.tiers import Plan

STEPS = "steps-"  # begins a command's policy that keeps to one depth
LENGTHS = "lengths"  # all tiers in turn, and of each row another length
CONFIDENCE = "confidence"  # the same, and the device gives them to rows by the draft's confidence
VOTES = "votes"  # the smallest of what ranks with requests of their own would choose alone
SINGLE = "single"  # the policy that keeps to zero steps and one decode a round


class Call(NamedTuple):
    """A method that is timed in a scheduler, called once per decode round."""

    owner: Any
    name: str


class ForcedPolicy:
    """Overrides the choice of a policy: all reachable tiers in turn, or one depth."""

    rounds_at_once = 1  # another one's turn, or another command, may come in the next
    wants_found = False  # nothing follows from it

    def __init__(
        self,
        policy: Any,
        num_steps: int | None = None,
        num_decodes: int | None = None,
        can_lag: bool = True,
    ) -> None:
        """Takes whose choice it is, depth and decodes; None: all tiers, as many as the policy's.

        A draft that cannot lag behind drafts right after zero steps.
        """
        self._policy = policy
        self._num_steps = num_steps
        self._num_decodes = num_decodes
        self._can_lag = can_lag
        self._turn = itertools.count()

    def choose(self, batch: Any) -> Any:
        """Plans the next of the tiers that the batch may choose, or the one of that depth."""
        reachable = self._policy.ladder.of(batch.size)
        if self._num_steps is not None:
            return Plan(next(tier for tier in reachable if tier.num_steps == self._num_steps))
        cycle = alternation(reachable) if self._can_lag else reachable
        return Plan(cycle[next(self._turn) % len(cycle)])

    def run_length(self, batch: Any) -> int:
        """Returns the decodes of a zero-step round."""
        if self._num_decodes is not None:
            return self._num_decodes
        length: int = self._policy.run_length(batch)
        return length

    def count_rounds(self, _num_rounds: int) -> None:
        """Takes no notice: the rounds are not the policy's."""

    def after_results(self) -> None:
        """Takes no notice: there is nothing to decide."""

    def is_probe(self, _plan: Any) -> bool:
        """Returns False: what is forced is no look of the policy's."""
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)


class AnyLengths(ForcedPolicy):
    """All tiers in turn, and of each row another number of drafts is verified in every round."""

    def __init__(self, policy: Any, packed: Any) -> None:
        """Takes the server's policy, and what its packed rounds may be (`PackedTarget`)."""
        super().__init__(policy)
        self._packed, self._random = packed, random.Random(LENGTHS)

    def choose(self, batch: Any) -> Any:
        """Plans the next tier; lengths fill a number of tokens that has a graph."""
        plan = super().choose(batch)
        rows, most = len(batch.requests), plan.tier.num_draft_tokens
        widths = [width for width in self._packed.widths if rows < width <= rows * most]
        if not widths or rows > self._packed.most_rows or not self._packed.holds(plan.tier):
            return plan
        lens = [1] * rows
        for _ in range(self._random.choice(widths) - rows):
            shorter = [row for row, length in enumerate(lens) if length < most]
            lens[self._random.choice(shorter)] += 1
        return plan._replace(verify_lens=tuple(lens))


class ByConfidence(AnyLengths):
    """The same, but the draft's confidence chooses which drafts, each round with other weights."""

    def choose(self, batch: Any) -> Any:
        """Plans the next tier and as many tokens; the device finds the lengths."""
        plan = super().choose(batch)
        if plan.verify_lens is None:
            return plan
        offsets = (self._random.gauss(0, 0.5) for _ in range(plan.tier.num_steps))
        return plan._replace(by_confidence=(self._random.uniform(0.5, 1.5), *offsets))


class SmallestVote(ForcedPolicy):
    """What ADAPTIVE_EAGLE does not do under attention DP (as in sgl-project/sglang#35898).

    Each rank votes for the tier that serves its own requests best; the smallest vote wins.
    """

    def choose(self, batch: Any) -> Any:
        """Plans the smallest vote; the policy goes on deciding, and is not asked."""
        self._policy.choose(batch)
        tiers = self._policy.ladder.of(batch.size)
        depths, shares = [tier.num_steps for tier in tiers], self._policy.joint.shares
        votes = []
        for num_requests, survival in zip(shares.scalars[:, 0], shares.survival, strict=True):
            if num_requests:
                size = int(num_requests)
                tokens = np.cumsum((num_requests, *survival))[depths]
                context_tokens = batch.context_tokens * size // batch.size
                round_ms = self._policy.costs.round_ms_all(tiers, size, context_tokens)
                votes.append(int((tokens / round_ms).argmax()))
        return Plan(tiers[min(votes, default=0)])


def alternation(tiers: Sequence[Any]) -> list[Any]:
    """Returns the order in which every tier runs: the one after zero steps is asked for twice.

    Leaving zero steps takes one round more (loop/controller.py), which stays at zero steps.
    """
    before = [tiers[-1], *tiers[:-1]]
    return [
        tier
        for previous, tier in zip(before, tiers, strict=True)
        for _ in range(2 if previous.num_steps == 0 and tier != previous else 1)
    ]


class Stopwatch:
    """Times methods by wrapping them on the instance.

    What reading the clock takes is measured right before every call, and taken off it.
    """

    def __init__(self, calls: Mapping[str, Call]) -> None:
        self._calls = calls
        self.took_ns: dict[str, list[int]] = {stage: [] for stage in calls}
        self.clock_ns: list[int] = []
        for stage, (owner, name) in calls.items():
            setattr(owner, name, self._timed(getattr(owner, name), stage))

    def remove(self) -> None:
        """Uncovers the methods again."""
        for owner, name in self._calls.values():
            delattr(owner, name)

    def _timed(self, method: Callable[..., Any], stage: str) -> Callable[..., Any]:
        took_ns, clock_ns, now = self.took_ns[stage], self.clock_ns, time.perf_counter_ns

        def timed(*args: Any, **kwargs: Any) -> Any:
            before = now()
            start = now()
            result = method(*args, **kwargs)
            took = now() - start
            clock_ns.append(start - before)
            took_ns.append(took - (start - before))
            return result

        return timed


class Engine:
    """A scheduler's speculation under the benchmark's command."""

    def __init__(self, scheduler: Any) -> None:
        self._worker = scheduler.draft_worker
        self._ours: Any = getattr(self._worker, "controller", None)
        self._own_policy = self._ours.policy if self._ours else None
        self._stopwatch: Stopwatch | None = None

    def obey(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Carries out a command; returns what it measured."""
        import torch

        torch.default_generator.manual_seed(command["seed"])
        if self._worker is not None:
            self._simulate(command["accept_length"])
        if self._ours is not None:
            self._force(command["policy"])
        return self._time(command["timing"])

    def _simulate(self, accept_length: float | None) -> None:
        from sglang.srt.speculative import spec_utils

        assert isinstance(spec_utils.SIMULATE_ACC_LEN, float | int), "the host's switch is gone"
        spec_utils.SIMULATE_ACC_LEN = -1.0 if accept_length is None else accept_length

    def _force(self, policy: str) -> None:
        if policy == "own":
            self._ours.policy = self._own_policy
        elif policy.startswith(STEPS):
            depth = int(policy.removeprefix(STEPS))
            self._ours.policy = ForcedPolicy(self._own_policy, depth)
        elif policy in (LENGTHS, CONFIDENCE):
            assert self._worker.packed_target is not None, "the server packs no round"
            forced = AnyLengths if policy == LENGTHS else ByConfidence
            self._ours.policy = forced(self._own_policy, self._worker.packed_target)
        elif policy == VOTES:
            self._ours.policy = SmallestVote(self._own_policy)
        elif policy == SINGLE:
            self._ours.policy = ForcedPolicy(self._own_policy, num_steps=0, num_decodes=1)
        else:
            assert policy == "alternate", policy
            can_lag = self._ours.draft_schedule is not None  # a table cannot lag
            self._ours.policy = ForcedPolicy(self._own_policy, can_lag=can_lag)

    def _time(self, wanted: bool) -> dict[str, Any]:
        """Returns what was timed since the last command; starts or stops the stopwatch."""
        calls = self._calls()
        timed: dict[str, Any] = {}
        if self._stopwatch is not None:
            watch = self._stopwatch
            timed = {"took_ns": watch.took_ns, "clock_ns": watch.clock_ns}
            self._stopwatch.remove()
            self._stopwatch = None
        if wanted and calls:
            self._stopwatch = Stopwatch(calls)
        return timed

    def _calls(self) -> dict[str, Call]:
        """Returns what is timed by stage: reading the batch, before the launch, at the result."""
        if self._ours is not None:
            return {
                "describe": Call(self._worker.decode_batches, "of"),
                "choose": Call(self._ours, "before_decode"),
                "observe": Call(self._ours, "observe"),
            }
        host = getattr(self._worker, "adaptive_controller", None)
        if host is not None:
            return {
                "choose": Call(host, "activate_step_by_batch"),
                "observe": Call(host, "on_verify_complete"),
            }
        return {}
