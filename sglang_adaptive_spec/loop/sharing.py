"""Several ranks decide alike although only the first one times its rounds.

A policy is a function of what it is told. Batches and accepted drafts are the same on every rank of
a tensor-parallel group, round times are not: so the first rank's are told to all, by all at the
same decode round, in the same order. Between two such rounds nobody has learned any. The controller
owns them, so that no policy that fails makes its rank leave out a message.
"""

from collections.abc import Callable, Sequence

from sglang_adaptive_spec.tiers import RoundTime

# Decode rounds from one sharing to the next: a message of a fraction of a millisecond is spread
# over them, and a neighbour on the GPU is known 0.3 s later than by one rank alone.
SHARE_ROUNDS = 32

Broadcast = Callable[[Sequence[RoundTime]], Sequence[RoundTime]]


class SharedTimes:
    """Holds round times back until every rank learns them."""

    def __init__(self, learn: Callable[[RoundTime], None], broadcast: Broadcast) -> None:
        """Takes what learns a round time, and what returns the first rank's argument on all."""
        self.learn, self._broadcast = learn, broadcast
        self._waiting: list[RoundTime] = []
        self._num_rounds = 0

    def add(self, round_time: RoundTime) -> None:
        """Keeps a round time of this rank; only the first rank's will be learned."""
        self._waiting.append(round_time)

    def tick(self) -> Sequence[RoundTime]:
        """Counts a decode round, once for each on every rank; returns what all are to learn now."""
        self._num_rounds += 1
        if self._num_rounds % SHARE_ROUNDS:
            return ()
        waiting, self._waiting = self._waiting, []
        return self._broadcast(waiting)
