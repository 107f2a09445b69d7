"""Tiers, plans, and what a policy is told about a round.

A tier is how far one round speculates. A plan is all that the round runs. A policy plans all
decode rounds and later observes what each of them accepted. All are named tuples: made, compared
and hashed several times a round, and at batch 1 a round is bound by the CPU.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from enum import IntEnum
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Tier(NamedTuple):
    """How far one round speculates; ``num_draft_tokens`` counts the root."""

    num_steps: int
    topk: int = 1
    num_draft_tokens: int = 1

    @property
    def num_drafts(self) -> int:
        """Drafts proposed per request and round."""
        return self.num_draft_tokens - 1

    @property
    def label(self) -> str:
        """What logs and metrics call it: ``3`` for a chain of 3 steps, ``3-4-8`` for a tree."""
        return str(self.num_steps) if self.topk == 1 else "-".join(map(str, self))


def chain_tier(num_steps: int) -> Tier:
    """Returns the chain of ``num_steps`` drafts (topk 1)."""
    return Tier(num_steps, 1, num_steps + 1)


PLAIN_TIER = chain_tier(0)


class CatchUp(IntEnum):
    """What a zero-step round ends with, on behalf of the draft that does not follow it."""

    NONE = 0
    KV = 1  # the draft's KV of what it missed; of the newest token it goes on lacking the proposal
    WHOLE = 2  # a draft-extend: the draft lacks nothing, and its next proposal is known


class Plan(NamedTuple):
    """What one decode round runs: a policy chooses the tier, the loop completes the rest."""

    tier: Tier
    num_decodes: int = 1  # decodes of a request; a zero-step round may run several in a row
    catch_up: CatchUp = CatchUp.NONE
    # Tokens that the target verifies per row, the root included; None: all that the tier drafts.
    verify_lens: tuple[int, ...] | None = None
    # Where the draft's confidence decides which: slope and intercepts (policy/acceptance/
    # confidence.py). Then the device finds the lengths, and `verify_lens` says how many in all.
    by_confidence: tuple[float, ...] | None = None

    @property
    def is_catch_up(self) -> bool:
        """Whether the draft lacks nothing afterwards."""
        return self.catch_up is CatchUp.WHOLE


# Zero-step rounds from one catch-up of the draft to the next, and the tokens of a request that it
# works off (host/drafters/backlog.py). 15 and not 16: FlashInfer's plan for 128 requests of 16
# tokens exceeds its workspace of 384 MB by a hair (32 heads of 128; seen on an H200 with sglang
# 0.5.21).
CATCH_UP_ROUNDS = 15


NO_LIMITS: Mapping[Hashable, int] = MappingProxyType({})


class DecodeBatch(NamedTuple):
    """The decode batch that is about to launch."""

    size: int  # live requests
    requests: tuple[Hashable, ...]  # one opaque key per row
    context_tokens: int = 0  # summed over the requests; 0 if the host does not know it
    now_s: float = 0.0  # a monotonic clock, an argument so that policies stay deterministic
    most_decodes: int = 1  # of a request, that a zero-step round may run one after the other
    num_waiting: int = 0  # requests that the scheduler has not let in
    is_near_end: bool = False  # of the context: drafts of some request may not fit before it
    exact: str | None = None  # why the round must be a zero-step one, whatever pays
    # Tokens with KV per row, if the host knows them: to be asked before the next batch is made.
    lengths: Callable[[], Sequence[int]] | None = None
    # Drafts in a row that a table has per row, where it was asked before the round is planned.
    found: Sequence[int] | None = None
    # Drafts that count of those requests that have a limit; the keys are those of ``requests``.
    limits: Mapping[Hashable, int] = NO_LIMITS
    # What most_decodes would be in a stay at zero steps, whose first round runs one; 0: not told.
    most_in_stay: int = 0

    @property
    def most_steps(self) -> int | None:
        """The largest limit, if every request has one: deeper drafts count for none."""
        return max(self.limits.values()) if len(self.limits) == self.size > 0 else None


class Observation(NamedTuple):
    """What one decode round accepted, with the plan, batch and requests that produced it."""

    plan: Plan
    batch_size: int
    requests: Sequence[Hashable]  # one opaque key per row
    num_correct_drafts: Sequence[int]  # accepted drafts per row, bonus token excluded
    # Whether the first draft behind those verified would have held, per row, which the target's
    # next token says. None where it is not known, or where an earlier one did not hold.
    first_draft_correct: Sequence[bool | None] | None = None
    found: Sequence[int] | None = None  # drafts in a row that a table had per row
    kept: Sequence[int] | None = None  # drafts per row that were verified, if not all
    confidence: NDArray[np.float64] | None = None  # [steps, rows] of the draft, in its drafts

    @property
    def tier(self) -> Tier:
        """How far the round speculated."""
        return self.plan.tier

    def seen(self) -> tuple[Sequence[int], Sequence[int] | None]:
        """Returns per row the drafts known to hold, and of how many that is known; None: of all."""
        counts, kept, firsts = self.num_correct_drafts, self.kept, self.first_draft_correct
        if kept is None or firsts is None:
            return counts, kept
        more = [count + (first is True) for count, first in zip(counts, firsts, strict=True)]
        return more, [most + (first is not None) for most, first in zip(kept, firsts, strict=True)]


class RoundTime(NamedTuple):
    """The period of one decode round: from its head to the head of the next one."""

    plan: Plan
    batch_size: int
    context_tokens: int
    ms: float
    num_rounds: int = 1  # it stands for: a tier known well is not timed in every round
    num_joined: int = 0  # requests that one extend let in after it: the period holds that, too

    @property
    def tier(self) -> Tier:
        """How far the round speculated."""
        return self.plan.tier
