"""A decode round, from its plan to its period, and the one queue that rounds wait in.

The host hands back accepted drafts and a batch size: in launch order and, under the overlap
schedule, one round late. A result that fits no round, and a round whose result never comes, cost no
other round its own; both are counted.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sglang_adaptive_spec.loop.counters import RoundCounters
from sglang_adaptive_spec.policy.decision import Decision
from sglang_adaptive_spec.tiers import DecodeBatch, Observation, Plan, RoundTime, Tier

# Rounds whose results were not worked through: the overlap schedule has two in flight, and up to 16
# results wait (policy/cadence.py:MOST_AT_ONCE). More are not waited for.
MAX_ROUNDS = 32


class FirstDrafts(Protocol):
    """Whether the first drafts that a round did not verify would have held."""

    def read(self) -> Sequence[bool | None]:
        """Returns the answer per row, None where it is not known; on the CPU by now.

        It is about rows of which all verified drafts hold.
        """


class ToldConfidence(Protocol):
    """The draft's confidence in a round's drafts, and what the device chose by it."""

    def read(self) -> tuple[Sequence[int] | None, NDArray[np.float64]]:
        """Returns drafts per row that are verified, if it chose them, and [steps, rows] of c."""


@dataclass(slots=True)
class Round:
    """One decode round; what follows from it is filled in as it becomes known."""

    number: int  # rounds launched before it, without gaps
    batch: DecodeBatch
    plan: Plan  # as it runs
    is_probe: bool = False  # the policy asked for a look at a tier, not what it is on
    decision: Decision | None = None  # the policy's newest when it chose
    # What the draft lacks per row of a zero-step round, this one included; empty: not asked for.
    debts: Sequence[int] = ()
    first_drafts: FirstDrafts | None = None
    confidences: ToldConfidence | None = None
    found: Sequence[int] | None = None  # drafts in a row that a table had per row
    kept: Sequence[int] | None = None  # drafts per row that are verified, if not all
    # Accepted drafts per request, bonus tokens excluded; None until the result is there.
    num_correct_drafts: Sequence[int] | None = None
    period: RoundTime | None = None  # known one result later, if it is timed
    of_all: DecodeBatch | None = None  # the largest batch of ranks whose rounds run together

    @property
    def load(self) -> DecodeBatch:
        """What its time depends on."""
        return self.of_all or self.batch

    @property
    def tier(self) -> Tier:
        """How far it speculates."""
        return self.plan.tier

    def finish(self, num_correct_drafts: Sequence[int]) -> Observation:
        """Takes the result; returns what a policy is told of the round."""
        self.num_correct_drafts = num_correct_drafts
        confidence = None
        if self.confidences is not None:
            kept, confidence = self.confidences.read()
            self.kept = kept or self.kept
            self.confidences = None  # pinned memory, like those below
        firsts = self.first_drafts.read() if self.first_drafts is not None else None
        self.first_drafts = None  # the round may stay known for a while
        if firsts is not None and self.kept is not None:
            steps, triples = (
                self.tier.num_steps,
                zip(firsts, num_correct_drafts, self.kept, strict=True),
            )
            firsts = [first if count >= kept < steps else None for first, count, kept in triples]
        batch = self.batch
        rows = batch.requests
        return Observation(
            *(self.plan, batch.size, rows, num_correct_drafts, firsts, self.found, self.kept),
            confidence,
        )


class RoundQueue:
    """Owns the rounds whose results were not worked through, oldest first."""

    def __init__(self, counters: RoundCounters) -> None:
        """Takes where results and rounds that do not meet are counted."""
        self._counters = counters
        self._rounds: deque[Round] = deque()
        self.num_launched = 0

    def __len__(self) -> int:
        return len(self._rounds)

    @property
    def newest(self) -> Round:
        """The newest round, whose result cannot be there yet."""
        return self._rounds[-1]

    def launch(
        self,
        batch: DecodeBatch,
        plan: Plan,
        is_probe: bool,
        decision: Decision | None,
        debts: Sequence[int],
    ) -> Round:
        """Returns a new round at the end of the queue; the arguments are its fields."""
        launched = Round(self.num_launched, batch, plan, is_probe, decision, debts)
        launched.found = batch.found
        if plan.verify_lens is not None:
            launched.kept = [length - 1 for length in plan.verify_lens]
        self.num_launched += 1
        self._rounds.append(launched)
        return launched

    def num_idle(self, start: int, before: int) -> int:
        """Returns how many rounds in a row have no requests, from the ``start``-th oldest on.

        Args:
            start: Rounds whose results are there already.
            before: Only rounds with smaller numbers.
        """
        num_idle = 0
        for waiting in islice(self._rounds, start, None):
            if waiting.batch.size or waiting.number >= before:
                break
            num_idle += 1
        return num_idle

    def take(self, batch_size: int) -> Round | None:
        """Returns the oldest round of that size, if any; those before it are given up."""
        for num_older, waiting in enumerate(self._rounds):
            if waiting.batch.size == batch_size:
                self._give_up(num_older)
                return self._rounds.popleft()
        self._counters.num_feedback_mismatches += 1  # nobody launched such a round
        return None

    def keep_newest(self) -> None:
        """Waits for the newest round alone: so many are in flight that results were lost."""
        self._give_up(len(self._rounds) - 1)

    def _give_up(self, num_rounds: int) -> None:
        for _ in range(num_rounds):
            self._rounds.popleft()
        self._counters.num_feedback_mismatches += num_rounds
