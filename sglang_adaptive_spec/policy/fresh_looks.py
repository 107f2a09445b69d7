"""Whether a batch of none but new requests is worth a look at drafting, from zero steps.

Such a look costs a few rounds and finds out what zero steps do not show soon. Where it pays for
some requests, it is made for all. Where it has paid for none of late, every request of a lone
client would begin with rounds several times as long as its decodes. So looks are booked: what the
drafting rounds of a batch that began with one gave beyond zero steps in the same time, in tokens of
a request, until none of its requests is left. (A loop of clients that never all end at once would
be booked for hours, and its sum outweigh all looks that follow.) While that is surely less than
nothing on average, one batch in a few is looked at.
"""

import math
from collections.abc import Hashable, Sequence
from typing import Any

from sglang_adaptive_spec.policy.settings import CadenceSettings


class FreshLooks:
    """Owns discounted sums over such batches, and the one under way."""

    def __init__(self, settings: CadenceSettings) -> None:
        self._settings = settings
        self._num_looks = 0.0  # remembered
        self._gains = 0.0  # tokens
        self._squares = 0.0
        self._since_look = 0  # batches
        self._totals = {"num_looks": 0, "num_left_out": 0}
        self._gain: float | None = None  # of the batch under way, if it began with a look
        self._requests: frozenset[Hashable] = frozenset()  # that it began with

    def begin(self, may_look: bool, requests: Sequence[Hashable]) -> bool:
        """Takes a batch of none but new ``requests``; returns whether to look at drafting.

        Args:
            may_look: Whether it would begin by drafting less.
            requests: All of it.
        """
        self.end()
        if not may_look or self._are_many(requests):
            return False
        self._since_look += 1
        if not (self._may_pay() or self._since_look >= self._settings.fresh_look_distance):
            self._totals["num_left_out"] += 1
            return False
        self._totals["num_looks"] += 1
        self._since_look, self._gain = 0, 0.0
        self._requests = frozenset(requests)
        return True

    @property
    def is_under_way(self) -> bool:
        """Whether the batch began with a look: its drafting rounds are booked."""
        return self._gain is not None

    def note_batch(self, requests: Sequence[Hashable]) -> None:
        """Closes the books if the batch is no small one any more, or is another one by now."""
        if self._gain is None:
            return
        if self._are_many(requests) or self._requests.isdisjoint(requests):
            self.end()

    def book(self, num_tokens: float, as_decodes: float) -> None:
        """Takes a drafting round.

        Args:
            num_tokens: A request's.
            as_decodes: What zero steps give a request in the same time.
        """
        if self._gain is not None:
            self._gain += num_tokens - as_decodes

    def describe(self) -> dict[str, Any]:
        """Returns looks made and left out, and the tokens that one brought a request of late."""
        mean = self._gains / self._num_looks if self._num_looks else 0.0
        return {**self._totals, "mean_gain": round(mean, 3)}

    def end(self) -> None:
        """Closes the books on the batch under way."""
        if self._gain is None:
            return
        kept = 1 - 1 / self._settings.fresh_look_memory
        self._num_looks = kept * self._num_looks + 1
        self._gains = kept * self._gains + self._gain
        self._squares = kept * self._squares + self._gain**2
        self._gain = None

    def _are_many(self, requests: Sequence[Hashable]) -> bool:
        return len(requests) > self._settings.fresh_look_batch

    def _may_pay(self) -> bool:
        """Returns whether looks are not known to cost more than they bring."""
        num_looks = self._num_looks
        if num_looks < self._settings.min_fresh_looks:
            return True
        mean = self._gains / num_looks
        # A token each is what the rounding to whole tokens leaves in doubt.
        variance = max(self._squares / num_looks - mean**2, 0.0) + 1.0
        return mean + math.sqrt(variance / num_looks) >= 0
