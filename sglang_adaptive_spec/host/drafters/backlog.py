"""What the draft has not seen yet: zero-step rounds let it fall behind and catch up in one go.

A zero-step round needs no draft, so its draft-extend is put off: the target's hidden states, where
the draft reads them, and the tokens chosen from them are kept here. Once in `CATCH_UP_ROUNDS`
decodes, or before the first drafting round, one draft-extend of that width writes the draft's KV
for all of them.

`loop/catch_up.py` says when, `RowMap` where (host side); `Backlog` holds the rows (device side).
"""

import contextlib
from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

import torch

from sglang_adaptive_spec.host.events import DoneEvent

# A choice: hidden states of 15 rounds of so many requests take 0.4 GB for the EAGLE-3 draft of an
# 8B model. The draft of a larger batch is not caught up: it drafts worse afterwards.
MAX_ROWS = 1024


def to_device(values: Sequence[int], device: torch.device) -> torch.Tensor:
    """Returns ``values`` on ``device`` [len(values)] int64, without waiting for it."""
    tensor = torch.tensor(values, dtype=torch.int64)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def window_start(seq_lens: torch.Tensor, width: int) -> torch.Tensor:
    """Returns where a window of ``width`` positions begins that ends at ``seq_lens``: [bs].

    Never at 0: prefill has seen the first token, and a window without a prefix would look like a
    prefill to FlashInfer's MLA backend (sglang 0.5.23 flashinfer_mla_backend.py:use_ragged).
    """
    return (seq_lens - width).clamp(min=1)


class RowMap:
    """Gives every request of the batch a row of the backlog while it stays in the batch."""

    def __init__(self, num_rows: int, device: str) -> None:
        self._device = torch.device(device)
        self._num_rows = num_rows
        self._row_of: dict[Hashable, int] = {}
        self._requests: Sequence[Hashable] = ()
        self._was_too_large = False  # the batch before
        self.rows: torch.Tensor | None = None  # [bs] int64; None: the batch has too many requests

    def assign(self, requests: Sequence[Hashable]) -> None:
        """Makes `rows` those of ``requests``; others lose theirs."""
        self._was_too_large = len(self._requests) > self._num_rows
        if requests == self._requests:
            return
        self._requests = requests
        if len(requests) > self._num_rows:
            self._row_of, self.rows = {}, None
            return
        kept = {
            request: row for request in requests if (row := self._row_of.get(request)) is not None
        }
        free = iter(set(range(self._num_rows)).difference(kept.values()))
        self._row_of = {
            request: kept[request] if request in kept else next(free) for request in requests
        }
        self.rows = to_device(list(self._row_of.values()), self._device)

    def caught_up(self, debts: Sequence[int], num_decodes: int = 1) -> list[bool]:
        """Returns per row of the batch whether the draft lacked nothing before this round.

        Args:
            debts: tokens that it lacks now. After a batch with too many requests they count from
                there on, and tell nothing.
            num_decodes: those of this round.
        """
        is_known = self.rows is not None and not self._was_too_large
        return [is_known and debt == num_decodes for debt in debts]


@contextlib.contextmanager
def one_at_a_time(last: DoneEvent | None) -> Iterator[None]:
    """Surrounds a draft-extend that may follow another one at once: waits for that one.

    FlashInfer's plan for a graph is made without waiting, in one pinned buffer per backend (sglang
    0.5.23 flashinfer_backend.py:fast_prefill_plan): made early, it would overwrite the one before,
    which the device has not copied yet.

    Args:
        last: marks the last such draft-extend; None where no plan is made without waiting.
    """
    if last is not None:
        last.synchronize()  # never recorded: done
    yield
    if last is not None:
        last.record()


class Window(NamedTuple):
    """The input of a catch-up: the newest ``width`` positions of every row, oldest first."""

    start: torch.Tensor  # [bs] int64: first position of the window
    num_tokens: torch.Tensor  # [bs] int32: positions up to the newest, at most width
    tokens: torch.Tensor  # [bs * width] int64: the token after each position
    hidden_states: torch.Tensor | None  # [bs * width, hidden_size]
    positions: torch.Tensor  # [bs, width] int64
    is_owed: torch.Tensor  # [bs, width] bool: the draft has no KV there yet


class Backlog:
    """Keeps the hidden states and tokens of the newest ``width`` decodes, by row.

    All rows of a batch advance by one token in every decode, so a decode has one place in the ring
    whatever the positions of its rows. Hidden states lie in a buffer of their graph, so each is
    copied at once, in units of 16 bytes; tokens lie on their own, so those of a batch that does not
    change are copied together. A draft that reads no hidden states has a `hidden_size` of 0.
    """

    def __init__(
        self, num_rows: int, width: int, hidden_size: int, dtype: torch.dtype, device: str
    ) -> None:
        self.width = width
        self._round = 0  # of the newest round kept
        self._dtype = dtype
        is_whole = hidden_size * dtype.itemsize % torch.complex128.itemsize == 0
        self._unit = torch.complex128 if is_whole else dtype
        hidden = torch.zeros((width, num_rows, hidden_size), dtype=dtype, device=device)
        self._hidden = hidden.view(self._unit) if hidden_size else None
        self._rows: torch.Tensor | None = None  # of the newest rounds, whose tokens are ...
        self._newest_tokens: list[torch.Tensor] = []  # ... not in the ring yet
        self._tokens = torch.zeros((width, num_rows), dtype=torch.int64, device=device)
        self._offsets = torch.arange(width, device=device)

    @property
    def num_bytes(self) -> int:
        """Device memory held, in bytes."""
        hidden = 0 if self._hidden is None else self._hidden.nbytes
        return int(hidden + self._tokens.nbytes)

    def keep(
        self,
        rows: torch.Tensor,  # [bs] int64
        hidden_states: torch.Tensor | None,  # [bs, hidden_size], at the round's input token
        tokens: torch.Tensor,  # [bs] int64: the token chosen after it
    ) -> None:
        """Keeps what one zero-step round produced."""
        if rows is not self._rows or len(self._newest_tokens) == self.width:
            self._write_tokens()
            self._rows = rows
        self._round += 1
        if self._hidden is not None:
            assert hidden_states is not None, "the draft reads them"
            hidden = self._hidden[self._round % self.width]
            hidden.index_copy_(0, rows, hidden_states.view(self._unit))
        self._newest_tokens.append(tokens)

    def _write_tokens(self) -> None:
        """Writes the tokens of the newest rounds into the ring."""
        tokens = self._newest_tokens
        if not tokens:
            return
        assert self._rows is not None, "`keep` sets both"
        self._newest_tokens = []
        if len(tokens) == 1:
            self._tokens[self._round % self.width].index_copy_(0, self._rows, tokens[0])
            return
        rounds = range(self._round - len(tokens) + 1, self._round + 1)
        places = to_device([each % self.width for each in rounds], self._rows.device)
        self._tokens[places.unsqueeze(1), self._rows] = torch.stack(tokens)

    def window(self, rows: torch.Tensor, seq_lens: torch.Tensor, debts: torch.Tensor) -> Window:
        """Returns the newest positions of every row.

        Args:
            rows: [bs] int64.
            seq_lens: [bs] int64, tokens with target KV, the newest round included.
            debts: [bs] int64, how many of them the draft lacks, at least 1.
        """
        self._write_tokens()
        start = window_start(seq_lens, self.width)
        positions = start.unsqueeze(1) + self._offsets
        ages = (seq_lens - 1).unsqueeze(1) - positions  # in rounds; negative: not there yet
        places = (self._round - ages) % self.width
        columns, hidden = rows.unsqueeze(1), None
        if self._hidden is not None:
            hidden = self._hidden[places, columns].flatten(0, 1).view(self._dtype)
        return Window(
            start=start,
            num_tokens=(seq_lens - start).to(torch.int32),
            tokens=self._tokens[places, columns].flatten(),
            hidden_states=hidden,
            positions=positions,
            is_owed=(ages >= 0) & (ages < debts.unsqueeze(1)),
        )
