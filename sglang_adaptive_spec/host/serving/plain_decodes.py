"""Decodes of the target as without speculation, one or several in a row.

Each request gains exactly one token a decode, so lengths are published before the target runs.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.model_executor.forward_batch_info import (
    CaptureHiddenMode,
    ForwardBatch,
    ForwardMode,
)

from sglang_adaptive_spec.host.batch import Batch
from sglang_adaptive_spec.host.engine import HostEngine
from sglang_adaptive_spec.host.serving.next_slots import NextSlots
from sglang_adaptive_spec.host.serving.run_ends import RunEnds

Keep = Callable[[torch.Tensor | None, torch.Tensor], None]


class Decoded(NamedTuple):
    """What the decodes of a round gave."""

    output: Any  # of the last one, as the target returns it
    columns: list[torch.Tensor]  # the tokens of each: [bs]
    lens_after: torch.Tensor  # [bs]
    keep_alive: list[object]  # until the round's result is there


class PlainDecodes:
    """Runs them for a server, and holds what they share."""

    def __init__(
        self, engine: HostEngine, hidden_mode: CaptureHiddenMode | None, most_decodes: int
    ) -> None:
        """Takes what is kept, as `Drafter` says, and the decodes of a round that slots allow."""
        self._target, self._ranks = engine.target, engine.ranks
        self._hidden_mode = hidden_mode
        req_to_token = engine.target_runner.req_to_token_pool.req_to_token
        self.slots = NextSlots(req_to_token, most_decodes)
        self._ends: RunEnds | None = None
        if not self._ranks.are_several:
            self._ends = RunEnds(str(engine.device), most_decodes, engine.has_overlap)
        self._accept_lens: dict[int, torch.Tensor] = {}  # by decodes of a round: [most requests]

    def watch(self, has_arrival: Callable[[], bool]) -> None:
        """Ends runs where ``has_arrival`` says that a request comes."""
        if self._ends is not None:
            self._ends.has_arrival = has_arrival

    def run(
        self,
        batch: Batch,
        tokens: torch.Tensor,
        num_decodes: int,
        on_publish: Callable[..., Any] | None,
        grammar_barrier: Callable[[], None] | None = None,
        keep: Keep | None = None,
        on_cut: Callable[[int], None] | None = None,
    ) -> Decoded:
        """Decodes ``tokens``, and what follows from them.

        Args:
            batch: The host's; moved on by ``num_decodes`` tokens.
            tokens: [bs] the newest of each request.
            num_decodes: One after the other.
            on_publish: Takes the lengths after all of them.
            grammar_barrier: Waits for masks.
            keep: Takes hidden states and next tokens of each.
            on_cut: Takes how many ran, where the rest would be for nothing; None: all must run.
        """
        lens_after = batch.seq_lens + num_decodes
        if on_publish is not None:
            on_publish(lens_after)
        columns: list[torch.Tensor] = []
        keep_alive: list[object] = []
        ends = self._ends if num_decodes > 1 else None
        if ends is not None:
            ends.begin(batch)
        for left in reversed(range(num_decodes)):
            if ends is not None and on_cut is not None and columns and ends.is_over():
                lens_after = batch.seq_lens
                if on_publish is not None:
                    on_publish(lens_after)
                on_cut(len(columns))
                break
            lens = batch.seq_lens + 1 if left else lens_after
            places = self.slots.look_up(batch.req_pool_indices, batch.seq_lens, left + 1)
            batch.out_cache_loc = places
            output, forward_batch, tokens = self._decode(batch, tokens, lens, grammar_barrier, keep)
            columns.append(tokens)
            keep_alive.append(forward_batch)
            if ends is not None:
                ends.take(tokens)
        return Decoded(output, columns, lens_after, keep_alive)

    def result(self, decoded: Decoded, next_input: object) -> GenerationBatchResult:
        """Returns a round of these decodes as the host takes it."""
        output, columns, num_decodes = decoded.output, decoded.columns, len(decoded.columns)
        return GenerationBatchResult(
            logits_output=output.logits_output,
            next_token_ids=columns[0] if num_decodes == 1 else torch.stack(columns, 1).flatten(),
            can_run_cuda_graph=output.can_run_cuda_graph,
            speculative_num_draft_tokens=1,
            next_draft_input=next_input,
            accept_lens=self._accepted(num_decodes, len(columns[0])),
            new_seq_lens=decoded.lens_after,
            routed_experts_output=output.routed_experts_output,
            indexer_topk_output=output.indexer_topk_output,
            extra_keep_alive_refs=decoded.keep_alive,
            speculative_output_stride=num_decodes,
            num_non_draft_tokens_per_req=num_decodes,
        )

    def _accepted(self, num_decodes: int, size: int) -> torch.Tensor:
        """Returns the tokens that a round gives each request: [size] int32, on the CPU.

        The host reads them there; as they are known, nothing has to be copied from the device.
        """
        lens = self._accept_lens.get(num_decodes)
        if lens is None or len(lens) < size:  # once for each number of decodes
            most = max(size, self._target.model_runner.max_running_requests)
            lens = torch.full((most,), num_decodes, dtype=torch.int32)
            self._accept_lens[num_decodes] = lens
        return lens[:size]

    def _decode(
        self,
        batch: Batch,
        tokens: torch.Tensor,
        lens_after: torch.Tensor,
        grammar_barrier: Callable[[], None] | None,
        keep: Keep | None,
    ) -> tuple[Any, ForwardBatch, torch.Tensor]:
        """Runs one decode of ``tokens``, which moves the batch on by one token."""
        self._prepare(batch, tokens, lens_after)
        is_idle = batch.forward_mode.is_idle()
        target, runner = self._target, self._target.model_runner
        forward_batch = ForwardBatch.init_new(
            batch,
            runner,
            capture_hidden_mode=self._hidden_mode,
            return_hidden_states_before_norm=False,
        )
        forward_batch.spec_info = batch.spec_info = None
        runner.shared_read_done_event = None  # only this forward's own mark may be waited on
        output = target.forward_batch_generation(
            batch=None, forward_batch=forward_batch, is_verify=True
        )
        logits_output = output.logits_output
        if batch.has_grammar and grammar_barrier is not None:
            grammar_barrier()
        if is_idle:  # beside other ranks' requests
            return output, forward_batch, tokens
        next_tokens = self._sample(batch, forward_batch, logits_output)
        if keep is not None:
            keep(logits_output.hidden_states, next_tokens)
        return output, forward_batch, next_tokens

    def _prepare(self, batch: Batch, bonus_tokens: torch.Tensor, lens_after: torch.Tensor) -> None:
        """Turns the batch into the decode batch that it would be without speculation."""
        if not batch.forward_mode.is_idle():
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
        batch.seq_lens = lens_after
        if batch.seq_lens_cpu is not None:
            batch.seq_lens_cpu = batch.seq_lens_cpu + 1
            batch.seq_lens_sum = None  # computed anew from the lengths

    def _sample(
        self, batch: Batch, forward_batch: ForwardBatch, logits_output: Any
    ) -> torch.Tensor:
        """Samples as without speculation; logprobs take the shape that spec results have."""
        runner = self._target.model_runner
        # Greedy tokens are int64 already; sampling kernels return int32.
        tokens = runner.sample(logits_output, forward_batch).to(torch.int64)
        if not batch.sampling_info.is_all_greedy:
            self._ranks.broadcast_values(tokens)
        if batch.return_logprob:
            logprobs = logits_output.next_token_logprobs
            logits_output.next_token_logprobs = logprobs.unsqueeze(1)  # [bs, 1]
        return tokens
