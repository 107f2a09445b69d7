"""Zero steps as cheap as no speculation: an ordinary decode forward, and a draft that lags behind.

The host's zero-step round verifies a tree of one node, samples through the verify kernels and runs
a draft-extend, each with a plan that waits for the GPU: a quarter of the throughput of no
speculation on an H200 (slice-h200.json, plain_over_none). Here the target runs
the decode forward that it would run without speculation, the next lengths are published before
that forward (each request gains exactly one token), and the draft-extend is put off; see
host/serving/backlog.py.

The host's own round calls the pieces: `trivial_verify_input`, `verify` and `draft_extend` replace
its steps while the zero-step tier is in force (worker.py).
"""

from collections.abc import Callable, Hashable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.configs.hybrid_arch import mambaish_config
from sglang.srt.layers.attention.flashinfer_mla_backend import FlashInferMLAAttnBackend
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.model_executor.forward_batch_info import (
    CaptureHiddenMode,
    ForwardBatch,
    ForwardMode,
)
from sglang.srt.model_executor.runner.decode_cuda_graph_runner import DecodeCudaGraphRunner
from sglang.srt.runtime_context import get_parallel
from sglang.srt.speculative.eagle_info import EagleDraftInput, EagleVerifyInput
from sglang.srt.speculative.eagle_utils import get_draft_input_from_target_hidden_dim
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from sglang_adaptive_spec.host.serving.backlog import (
    MAX_ROWS,
    Backlog,
    RowMap,
    Window,
    one_at_a_time,
    to_device,
    window_start,
)
from sglang_adaptive_spec.host.serving.draft_parts import (
    RELAYED,
    extend_in_parts,
    row_parts,
    rows_of,
)
from sglang_adaptive_spec.host.serving.rows import context_lengths
from sglang_adaptive_spec.host.serving.unchanged import unchanged
from sglang_adaptive_spec.host.shapes import plan_bytes, plan_heads
from sglang_adaptive_spec.loop.catch_up import CatchUpSchedule
from sglang_adaptive_spec.loop.draft_prefixes import DraftPrefixes
from sglang_adaptive_spec.tiers import CATCH_UP_ROUNDS

# A choice, 0.3 GB in fp32: a draft-extend without graphs makes logits of every position of its
# window, and nothing is planned for those (runtime/builder.py: MIN_RESERVED_GB).
MAX_EAGER_LOGITS = 2**26


def plain_round_unsupported_reason(target_runner: Any) -> str | None:
    """Returns why zero-step rounds must stay the host's for this model, or None."""
    if mambaish_config(target_runner.model_config) is not None:
        return "the model keeps recurrent state, which verify commits in its own way"
    if target_runner.model_config.is_encoder_decoder:
        return "encoder-decoder models prepare decode rounds in the scheduler"
    if target_runner.hisparse_coordinator is not None:
        return "HiSparse prepares decode rounds in the scheduler"
    if target_runner.ngram_embedding_manager.enabled:
        return "n-gram embeddings prepare decode rounds in the scheduler"
    return None


def catch_up_width(draft_worker: Any, max_batch_size: int) -> int:
    """Returns the widest catch-up whose FlashInfer plan fits its workspace at ``max_batch_size``.

    Its plan for MLA takes the same space at any width (flashinfer 0.6 attention/scheduler.cuh:
    MLAPlan), and backends without a workspace have no such limit.
    """
    backend = draft_worker.draft_extend_attn_backend
    workspace = getattr(backend, "workspace_buffer", None)
    if workspace is None or type(backend) is FlashInferMLAAttnBackend:  # not what derives from it
        return CATCH_UP_ROUNDS
    heads = plan_heads(draft_worker.draft_runner.model_config, get_parallel().tp_size)
    for width in range(CATCH_UP_ROUNDS, 1, -1):
        if plan_bytes(max_batch_size, width, *heads) <= workspace.nbytes:
            return width
    return 1  # as wide as the host's own draft-extend at zero steps


def eager_part_size(width: int, vocab_size: int) -> int:
    """Returns how many requests a draft-extend of ``width`` catches up without graphs."""
    return max(MAX_EAGER_LOGITS // (width * vocab_size), 1)


def has_extend_graphs(draft_worker: Any) -> bool:
    """Returns whether the tier in force captured draft-extends."""
    return draft_worker.cuda_graph_runner_for_draft_extend is not None


def catch_up_part_size(draft_worker: Any, part_size: int, width: int) -> int:
    """Returns how many of ``part_size`` requests the draft-extend in force takes at once."""
    if has_extend_graphs(draft_worker):
        return part_size
    known, config = draft_worker.hot_token_id, draft_worker.draft_runner.model_config
    vocab_size = config.vocab_size if known is None else len(known)
    return min(part_size, eager_part_size(width, vocab_size))


def take_first_ranks(tokens: torch.Tensor) -> None:
    """Puts the first rank's tokens in place: what is drawn may differ (the host does so, too)."""
    group = get_parallel().tp_group
    if group.world_size > 1:
        group.broadcast(tokens, src=0)


def decoding_rows(batch: Any, first: int) -> Any:
    """Returns the rows of a mixed batch from ``first`` on, as the decode batch before it."""
    rows = rows_of(batch, slice(first, None))
    rows.forward_mode, rows.is_extend_in_batch = ForwardMode.DECODE, False
    rows.spec_info, rows.replace_embeds, rows.replace_positions = EagleDraftInput(), None, None
    rows.seq_lens = rows.seq_lens - 1  # without the token that the extend adds
    if rows.seq_lens_cpu is not None:
        rows.seq_lens_cpu = rows.seq_lens_cpu - 1
    return rows


class PlainDecodeGraphRunner(DecodeCudaGraphRunner):
    """The host's decode graphs as no speculation captures them, hidden states included."""

    def __init__(self, model_runner: Any, *args: Any, **kwargs: Any) -> None:
        # What the runner captures follows from the target's algorithm.
        algorithm = model_runner.spec_algorithm
        model_runner.spec_algorithm = SpeculativeAlgorithm.NONE
        try:
            super().__init__(model_runner, *args, **kwargs)
        finally:
            model_runner.spec_algorithm = algorithm

    def capture_prepare(self, *args: Any, **kwargs: Any) -> Any:
        """Captures with the hidden states that the draft will read."""
        self.capture_hidden_mode = CaptureHiddenMode.FULL
        return super().capture_prepare(*args, **kwargs)


class FirstDrafts:
    """Whether the draft's next proposal would have held: known now and then, for free."""

    def __init__(self, is_correct: torch.Tensor, is_known: Sequence[bool]) -> None:
        self._is_correct, self._is_known = is_correct, is_known

    def read(self) -> list[bool | None]:
        """Returns the answer per row; the round's result must have been copied to the CPU."""
        rows = zip(self._is_correct.tolist(), self._is_known, strict=True)
        return [correct if known else None for correct, known in rows]


class PlainRounds:
    """Runs zero-step rounds and the catch-ups between them.

    Args:
        worker: The host's worker.
        max_batch_size: Requests that the scheduler may run at once.
        part_size: Requests that one draft-extend may catch up.
    """

    def __init__(self, worker: Any, max_batch_size: int, part_size: int) -> None:
        draft_runner = worker.draft_worker.draft_runner
        num_rows = self._num_rows = min(max_batch_size, MAX_ROWS)
        self._worker = worker
        self.part_size = part_size
        self._target_worker = worker.target_worker
        self._req_to_token = worker.target_worker.model_runner.req_to_token_pool.req_to_token
        self.width = catch_up_width(worker.draft_worker, part_size)
        self.schedule = CatchUpSchedule(self.width)
        self.prefixes = DraftPrefixes()
        self.backlog = Backlog(
            num_rows,
            self.width,
            get_draft_input_from_target_hidden_dim(draft_runner),
            draft_runner.model_config.dtype,
            worker.device,
        )
        self._rows = RowMap(num_rows, worker.device)
        self._accept_lens: dict[int, torch.Tensor] = {}  # by decodes of a round: [num_rows]
        self._verify_input = EagleVerifyInput.create_idle_input(
            topk=1, spec_steps=0, num_verify_tokens=1, device=worker.device
        )
        is_cpu = torch.device(worker.device).type == "cpu"
        self._last_extend = None if is_cpu else torch.get_device_module(worker.device).Event()
        self._on_publish: Callable[..., Any] | None = None
        self._draft_input: Any = None
        self._debts: list[int] = []  # per row, this round included; empty where nobody asks
        self.most_decodes = 1  # of a round, as far as the host reserves slots
        self._num_decodes = 1
        self._is_catch_up = False
        self._has_target = True  # else the draft is caught up alone
        self.is_running = False
        self.first_drafts: FirstDrafts | None = None

    # -- called by the worker, in this order --

    def begin(
        self,
        on_publish: Any,
        requests: Sequence[Hashable],
        is_catch_up: bool,
        num_decodes: int = 1,
    ) -> None:
        """Starts a round of ``requests``, which the schedule has booked already."""
        self._on_publish, self._is_catch_up = on_publish, is_catch_up
        self._num_decodes = num_decodes
        self._rows.assign(requests)
        is_settled = is_catch_up or self._rows.rows is None  # without rows nothing is caught up
        is_asked = is_settled or self.schedule.may_have_been_level
        self._debts = self.schedule.debts(requests) if is_asked else []
        if is_settled:
            width = 0 if self._rows.rows is None else self.width
            self.prefixes.catch_up(requests, self._debts, width)
            self.schedule.settle()
        self.first_drafts = None
        self.is_running = True

    def fall_behind(self, batch: Any, requests: Sequence[Hashable]) -> None:
        """Notes how far the draft came, before a round of ``requests`` that it may not follow."""
        if self.schedule.may_have_been_level:
            self.prefixes.fall_behind(requests, context_lengths(batch))

    def forget(self, requests: Sequence[Hashable]) -> None:
        """Takes note that ``requests`` are prefilled: the draft is level with them."""
        self.prefixes.forget(requests)
        self.schedule.forget(requests)

    def leave_behind(self) -> None:
        """Gives up what the draft lacks: it drafts worse from there on."""
        self.prefixes.leave_gaps()
        self.schedule.settle()

    def owes_before_mixed(self, batch: Any, requests: Sequence[Hashable], first: int) -> bool:
        """Returns whether rows that decode, from ``first`` on, must be caught up before."""
        self.forget(requests[:first])
        if batch.global_num_tokens is not None:  # padding of the whole batch: the gap stays
            self.leave_behind()
        return self.schedule.is_behind(requests)

    def begin_catch_up(self, batch: Any, requests: Sequence[Hashable]) -> Any:
        """Starts a catch-up without a round, before a mixed batch moves its decode rows on.

        Args:
            batch: the host's, as it will be extended; left as it is.
            requests: its rows.

        Returns:
            The decode batch to run, or None if the draft lacks nothing of them.
        """
        first = len(requests) - len(batch.decoding_reqs)  # rows that decode come last
        if not self.owes_before_mixed(batch, requests, first):
            return None
        self._has_target = False
        self.begin(None, requests[first:], is_catch_up=True)
        return decoding_rows(batch, first)

    def end(self) -> None:
        """Ends the round, also after an error."""
        self.is_running, self._has_target = False, True
        self._on_publish = self._draft_input = None

    def trivial_verify_input(self, batch: Any) -> Any:
        """Stands in for the one-node tree, which a plain round has no use for."""
        self._draft_input = batch.spec_info
        return self._verify_input

    def verify(self, batch: Any, grammar_barrier: Any) -> GenerationBatchResult:
        """Runs the target on the bonus tokens and samples the next ones, as often as asked."""
        if not self._has_target:
            return GenerationBatchResult(
                new_seq_lens=batch.seq_lens, next_draft_input=EagleDraftInput()
            )
        draft_input, num_decodes = self._draft_input, self._num_decodes
        lens_after = batch.seq_lens + num_decodes
        if self._on_publish is not None:
            self._on_publish(lens_after)
        tokens, columns, keep_alive = draft_input.bonus_tokens, [], [draft_input]
        for _ in range(num_decodes):
            output, forward_batch, tokens = self._decode(batch, tokens, grammar_barrier)
            columns.append(tokens)
            keep_alive.append(forward_batch)
        self._look_at_first_drafts(draft_input, columns[0])
        next_input = EagleDraftInput(bonus_tokens=tokens)
        for name in RELAYED:
            setattr(next_input, name, getattr(draft_input, name))
        unchanged.relay(draft_input.topk_index)
        return GenerationBatchResult(
            logits_output=output.logits_output,
            next_token_ids=tokens if num_decodes == 1 else torch.stack(columns, dim=1).flatten(),
            can_run_cuda_graph=output.can_run_cuda_graph,
            speculative_num_draft_tokens=1,
            next_draft_input=next_input,
            accept_lens=self._accepted(len(tokens)),
            new_seq_lens=lens_after,
            routed_experts_output=output.routed_experts_output,
            indexer_topk_output=output.indexer_topk_output,
            extra_keep_alive_refs=keep_alive,
            speculative_output_stride=num_decodes,
            num_non_draft_tokens_per_req=num_decodes,
        )

    def _decode(
        self, batch: Any, tokens: torch.Tensor, grammar_barrier: Any
    ) -> tuple[Any, ForwardBatch, torch.Tensor]:
        """Runs one decode of ``tokens``, which moves the batch on by one token."""
        self._prepare(batch, tokens, batch.seq_lens + 1)
        runner = self._target_worker.model_runner
        forward_batch = ForwardBatch.init_new(
            batch,
            runner,
            capture_hidden_mode=CaptureHiddenMode.FULL,
            return_hidden_states_before_norm=False,
        )
        forward_batch.spec_info = batch.spec_info = None
        runner.shared_read_done_event = None  # only this forward's own mark may be waited on
        output = self._target_worker.forward_batch_generation(
            batch=None, forward_batch=forward_batch, is_verify=True
        )
        logits_output = output.logits_output
        if batch.has_grammar and grammar_barrier is not None:
            grammar_barrier()
        next_tokens = self._sample(batch, forward_batch, logits_output)
        if self._rows.rows is not None:
            self.backlog.keep(self._rows.rows, logits_output.hidden_states, next_tokens)
        return output, forward_batch, next_tokens

    def draft_extend(self, extend: Callable[..., Any], batch: Any, result: Any) -> None:
        """Catches the draft up through the host's ``extend``, if that is due."""
        rows = self._rows.rows
        if not self._is_catch_up or rows is None:
            return
        debts = to_device(self._debts, rows.device)

        def extend_part(rows_of_batch: Any, part: slice, draft_input: Any) -> None:
            window = self.backlog.window(rows[part], result.new_seq_lens[part], debts[part])
            self._extend_window(extend, rows_of_batch, window, draft_input)

        next_input, draft = result.next_draft_input, self._worker.draft_worker
        part_size = catch_up_part_size(draft, self.part_size, self.width)
        # Only graphs share a plan buffer: a plan without one waits for the device by itself.
        last = self._last_extend if has_extend_graphs(draft) else None
        if len(rows) > part_size:
            parts = row_parts(len(rows), part_size)
            extend_in_parts(extend_part, batch, next_input, parts, last)
            return
        with one_at_a_time(last):
            extend_part(batch, slice(None), next_input)

    # -- pieces of a round --

    def _extend_window(
        self,
        extend: Callable[..., Any],
        batch: Any,
        window: Window,
        draft_input: Any,
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
        if (plan_stream := self._worker.draft_worker.plan_stream) is not None:
            plan_stream.wait_stream(torch.get_device_module(places.device).current_stream())
        caught_up = GenerationBatchResult(
            logits_output=hidden_only,
            next_token_ids=window.tokens,
            accept_lens=window.num_tokens,
            next_draft_input=draft_input,
        )
        extend(batch, caught_up)

    def _prepare(self, batch: Any, bonus_tokens: torch.Tensor, lens_after: torch.Tensor) -> None:
        """Turns the batch into the decode batch that it would be without speculation."""
        batch.forward_mode = ForwardMode.DECODE
        # Positions of multimodal models follow from these, too; else the host would compute them
        # from lengths on the CPU (sglang 0.5.23 forward_batch_info.py:
        # compute_spec_mrope_positions).
        batch.spec_info = SimpleNamespace(
            positions=batch.seq_lens.to(torch.int64),
            # Padding among experts scales by these (spec_info.py:spec_scale_global_num_tokens).
            num_tokens_per_req=1,
            num_tokens_for_logprob_per_req=1,
        )
        batch.input_ids = bonus_tokens.to(torch.int64)
        batch.out_cache_loc = self._req_to_token[batch.req_pool_indices, batch.seq_lens].to(
            torch.int64
        )
        batch.seq_lens = lens_after
        if batch.seq_lens_cpu is not None:
            batch.seq_lens_cpu = batch.seq_lens_cpu + 1
            batch.seq_lens_sum = None  # computed anew from the lengths

    def _sample(self, batch: Any, forward_batch: Any, logits_output: Any) -> torch.Tensor:
        """Samples as without speculation; logprobs take the shape that spec results have."""
        runner = self._target_worker.model_runner
        # Greedy tokens are int64 already; sampling kernels return int32.
        tokens = runner.sample(logits_output, forward_batch).to(torch.int64)
        if not batch.sampling_info.is_all_greedy:
            take_first_ranks(tokens)
        if batch.return_logprob:
            logprobs = logits_output.next_token_logprobs
            logits_output.next_token_logprobs = logprobs.unsqueeze(1)  # [bs, 1]
        return tokens

    def _accepted(self, size: int) -> torch.Tensor:
        """Returns the tokens that the round gives each request: [size] int32."""
        lens = self._accept_lens.get(self._num_decodes)
        if lens is None or len(lens) < size:
            room, device = max(size, self._num_rows), self._worker.device
            lens = torch.full((room,), self._num_decodes, dtype=torch.int32, device=device)
            self._accept_lens[self._num_decodes] = lens
        return lens[:size]

    def _look_at_first_drafts(self, draft_input: Any, tokens: torch.Tensor) -> None:
        """Compares what the draft would propose with what the target chose, where it is current."""
        is_known = self._rows.caught_up(self._debts, self._num_decodes)
        if any(is_known) and draft_input.topk_index is not None:
            drafts = draft_input.topk_index[:, 0]
            is_correct = first_draft_correct(self._worker, drafts, tokens)
            self.first_drafts = FirstDrafts(_to_cpu(is_correct), is_known)


def first_draft_correct(worker: Any, drafts: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Returns per row whether the draft's proposal is the target's token: [bs] bool."""
    hot_token_id = worker.draft_worker.hot_token_id
    if hot_token_id is not None:
        drafts = hot_token_id[drafts]
    return drafts == tokens


def _to_cpu(values: torch.Tensor) -> torch.Tensor:
    """Copies without waiting; the host waits for a later copy before it reads a result."""
    if values.device.type == "cpu":
        return values
    copy = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    return copy.copy_(values, non_blocking=True)
