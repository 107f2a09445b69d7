"""Protocols of the host's batches and requests, and what is read off them on the CPU.

A request id names no row: several tokenizer workers let two running requests have the same one, and
a request that is retracted comes back under its own with other KV. A row of the host's request pool
and the number of times that row was given away name one (sglang 0.5.23 mem_cache/memory_pool.py:
ReqToTokenPool.req_generation).

Lengths on the device are not read: where no attention backend needs them on the CPU (FA3, Triton)
the host does not publish them (sglang 0.5.23 managers/overlap_utils.py:resolve_seq_lens_cpu). What
it has committed per request is there on every backend. Under the overlap schedule it lacks the
tokens of the round in flight.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

import torch


class ForwardMode(Protocol):
    """What a forward does."""

    name: str

    def is_extend(self) -> bool:
        """Returns whether it reads prompts, mixed batches included."""

    def is_mixed(self) -> bool:
        """Returns whether rows that decode stand beside those."""

    def is_decode(self) -> bool:
        """Returns whether it decodes, or drafts and verifies."""

    def is_idle(self) -> bool:
        """Returns whether it has no rows, beside other ranks' forwards."""

    def is_decode_or_idle(self) -> bool:
        """Returns whether it has a token a row, or none."""

    def is_target_verify(self) -> bool:
        """Returns whether it verifies drafts."""

    def is_draft_extend_v2(self) -> bool:
        """Returns whether it writes the draft's KV of what was verified."""


class DraftInput(Protocol):
    """What a round hands to the next (``EagleDraftInput``)."""

    topk_p: torch.Tensor  # [bs, topk]
    topk_index: torch.Tensor | None  # [bs, topk]
    hidden_states: torch.Tensor | None  # [bs, hidden_size]
    bonus_tokens: torch.Tensor  # [bs]
    draft_probs: torch.Tensor | None


class ForwardBatch(Protocol):
    """A batch of one forward, as an attention backend takes it."""

    batch_size: int
    forward_mode: ForwardMode
    positions: torch.Tensor  # [tokens]
    seq_lens_cpu: torch.Tensor | None  # [bs]
    seq_lens_sum: int | None
    spec_info: Any


class RequestKV(Protocol):
    """The KV of a request (``ReqKvInfo``)."""

    req_pool_idx: int
    kv_committed_len: int
    kv_allocated_len: int
    cache_protected_len: int


class SamplingParams(Protocol):
    """What a client asked for."""

    top_k: int
    top_p: float
    min_p: float
    frequency_penalty: float
    presence_penalty: float
    repetition_penalty: float
    min_new_tokens: int
    stream_interval: int | None
    max_new_tokens: int | None
    ignore_eos: bool
    stop_token_ids: Collection[int] | None
    custom_params: Mapping[str, Any] | None


class Request(Protocol):
    """A request of the scheduler (``Req``)."""

    rid: str
    kv: RequestKV
    sampling_params: SamplingParams
    custom_logit_processor: str | None
    origin_input_ids: list[int]
    output_ids: list[int]
    finished_len: int | None
    to_finish: object
    session: Any
    stream: bool
    is_retracted: bool
    eos_token_ids: Collection[int] | None
    tokenizer: Any
    return_routed_experts: bool
    return_indexer_topk: bool
    reasoning_tokens: int
    decode_batch_idx: int
    spec_verify_ct: int
    spec_num_block_accept_tokens: int

    def finished(self) -> bool:
        """Returns whether its answer has ended."""

    def set_finish_with_abort(self, error_msg: str) -> None:
        """Answers it with a 400."""

    def update_spec_correct_drafts_histogram(self, num_correct_drafts: int) -> None:
        """Counts a verify."""


class RequestPool(Protocol):
    """Rows of KV slots (``ReqToTokenPool``)."""

    req_to_token: torch.Tensor  # [rows, slots]
    req_generation: torch.Tensor  # [rows] int64, cpu: how often each was given away


class SamplingInfo(Protocol):
    """How a batch is sampled (``SamplingBatchInfo``)."""

    is_all_greedy: bool
    has_custom_logit_processor: bool
    need_min_p_sampling: bool
    need_top_k_sampling: bool
    need_top_p_sampling: bool
    acc_additive_penalties: torch.Tensor | None
    penalizer_orchestrator: Any


class Batch(Protocol):
    """A batch of the scheduler (``ScheduleBatch``)."""

    reqs: list[Request]
    decoding_reqs: list[Request]  # of a mixed batch
    forward_mode: ForwardMode
    is_extend_in_batch: bool
    req_to_token_pool: RequestPool
    req_pool_indices: torch.Tensor  # [bs]
    req_pool_indices_cpu: torch.Tensor  # [bs]
    seq_lens: torch.Tensor  # [bs]
    seq_lens_cpu: torch.Tensor | None  # [bs]
    seq_lens_sum: int | None
    input_ids: torch.Tensor
    out_cache_loc: torch.Tensor
    spec_info: Any
    sampling_info: SamplingInfo
    has_grammar: bool
    return_logprob: bool
    return_hidden_states: bool
    global_num_tokens: list[int] | None
    replace_embeds: object
    replace_positions: object

    def maybe_evict_swa(self) -> None:
        """Frees KV that left a sliding window."""


def row_keys(batch: Batch) -> tuple[int, ...]:
    """Returns one number per row of ``batch`` that no other running request has: [bs]."""
    rows, generation = batch.req_pool_indices_cpu, batch.req_to_token_pool.req_generation
    return tuple(rows.add(generation[rows], alpha=len(generation)).tolist())


def rows_of_extend(batch: Batch) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the rows that an extend lets in, and those that a mixed batch decodes beside them."""
    rows = row_keys(batch)
    num_decoding = len(batch.decoding_reqs) if batch.forward_mode.is_mixed() else 0
    first = len(rows) - num_decoding  # rows that decode come last
    return rows[:first], rows[first:]


def row_key(req_to_token_pool: RequestPool, row: int) -> int:
    """Returns the number that `row_keys` gives the request that holds ``row``."""
    generation = req_to_token_pool.req_generation
    return row + int(generation[row]) * len(generation)


def context_lengths(reqs: Sequence[Request]) -> list[int]:
    """Returns the tokens with KV of every request of a decode batch: [bs]."""
    return [req.kv.kv_committed_len for req in reqs]
