"""One tier for the batches of several ranks, whose rounds run together.

Attention data parallelism gives every rank requests of its own, and all of them draft and verify at
once. What they accept adds up; a round takes what it takes the largest batch:

    rate(t) = sum over ranks of expected_tokens(t) / round_ms(t, largest batch, longest context)

Not the smallest of what each would choose alone: a rank of one request would veto what the others
gain. The first rank decides from what all have told it (loop/joint.py); the others learn from their
own rounds and tell their share.
"""

from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from sglang_adaptive_spec.ladder import Ladder
from sglang_adaptive_spec.policy.acceptance.hazards import Floats
from sglang_adaptive_spec.policy.acceptance.joint import JointAcceptance
from sglang_adaptive_spec.policy.costs.table import CostTable
from sglang_adaptive_spec.policy.goodput import GoodputPolicy
from sglang_adaptive_spec.policy.settings import DEFAULTS, Settings
from sglang_adaptive_spec.tiers import Observation, Tier


class JointPolicy(GoodputPolicy):
    """GoodputPolicy on the sum of all ranks' batches."""

    def __init__(
        self,
        ladder: Ladder,
        costs: CostTable,
        acceptance: JointAcceptance,
        initial: Tier,
        settings: Settings = DEFAULTS,
    ) -> None:
        super().__init__(ladder, costs, acceptance, initial, settings=settings)
        self.joint = acceptance
        self._own: tuple[Hashable, ...] = ()
        self._known_own: frozenset[Hashable] = frozenset()
        self._num_ended = 0
        self._num_tokens = 0
        self._share: tuple[tuple[Hashable, ...], Floats] | None = None  # while it holds
        # Stand-ins for the requests of every rank: who they are does not matter, who stays does.
        self._stand_ins: list[list[tuple[int, int]]] = []
        self._ended_before: list[int] = []
        self._tokens_before = 0
        self._num_stand_ins = 0
        self._shares = np.zeros(0)  # newest
        self._requests_of_all: tuple[Hashable, ...] = ()

    # -- on every rank --

    def share(
        self, requests: tuple[Hashable, ...], limits: Mapping[Hashable, int] | None = None
    ) -> Floats:
        """Returns the numbers of this rank's share (`Share`), if it ran ``requests`` next.

        Drafts beyond ``limits`` do not count; None: those named last hold.
        """
        if not requests:  # not what the batch tells that it had before
            return self.joint.idle_share(self._num_ended + len(self._own), self._num_tokens)
        if limits is not None:
            self.joint.limit_own(limits)
        if self._share is None or self._share[0] != requests:
            num_ended = self._num_ended + self._left(requests)
            share = self.joint.own_share(requests, num_ended, self._num_tokens)
            self._share = (requests, share.numbers())
        return self._share[1]

    def note_own(self, requests: tuple[Hashable, ...]) -> None:
        """Takes this rank's batch, which is about to run and may be another one."""
        if requests == self._own:
            return
        self._num_ended += self._left(requests)
        if self._own and self._known_own.isdisjoint(requests):
            self.joint.forget_earlier()
        self._own, self._known_own, self._share = requests, frozenset(requests), None

    def observe(self, observation: Observation) -> None:
        """Learns what a round accepted on this rank."""
        super().observe(observation)
        self._share = None

    def after_results(self) -> None:
        """Decides if that is due; works out the share now, while the GPU has a round to run."""
        super().after_results()
        if self._own:
            self.share(self._own)

    def _left(self, requests: Sequence[Hashable]) -> int:
        return 0 if requests == self._own else len(self._known_own.difference(requests))

    # -- on the rank that decides --

    def take(self, shares: Floats) -> tuple[Hashable, ...]:
        """Takes the shares of all ranks; returns their requests, by stand-ins."""
        if np.array_equal(shares, self._shares):
            return self._requests_of_all
        self._shares = shares
        self.joint.take(shares)
        ranks = shares[:, :3].astype(int).tolist()
        if not self._stand_ins:
            self._stand_ins = [[] for _ in ranks]
            self._ended_before = [0] * len(ranks)
        for rank, (size, num_ended, _) in enumerate(ranks):
            self._replace(rank, size, num_ended - self._ended_before[rank])
            self._ended_before[rank] = num_ended
        num_tokens = sum(num_tokens for _, _, num_tokens in ranks)
        self.runs.count_tokens(num_tokens - self._tokens_before)
        self._tokens_before = num_tokens
        every = tuple(each for of_rank in self._stand_ins for each in of_rank)
        if every != self._requests_of_all:  # else the same object: it is compared every round
            self._requests_of_all = every
        return self._requests_of_all

    def _replace(self, rank: int, size: int, num_ended: int) -> None:
        """Takes away the stand-ins of requests that ended, and adds those of new ones."""
        kept = self._stand_ins[rank][num_ended:][:size]
        num_new = size - len(kept)
        first, self._num_stand_ins = self._num_stand_ins, self._num_stand_ins + num_new
        self._stand_ins[rank] = kept + [(rank, first + idx) for idx in range(num_new)]

    # -- both --

    def count_tokens(self, num_tokens: int) -> None:
        """Counts what a round gave here, to be told; `take` has all."""
        self._num_tokens += num_tokens
