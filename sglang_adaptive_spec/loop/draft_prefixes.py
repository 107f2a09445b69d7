"""How far the draft's KV reaches without a gap, per request: what another request may build on.

Where a batch may run zero steps alone the draft is not caught up, so its KV has a gap from there
on. The host's prefix cache hands KV on to whoever continues the text, the gap included: that
request would draft worse, and so would everybody after it. So the tail from the gap on is left out
of the cache when the request ends; whoever continues it computes it anew, for both models.

Under a load that never lets a batch draft this would be work for nothing. So there is an allowance:
what was generated with a whole draft adds to it, what is left out takes from it.
"""

from collections.abc import Hashable, Sequence

# Choices. At 300 requests of 40 tokens/s the first is a peak of six minutes. The second bounds
# the prefill that lasting peaks add: by then a token is left out for ten that were drafted for.
MOST_ALLOWED_TOKENS = 4_000_000
SHARE_ALLOWED = 0.1


class DraftPrefixes:
    """Knows where the draft's KV ends, or has its first gap, and what may be left out for it."""

    def __init__(self, most_allowed: float = MOST_ALLOWED_TOKENS) -> None:
        self._most_allowed = self._num_allowed = most_allowed  # tokens that may be left out
        # Tokens before the first that the draft lacks; a request with a whole draft is not there.
        self._whole: dict[Hashable, int] = {}
        self._with_gap: set[Hashable] = set()  # of these: no catch-up reaches back so far

    def fall_behind(self, requests: Sequence[Hashable], lengths: Sequence[int]) -> None:
        """Takes the batch of a zero-step round that its draft does not follow.

        Args:
            requests: Its rows. Others are forgotten: they left.
            lengths: Tokens with KV before the round, per row. Fewer cost a few tokens of prefill.
        """
        whole = self._whole
        self._whole = {
            request: whole.get(request, length)
            for request, length in zip(requests, lengths, strict=True)
        }
        if self._with_gap:
            self._with_gap.intersection_update(self._whole)

    def catch_up(self, requests: Sequence[Hashable], debts: Sequence[int], width: int) -> None:
        """Takes a catch-up on the newest ``width`` tokens of requests that lack ``debts``."""
        if not self._whole:
            return
        rows = zip(requests, debts, strict=True)
        self._with_gap.update(request for request, debt in rows if debt > width)
        self._whole = {
            request: length for request, length in self._whole.items() if request in self._with_gap
        }

    def leave_gaps(self) -> None:
        """Takes note that no draft that is behind will be caught up."""
        self._with_gap.update(self._whole)

    def forget(self, requests: Sequence[Hashable]) -> None:
        """Takes note that ``requests`` are prefilled: whoever had their rows before is gone."""
        for request in requests if self._whole else ():
            self._whole.pop(request, None)
            self._with_gap.discard(request)

    def end(self, request: Hashable, num_tokens: int, num_generated: int, num_cached: int) -> int:
        """Returns how many of the tokens of a request that ends others may build on.

        Args:
            request: Its row.
            num_tokens: Those with the target's KV.
            num_generated: Of them, those that are not its prompt.
            num_cached: Those that others build on already; they are no more to be left out.
        """
        num_whole = min(self._whole.get(request, num_tokens), num_tokens)
        num_left_out = num_tokens - num_whole
        if num_left_out > self._num_allowed or num_whole <= num_cached:
            return num_tokens
        earned = SHARE_ALLOWED * max(num_generated - num_left_out, 0)
        self._num_allowed = min(self._num_allowed - num_left_out + earned, self._most_allowed)
        return num_whole
