"""The loop where the rounds of several ranks run together: attention data parallelism.

Ranks have requests of their own, and every draft step, verify and draft-extend is one of all ranks:
a rank that runs another plan hangs the server. SGLang gathers a row of each rank before every
round; ours adds to it (`Row`). So before a round each rank knows the same table, and what it runs
is a function of that table alone:

    the tier that the first rank's row names, or what some rank's row demands (`must`);
    a catch-up if some rank's draft is behind and the tier drafts, or some draft has no room left;
    as many decodes as the first rank's row asks for and every rank has room for.

The first rank decides (policy/joint.py) when a round is launched, from the table of that round, for
the next one. So no two ranks can decide otherwise, whatever a policy does; whether all ran the same
is checked all the same, one round later.

A rank without requests runs the same rounds, and nobody hands it results: each is taken as done as
soon as one of a rank with requests would be.
"""

import logging
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from sglang_adaptive_spec.loop.catch_up import Lag
from sglang_adaptive_spec.loop.controller import AdaptiveController, Chosen, nearest
from sglang_adaptive_spec.loop.round import Round
from sglang_adaptive_spec.policy.acceptance.hazards import Floats
from sglang_adaptive_spec.policy.protocol import Choices
from sglang_adaptive_spec.policy.run_length import LENGTHS
from sglang_adaptive_spec.tiers import PLAIN_TIER, CatchUp, DecodeBatch, Plan, Tier

logger = logging.getLogger(__name__)

Table = NDArray[np.int64]  # [ranks, columns]
NOTHING, CONTEXT_END, EXACT = range(3)  # what a row may demand: the more, the stricter
NO_LIMIT = 2**31


class Row(NamedTuple):
    """What a rank tells before a round, beside the share of its acceptance."""

    # Of the first rank: what the round shall run.
    tier: int  # place in the ladder
    is_probe: int
    num_decodes: int  # of a zero-step round
    rounds_at_once: int  # that results are worked through together
    # Of each rank.
    newest: int  # what it ran last (`_code`)
    context_tokens: int
    num_waiting: int
    must: int
    num_rows: int  # from here on as `Lag` has it
    most_decodes: int
    room: int
    is_behind: int


NUM_INTS = len(Row._fields)


class JointChoices(Choices, Protocol):
    """A policy that decides for several ranks (policy/joint.py)."""

    def share(
        self, requests: tuple[Hashable, ...], limits: Mapping[Hashable, int] | None = None
    ) -> Floats:
        """Returns what this rank tells of the acceptance of ``requests``, within ``limits``."""

    def note_own(self, requests: tuple[object, ...]) -> None:
        """Takes the batch of this rank that is about to run."""

    def take(self, shares: Floats) -> tuple[object, ...]:
        """Takes what all ranks told: [ranks, numbers]; returns their requests."""


class JointController(AdaptiveController):
    """Runs what all ranks run."""

    policy: JointChoices

    def __init__(
        self, *args: object, is_first: bool, is_overlapping: bool, **kwargs: object
    ) -> None:
        """Takes more than any controller.

        Args:
            is_first: Whether this is the rank that decides.
            is_overlapping: Whether the host launches a round before it reads the last one.
        """
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.is_first = is_first
        self._num_unread = int(is_overlapping)  # rounds launched before a result is read
        self._tiers = sorted({*self.policy.ladder.tiers, self.startup_tier})
        self._no_share = np.zeros_like(self.policy.share(()))
        self.row = np.zeros(NUM_INTS + len(self._no_share), np.int64)  # that this rank tells
        self._row_share = self.row[NUM_INTS:].view(np.float64)
        self._table: Table | None = None  # of the round that is about to launch
        self._rows: list[Row] = []
        self._busy: list[Row] = []  # of ranks with requests
        self._of_all = DecodeBatch(1, ())
        self._of_all_before = self._of_all
        self._newest_code = 0
        self._wanted = Chosen(self.startup_tier)  # by the first rank, for the next round
        self._wanted_decodes = 1

    def offer(self, batch: DecodeBatch) -> None:
        """Writes what this rank tells before a round of ``batch`` into its row."""
        wanted, lag = self._wanted, self._lag(batch)
        must = EXACT if batch.exact is not None else CONTEXT_END if batch.is_near_end else NOTHING
        self.row[:NUM_INTS] = Row(
            self._tiers.index(wanted.tier),
            int(wanted.is_probe),
            self._wanted_decodes,
            self._rounds_at_once,
            self._newest_code,
            batch.context_tokens,
            batch.num_waiting,
            must,
            *lag,
        )
        self._row_share[:] = self._share(batch)

    def take(self, table: Table) -> None:
        """Takes the rows of all ranks: [ranks, columns], the same everywhere."""
        self._table = table

    def before_decode(self, batch: DecodeBatch) -> Round:
        """Plans the round that all ranks are about to launch and activates its tier."""
        assert self._table is not None, "SGLang gathers rows before every round"
        table, self._table = self._table, None
        self._rows = [Row(*row) for row in table[:, :NUM_INTS].tolist()]
        self._check_newest()
        self._book_idle(self.rounds.num_launched - self._num_unread)
        if not batch.size:
            self.counters.num_idle_rounds += 1
        if batch.requests != self.newest.requests:
            self.learn()
            self.policy.note_own(batch.requests)
        launched = super().before_decode(batch)
        self._newest_code = _code(launched, self._tiers)
        if not self.is_first:
            self._rounds_at_once = self._rows[0].rounds_at_once
        else:
            self._decide(np.ascontiguousarray(table[:, NUM_INTS:]).view(np.float64))
        return launched

    def may_draft(self, batch_size: int) -> bool:
        """Returns whether the largest batch may run another tier than zero steps."""
        return super().may_draft(max(batch_size, self._of_all.size))

    def observe(self, num_correct_drafts: Sequence[int], batch_size: int) -> None:
        """Takes the result of the oldest round with requests, and of those without before it."""
        self._book_idle(self.rounds.num_launched)
        super().observe(num_correct_drafts, batch_size)

    def _book_idle(self, before: int) -> None:
        """Takes rounds without requests as done up to the round of that number."""
        for _ in range(self.rounds.num_idle(len(self._results), before)):
            super().observe((), 0)

    def _choose(self, batch: DecodeBatch) -> Chosen:
        rows, first = self._rows, self._rows[0]
        busy = self._busy = [row for row in rows if row.num_rows]
        self._of_all = DecodeBatch(
            max((row.num_rows for row in busy), default=0),
            (),
            max((row.context_tokens for row in busy), default=0),
            batch.now_s,
            min((row.most_decodes for row in busy), default=1),
            max((row.num_waiting for row in busy), default=0),
        )
        if batch.exact is not None:
            self.counters.num_exact_rounds[batch.exact] += 1
        must, allowed = max(row.must for row in rows), self.policy.ladder.of(self._of_all.size)
        if must == EXACT:
            return Chosen(PLAIN_TIER, of_all=self._of_all)
        if must == CONTEXT_END:
            return Chosen(allowed[0], of_all=self._of_all)
        tier = nearest(self._tiers[first.tier], allowed)
        return Chosen(tier, bool(first.is_probe), of_all=self._of_all)

    def _lag_of_all(self, lag: Lag) -> Lag:
        return Lag(
            self._of_all.size,
            self._of_all.most_decodes,
            min((row.room for row in self._busy), default=lag.room),
            any(row.is_behind for row in self._busy),
        )

    def _run_length(self, batch: DecodeBatch, most: int) -> int:
        most = min(most, self._rows[0].num_decodes)
        return max(length for length in LENGTHS if length <= most)

    def _lag(self, batch: DecodeBatch) -> Lag:
        schedule = self.draft_schedule
        return Lag(batch.size, 1, NO_LIMIT, False) if schedule is None else schedule.lag(batch)

    def _share(self, batch: DecodeBatch) -> Floats:
        try:
            return self.policy.share(batch.requests, batch.limits)
        except Exception:  # noqa: BLE001 - any policy must leave serving alive
            self._count_policy_error("share")
            return self._no_share

    def _decide(self, shares: Floats) -> None:
        """Settles on what the first rank asks for in the next round."""
        try:
            requests = self.policy.take(shares)
        except Exception:  # noqa: BLE001 - any policy must leave serving alive
            self._count_policy_error("take")
            return
        of_all, before = self._of_all._replace(requests=requests), self._of_all_before
        if (of_all.requests, of_all.size) != (before.requests, before.size):
            self._end_standing()
        self._of_all_before, self._wanted, self._wanted_decodes = of_all, self._ask(of_all), 1
        if self._wanted.tier == PLAIN_TIER and of_all.most_decodes > 1:
            self._wanted_decodes = super()._run_length(of_all, of_all.most_decodes)

    def _check_newest(self) -> None:
        """Counts it where some rank ran another plan than this one."""
        if all(row.newest == self._newest_code for row in self._rows):
            return
        if not self.counters.num_disagreements:
            logger.error(
                "ADAPTIVE_EAGLE: ranks of attention data parallelism ran other rounds than this "
                "one (%s). Please report it; --speculative-algorithm EAGLE serves without.",
                [row.newest for row in self._rows],
            )
        self.counters.num_disagreements += 1


def _code(launched: Round, tiers: Sequence[Tier]) -> int:
    """Returns a number that tells what a round ran, and that it was the n-th."""
    plan: Plan = launched.plan
    code = launched.number * len(tiers) + tiers.index(plan.tier)
    return (code * (LENGTHS[-1] + 1) + plan.num_decodes) * len(CatchUp) + plan.catch_up
