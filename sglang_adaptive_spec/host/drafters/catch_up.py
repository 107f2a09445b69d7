"""The draft catches up: one wide draft-extend for all that zero-step rounds put off.

The host runs it as its own draft-extend, in the round that ends with a catch-up. `Backlog` has what
the draft missed; loop/catch_up.py says when.
"""

import contextlib
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from sglang.srt.layers.attention.flashinfer_mla_backend import FlashInferMLAAttnBackend
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.speculative.eagle_info import EagleDraftInput

from sglang_adaptive_spec.host.attention.flashinfer.workspace import holds_plan
from sglang_adaptive_spec.host.batch import Batch, DraftInput
from sglang_adaptive_spec.host.drafters.backlog import (
    MAX_ROWS,
    Backlog,
    RowMap,
    Window,
    one_at_a_time,
    to_device,
    window_start,
)
from sglang_adaptive_spec.host.drafters.kv_alone import writing_kv_alone
from sglang_adaptive_spec.host.drafters.parts import extend_in_parts, row_parts, rows_of
from sglang_adaptive_spec.host.engine import DraftWorker
from sglang_adaptive_spec.host.sizes import plan_heads
from sglang_adaptive_spec.loop.catch_up import CatchUpSchedule
from sglang_adaptive_spec.loop.draft_prefixes import DraftPrefixes
from sglang_adaptive_spec.tiers import CATCH_UP_ROUNDS, CatchUp

# A choice, 0.3 GB in fp32: a draft-extend without graphs makes logits of every position of its
# window, and nothing is planned for those (runtime/builder.py: MIN_RESERVED_GB).
MAX_EAGER_LOGITS = 2**26


def catch_up_width(draft_worker: DraftWorker, max_batch_size: int, num_shards: int) -> int:
    """Returns the widest catch-up whose FlashInfer plan fits its workspace at ``max_batch_size``.

    Its plan for MLA takes the same space at any width (flashinfer 0.6 attention/scheduler.cuh:
    MLAPlan), and backends without a workspace have no such limit.
    """
    backend = draft_worker.draft_extend_attn_backend
    if type(backend) is FlashInferMLAAttnBackend:  # not what derives from it
        return CATCH_UP_ROUNDS
    heads = plan_heads(draft_worker.draft_runner.model_config, num_shards)
    for width in range(CATCH_UP_ROUNDS, 1, -1):
        if holds_plan(backend, max_batch_size, width, heads):
            return width
    return 1  # as wide as the host's own draft-extend at zero steps


def eager_part_size(width: int, vocab_size: int) -> int:
    """Returns how many requests a draft-extend of ``width`` catches up without graphs."""
    return max(MAX_EAGER_LOGITS // (width * vocab_size), 1)


def has_extend_graphs(draft_worker: DraftWorker) -> bool:
    """Returns whether the tier in force captured draft-extends."""
    return draft_worker.cuda_graph_runner_for_draft_extend is not None


def catch_up_part_size(draft_worker: DraftWorker, part_size: int, width: int) -> int:
    """Returns how many of ``part_size`` requests the draft-extend in force takes at once."""
    if has_extend_graphs(draft_worker):
        return part_size
    known, config = draft_worker.hot_token_id, draft_worker.draft_runner.model_config
    vocab_size = config.vocab_size if known is None else len(known)
    return min(part_size, eager_part_size(width, vocab_size))


def decoding_rows(batch: Batch, first: int) -> Batch:
    """Returns the rows of a mixed batch from ``first`` on, as the decode batch before it."""
    rows = rows_of(batch, slice(first, None))
    rows.forward_mode, rows.is_extend_in_batch = ForwardMode.DECODE, False
    rows.spec_info, rows.replace_embeds, rows.replace_positions = EagleDraftInput(), None, None
    rows.seq_lens = rows.seq_lens - 1  # without the token that the extend adds
    if rows.seq_lens_cpu is not None:
        rows.seq_lens_cpu = rows.seq_lens_cpu - 1
    return rows


class EagleCatchUps:
    """Keeps what the draft missed and lets the host's draft-extend work it off.

    Args:
        draft_worker: The host's.
        hidden_size: Of the target's hidden states, as the draft reads them; 0 if it reads none.
        req_to_token: [rows, slots] of the target, which the draft shares.
        num_shards: That attention heads are split among.
        max_batch_size: Requests that the scheduler may run at once.
        part_size: Requests that one draft-extend may catch up.
        is_joint: Whether several ranks with requests of their own run the same rounds.
    """

    def __init__(
        self,
        draft_worker: DraftWorker,
        hidden_size: int,
        req_to_token: torch.Tensor,
        num_shards: int,
        max_batch_size: int,
        part_size: int,
        is_joint: bool = False,
    ) -> None:
        runner, device = draft_worker.draft_runner, draft_worker.device
        self.part_size = part_size
        num_rows = min(max_batch_size, MAX_ROWS)
        self.width = catch_up_width(draft_worker, part_size, num_shards)
        # Ranks whose rounds run together catch up at once, so in one part. And one without
        # requests may skip the attention, behind which a forward for the KV alone ends.
        max_rows = part_size if is_joint else num_rows
        self.schedule: CatchUpSchedule | None = CatchUpSchedule(
            self.width, DraftPrefixes(), max_rows, can_write_kv_alone=not is_joint
        )
        self._draft_worker, self._req_to_token = draft_worker, req_to_token
        self._backlog = Backlog(
            num_rows, self.width, hidden_size, runner.model_config.dtype, device
        )
        self._row_map = RowMap(num_rows, device)
        is_cpu = torch.device(device).type == "cpu"
        self._last_extend = None if is_cpu else torch.get_device_module(device).Event()

    def begin(self, requests: Sequence[Hashable]) -> None:
        """Takes the rows of a zero-step round that is about to run."""
        self._row_map.assign(requests)

    def keep(self, hidden_states: torch.Tensor | None, tokens: torch.Tensor) -> None:
        """Keeps what a decode produced: [bs, hidden_size] at its input tokens, [bs] the next."""
        if self._row_map.rows is not None:
            self._backlog.keep(self._row_map.rows, hidden_states, tokens)

    def were_level(self, debts: Sequence[int], num_decodes: int) -> list[bool]:
        """Returns per row whether the draft lacked nothing before a round of ``num_decodes``."""
        return self._row_map.caught_up(debts, num_decodes)

    def extend(
        self,
        kind: CatchUp,
        extend: Callable[..., Any],
        batch: Batch,
        result: Any,
        debts: Sequence[int],
    ) -> None:
        """Catches the draft up through the host's ``extend``; it lacks ``debts`` per row."""
        rows, draft = self._row_map.rows, self._draft_worker
        if rows is None:
            return
        seq_lens, next_input = result.new_seq_lens, result.next_draft_input
        ending: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if kind is CatchUp.KV:  # what is relayed stays what it was
            ending, next_input = writing_kv_alone(draft), EagleDraftInput()
        owed = to_device(debts, rows.device)

        def extend_part(rows_of_batch: Batch, part: slice, draft_input: DraftInput) -> None:
            window = self._backlog.window(rows[part], seq_lens[part], owed[part])
            self._extend_window(extend, rows_of_batch, window, draft_input)

        part_size = catch_up_part_size(draft, self.part_size, self.width)
        # Only graphs share a plan buffer: a plan without one waits for the device by itself.
        last = self._last_extend if has_extend_graphs(draft) else None
        with ending:
            if len(rows) > part_size:
                parts = row_parts(len(rows), part_size)
                extend_in_parts(extend_part, batch, next_input, parts, last)
                return
            with one_at_a_time(last):
                extend_part(batch, slice(None), next_input)

    def _extend_window(
        self, extend: Callable[..., Any], batch: Batch, window: Window, draft_input: DraftInput
    ) -> None:
        """Lets the host extend the draft by ``window``; it writes into ``draft_input``."""
        slots = batch.req_pool_indices.unsqueeze(1)
        places = self._req_to_token[slots, window.positions].to(torch.int64)
        # Slot 0 is the host's scrap: what the draft has already, or cannot have yet, goes there.
        batch.out_cache_loc = torch.where(window.is_owed, places, 0).flatten()
        batch.seq_lens = window.start
        if batch.seq_lens_cpu is not None:
            batch.seq_lens_cpu = window_start(batch.seq_lens_cpu, self.width)
            batch.seq_lens_sum = int(batch.seq_lens_cpu.sum())
        hidden_only = LogitsProcessorOutput(
            next_token_logits=None, hidden_states=window.hidden_states
        )
        # The host prepares a draft-extend there, and does not wait for what was computed here.
        if (plan_stream := self._draft_worker.plan_stream) is not None:
            plan_stream.wait_stream(torch.get_device_module(places.device).current_stream())
        caught_up = GenerationBatchResult(
            logits_output=hidden_only,
            next_token_ids=window.tokens,
            accept_lens=window.num_tokens,
            next_draft_input=draft_input,
        )
        extend(batch, caught_up)
