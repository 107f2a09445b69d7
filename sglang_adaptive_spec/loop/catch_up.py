"""When the draft catches up: zero-step rounds let it fall behind (host/drafters/backlog.py).

The controller alone changes a schedule. Whoever runs rounds tells the controller what happened to
rows, and finds what a round has to do in the `Round`.
"""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from sglang_adaptive_spec.loop.draft_prefixes import DraftPrefixes
from sglang_adaptive_spec.tiers import CATCH_UP_ROUNDS, CatchUp, DecodeBatch

# Choices. A whole catch-up reads all weights of the draft and says for free whether its proposal
# would have held: the news that traffic has become better. So as many that write KV alone come
# before the next whole one as the stay at zero steps has lasted so many intervals for each. News
# is late by a hundredth of the stay then; with 30 phases of 3 to 20 s served 0.7 % less
# (simulator, 0.2 and 0.85 by turns).
INTERVALS_FOR_ONE = 120
MOST_KV_ALONE = 7


class Lag(NamedTuple):
    """How far a draft is behind a batch; of several ranks the largest batch and the least room."""

    num_rows: int
    most_decodes: int  # that a zero-step round may run one after the other
    room: int  # decodes that it may add before a catch-up
    is_behind: bool  # the draft lacks a token of some row


class CatchUpSchedule:
    """Counts per request how many tokens the draft is behind, and says when to catch up.

    Args:
        interval: Tokens that a catch-up can work off.
        prefixes: Follows how far the draft's KV reaches; None where nobody asks for that.
        max_rows: Requests of the largest batch that is ever caught up; any by default.
        can_write_kv_alone: Whether a catch-up that no draft follows may write KV alone.
    """

    def __init__(
        self,
        interval: int = CATCH_UP_ROUNDS,
        prefixes: DraftPrefixes | None = None,
        max_rows: int | None = None,
        can_write_kv_alone: bool = False,
    ) -> None:
        self._interval, self._max_rows = interval, max_rows
        # What such a catch-up leaves and the next round's token need room beside each other.
        self._most_kv_alone = MOST_KV_ALONE if can_write_kv_alone and interval > 1 else 0
        self._num_kv_alone = 0  # since the draft was level
        self._stayed = 0  # decodes of the stay at zero steps, looks at other tiers apart
        self.prefixes = prefixes
        # Per request of the newest zero-step round: tokens behind when the batch last changed.
        self._behind: dict[Hashable, int] = {}
        self._furthest = 0  # the largest of them
        self._since = 0  # decodes of the same batch after that
        self._requests: Sequence[Hashable] = ()

    def lag(self, batch: DecodeBatch) -> Lag:
        """Returns how far the draft is behind ``batch`` before its round."""
        requests = batch.requests
        room, is_behind = self.room(requests), self.is_behind(requests)
        return Lag(batch.size, batch.most_decodes, room, is_behind)

    def book(
        self,
        batch: DecodeBatch,
        lag: Lag,
        is_last: bool,
        num_decodes: int,
        may_catch_up: bool = True,
    ) -> tuple[CatchUp, list[int]]:
        """Takes the zero-step round that is about to run.

        Args:
            batch: Its rows.
            lag: Before it, of all ranks that run it together.
            is_last: The next round will draft.
            num_decodes: Of the round.
            may_catch_up: Whether batches of this size ever draft.

        Returns:
            How the round must catch up, which is taken as done. And what the draft lacks per row,
            this round included; empty where no row can have begun it level.
        """
        requests = batch.requests
        self._stayed += num_decodes
        self.add_round(requests, num_decodes)
        # One more round like it must find room, or a catch-up comes first.
        is_due = (is_last or lag.room < 2 * num_decodes) and may_catch_up
        may_have_been_level = self.may_have_been_level
        if may_have_been_level and self.prefixes is not None and batch.lengths is not None:
            self.prefixes.fall_behind(requests, batch.lengths())
        is_too_large = self._is_too_large(lag.num_rows)
        if not is_due and not is_too_large:
            return CatchUp.NONE, self.debts(requests) if may_have_been_level else []
        num_kv_alone = self._num_kv_alone
        debts = self._settled(requests, is_too_large)
        if not is_due:
            return CatchUp.NONE, debts
        allowed = self._stayed // (INTERVALS_FOR_ONE * self._interval)
        if is_last or num_kv_alone >= min(allowed, self._most_kv_alone):
            return CatchUp.WHOLE, debts
        self._leave_newest(requests, num_kv_alone + 1)
        return CatchUp.KV, debts

    def take_back(self, num_decodes: int, is_caught_up: bool) -> None:
        """Takes note that the newest zero-step round ran so many decodes less than booked.

        Where it ends with a catch-up the draft lacks no less afterwards.
        """
        self._stayed -= num_decodes
        if is_caught_up:
            return
        if self._since:
            self._since -= num_decodes
        elif self._behind:
            self._behind = {request: debt - num_decodes for request, debt in self._behind.items()}
            self._furthest -= num_decodes

    def end_stay(self) -> None:
        """Takes note that drafting is what the policy is on, not a look."""
        self._stayed = 0

    def before_extend(
        self, prefilled: Sequence[Hashable], decoding: Sequence[Hashable], may_catch_up: bool
    ) -> list[int]:
        """Takes rows that are prefilled, and those that decode beside them.

        Args:
            prefilled: The draft will be level with them.
            decoding: They advance past what is kept of them.
            may_catch_up: Whether these can be caught up before; else they are left behind.

        Returns:
            What the draft lacks per row of ``decoding``, if it must be caught up now; else nothing.
        """
        self.forget(prefilled)
        if decoding and not may_catch_up:
            if self.prefixes is not None:
                self.prefixes.leave_gaps()
            self.settle()
        if not self.is_behind(decoding):
            return []
        return self._settled(decoding, self._is_too_large(len(decoding)))

    def _settled(self, requests: Sequence[Hashable], is_too_large: bool) -> list[int]:
        """Books a catch-up; returns what it works off."""
        debts = self.debts(requests)
        if self.prefixes is not None:
            width = 0 if is_too_large else self._interval
            self.prefixes.catch_up(requests, debts, width)
        self.settle()
        return debts

    def _leave_newest(self, requests: Sequence[Hashable], num_kv_alone: int) -> None:
        """Books that a catch-up wrote KV alone: what follows the newest token is not known."""
        self._num_kv_alone = num_kv_alone
        self._behind, self._furthest = dict.fromkeys(requests, 1), 1
        self._requests = ()  # the next round begins another gap in the draft's KV

    def _is_too_large(self, num_rows: int) -> bool:
        return self._max_rows is not None and num_rows > self._max_rows

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
        if not self._behind:
            return self._interval
        if requests == self._requests:
            return self._interval - self._furthest - self._since
        return self._interval - max(self.debts(requests), default=0)

    def add_round(self, requests: Sequence[Hashable], num_decodes: int = 1) -> None:
        """Counts a zero-step round.

        Args:
            requests: The rows of the batch. Others are forgotten: they left, or are prefilled anew.
            num_decodes: Of the round.
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

    def forget(self, requests: Sequence[Hashable]) -> None:
        """Takes note that ``requests`` are prefilled anew: the draft is level with them."""
        if self.prefixes is not None:
            self.prefixes.forget(requests)
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
        self._behind, self._since, self._num_kv_alone = {}, 0, 0
