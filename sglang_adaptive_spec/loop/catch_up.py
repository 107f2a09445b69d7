"""When the draft catches up: zero-step rounds let it fall behind (host/serving/backlog.py)."""

from collections.abc import Hashable, Sequence

from sglang_adaptive_spec.tiers import CATCH_UP_ROUNDS


class CatchUpSchedule:
    """Counts per request how many tokens the draft is behind, and says when to catch up."""

    def __init__(self, interval: int = CATCH_UP_ROUNDS) -> None:
        self._interval = interval
        # Per request of the newest zero-step round: tokens behind when the batch last changed.
        self._behind: dict[Hashable, int] = {}
        self._furthest = 0  # the largest of them
        self._since = 0  # decodes of the same batch after that
        self._requests: Sequence[Hashable] = ()

    def is_behind(self, requests: Sequence[Hashable]) -> bool:
        """Returns whether the draft lacks a token of any of ``requests``."""
        behind = self._behind
        return bool(behind) and any(request in behind for request in requests)

    @property
    def may_have_been_level(self) -> bool:
        """Whether the draft may have lacked nothing before the newest round.

        Not if the same batch ran a zero-step round before it: a caller need not ask for debts then.
        """
        return not self._since

    def debts(self, requests: Sequence[Hashable]) -> list[int]:
        """Returns per request how many tokens the draft lacks."""
        behind, since = self._behind, self._since
        return [behind[request] + since if request in behind else 0 for request in requests]

    def room(self, requests: Sequence[Hashable]) -> int:
        """Returns how many decodes the next zero-step round may add before a catch-up."""
        if self._behind and requests == self._requests:
            return self._interval - self._furthest - self._since
        return self._interval - max(self.debts(requests), default=0)

    def add_round(self, requests: Sequence[Hashable], is_last: bool, num_decodes: int = 1) -> bool:
        """Books one zero-step round; returns whether it must end with a catch-up.

        Args:
            requests: The rows of the batch. Others are forgotten: they left, or are prefilled anew.
            is_last: The next round will draft.
            num_decodes: Of the round. One more like it must find room, or a catch-up comes first.
        """
        if self._behind and requests == self._requests:
            self._since += num_decodes
        else:
            debts = self.debts(requests)
            self._behind = {
                request: debt + num_decodes for request, debt in zip(requests, debts, strict=True)
            }
            self._furthest, self._since = max(debts, default=-num_decodes) + num_decodes, 0
            self._requests = requests
        return is_last or self._furthest + self._since + num_decodes > self._interval

    def forget(self, requests: Sequence[Hashable]) -> None:
        """Takes note that ``requests`` are prefilled anew: the draft is level with them."""
        if self.is_behind(requests):
            debts = self.debts(tuple(self._behind))
            self._behind = {
                request: debt
                for request, debt in zip(self._behind, debts, strict=True)
                if request not in requests
            }
            self._furthest, self._since = max(self._behind.values(), default=0), 0
            self._requests = ()

    def settle(self) -> None:
        """Books a catch-up of every request."""
        self._behind, self._since = {}, 0
