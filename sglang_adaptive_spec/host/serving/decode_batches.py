"""What the controller is told of a decode batch, read from the host's as seldom as it can be.

Reading a request costs the CPU a few cold cache lines, and a batch has hundreds. So what follows
from who is in the batch is read when that changes, and lengths once in some rounds, or where the
end of the context may be near.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

from sglang_adaptive_spec.config.file import Exact
from sglang_adaptive_spec.host.batch import Batch, Request, context_lengths, row_keys
from sglang_adaptive_spec.host.serving.admission import Admission
from sglang_adaptive_spec.host.serving.exact import batch_reason
from sglang_adaptive_spec.host.serving.runs import needs_every_token, shows_every_token
from sglang_adaptive_spec.tiers import NO_LIMITS, DecodeBatch

LENGTHS_ROUNDS = 8  # a choice: the costs' share of a context grows by some tokens meanwhile


class DecodeBatches:
    """Describes every decode batch before its round.

    Args:
        context_len: Tokens that a request may have.
        round_reserve: Tokens that two of the largest rounds may add to a request.
        exact: For which requests rounds stay at zero steps.
        admission: Knows what requests set for themselves.
        most_decodes: Of a zero-step round; 1 where there are no runs.
    """

    def __init__(
        self,
        context_len: int,
        round_reserve: int,
        exact: Exact,
        admission: Admission,
        most_decodes: int,
    ) -> None:
        self.waiting: Callable[[], Sequence[Any]] = lambda: (True,)  # nobody knows yet
        self._context_len, self._round_reserve = context_len, round_reserve
        self._exact: Exact = exact
        self._admission = admission
        self._most_decodes = most_decodes
        self._rows: object = None  # of the batch: the host's tensor, another one with every change
        self._reqs: Sequence[Request] = ()
        self._keys: tuple[int, ...] = ()
        self._may_run = False
        self._limits = NO_LIMITS
        self._asked: str | None = None  # why a request that asks for it needs zero steps
        self._context_tokens = self._longest = 0  # as last read
        self._num_rounds = 0  # since then

    def of(self, batch: Batch, may_run: bool, is_stay: bool) -> DecodeBatch:
        """Returns the host's ``batch`` as it is about to decode.

        Args:
            batch: Of the host.
            may_run: Whether a zero-step round may run several decodes, as far as others know.
            is_stay: Whether the round before ran zero steps: the first one runs one decode.
        """
        are_all_new = False
        if batch.req_pool_indices_cpu is not self._rows:
            self._rows, self._reqs = batch.req_pool_indices_cpu, batch.reqs
            before, self._keys = self._keys, row_keys(batch)
            are_all_new = set(before).isdisjoint(self._keys)
            self._limits, self._asked = self._admission.of(self._keys, self._reqs)
            self._may_run = not shows_every_token(batch.reqs)
            self._num_rounds = LENGTHS_ROUNDS
        self._num_rounds += 1
        if self._num_rounds >= LENGTHS_ROUNDS or self._is_near_end():
            lengths = self.lengths()
            self._context_tokens, self._longest = sum(lengths), max(lengths)
            self._num_rounds = 0
        is_near_end, num_waiting = self._is_near_end(), len(self.waiting())
        may_run = may_run and self._may_run and not (num_waiting or is_near_end)
        most = self._most_decodes if may_run and not needs_every_token(batch) else 1
        return DecodeBatch(
            len(self._keys),
            self._keys,
            self._context_tokens,
            time.monotonic(),
            # What prefill drew is sent when the first round is launched: a run would hold it up.
            most if is_stay and not are_all_new else 1,
            num_waiting,
            is_near_end,
            batch_reason(batch, self._exact) or self._asked,
            self.lengths,
            limits=self._limits,
            most_in_stay=most,
        )

    def lengths(self) -> list[int]:
        """Returns the tokens with KV of every request of the newest batch: [bs]."""
        return context_lengths(self._reqs)

    def _is_near_end(self) -> bool:
        """Returns whether drafts of some request may not fit before the end of the context.

        Of two rounds one may be in flight, whose tokens are not counted yet.
        """
        since = self._num_rounds * self._round_reserve // 2
        return self._longest + since + self._round_reserve > self._context_len
