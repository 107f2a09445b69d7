"""A decode batch on request rows and KV slots that nobody uses yet, to measure rounds on."""

import copy
from typing import Any

import torch
from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
from sglang.srt.mem_cache.allocation_sizing import get_alloc_reserve_per_decode
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.utils import require_mlp_tp_gather

from sglang_adaptive_spec.host.drafters.drafter import Drafter
from sglang_adaptive_spec.host.engine import HostEngine

MAX_POOL_SHARE = 0.8  # of the free KV slots


def fresh(batch: ScheduleBatch) -> ScheduleBatch:
    """Returns a batch to run a round on, such that the next round finds ``batch`` as it was.

    A round without a graph widens the draft input's hidden states to the tree's (sglang 0.5.23
    eagle_worker_v2.py:draft_forward).
    """
    batch = copy.copy(batch)
    batch.spec_info = copy.copy(batch.spec_info)
    return batch


def longest_context(engine: HostEngine, size: int) -> int:
    """Returns the most tokens per request that ``size`` requests may borrow, page by page.

    Rows are longer than the context that the attention's buffers are made for: a round of the
    largest captured batch at that length would overrun them.
    """
    runner = engine.target_runner
    allocator = runner.token_to_kv_pool_allocator
    row = min(runner.req_to_token_pool.req_to_token.shape[1], runner.model_config.context_len)
    free = min(int(MAX_POOL_SHARE * allocator.available_size() / size), row)
    return free // allocator.page_size * allocator.page_size - get_alloc_reserve_per_decode()


class BorrowedBatch:
    """A decode batch on request rows and KV slots that nobody uses yet; gives them back."""

    def __init__(self, engine: HostEngine, drafter: Drafter, size: int, context_len: int) -> None:
        self._engine, self._drafter = engine, drafter
        self._size, self._context_len = size, context_len
        runner = engine.target_runner
        self._req_to_token = runner.req_to_token_pool.req_to_token
        self._allocator = runner.token_to_kv_pool_allocator
        self._slots: torch.Tensor | None = None
        self._rows = torch.arange(1, size + 1, device=engine.device)  # row 0 is padding

    def __enter__(self) -> ScheduleBatch | None:
        if self._context_len > longest_context(self._engine, self._size):
            return None
        page_size = self._allocator.page_size
        wanted = self._context_len + get_alloc_reserve_per_decode()
        per_row = -(-wanted // page_size) * page_size
        self._slots = self._allocator.alloc(self._size * per_row)
        if self._slots is None:
            return None
        slots = self._slots.view(self._size, per_row).to(self._req_to_token.dtype)
        self._req_to_token[self._rows, :per_row] = slots
        return self._batch()

    def __exit__(self, *_: object) -> None:
        if self._slots is not None:
            self._req_to_token[self._rows] = 0
            self._allocator.free(self._slots)

    def _batch(self) -> ScheduleBatch:
        runner, size, device = self._engine.target_runner, self._size, self._engine.device
        batch = ScheduleBatch.init_new(
            [],
            runner.req_to_token_pool,
            self._allocator,
            None,
            runner.model_config,
            False,
            runner.spec_algorithm,
        )
        lens = torch.full((size,), self._context_len, dtype=torch.int64)
        batch.forward_mode = ForwardMode.DECODE
        batch.seq_lens, batch.seq_lens_cpu = lens.to(device), lens
        batch.seq_lens_sum = size * self._context_len
        batch.orig_seq_lens = batch.seq_lens.to(torch.int32)
        batch.req_pool_indices, batch.req_pool_indices_cpu = self._rows, self._rows.cpu()
        batch.sampling_info = _greedy(size, runner.model_config.vocab_size, device)
        batch.multimodal_inputs = [None] * size
        batch.spec_info = self._drafter.made_up_input(size)
        if (num_replicas := self._engine.ranks.num_replicas) > 1:
            _share_sizes(batch, size, num_replicas)
        # Adapters ask every request for its own, and some drafters do.
        if runner.lora_manager is not None or self._drafter.reads_requests:
            batch.reqs = [Req("", "", [0], SamplingParams()) for _ in range(size)]
        return batch


def _share_sizes(batch: Any, size: int, num_replicas: int) -> None:
    """Tells ``batch`` what ranks would have gathered that all run ``size`` requests."""
    sizes = [size] * num_replicas if require_mlp_tp_gather() else [size]
    batch.global_num_tokens = batch.global_num_tokens_for_logprob = sizes
    # The draft's experts may exchange tokens in a way of their own; these follow the target's.
    batch.can_run_decode_cuda_graph = batch.can_run_dp_draft_cuda_graph = True


def _greedy(size: int, vocab_size: int, device: str) -> SamplingBatchInfo:
    ones = torch.ones(size, device=device)
    return SamplingBatchInfo(
        temperatures=ones.unsqueeze(1),
        top_ps=ones,
        top_ks=torch.ones(size, dtype=torch.int32, device=device),
        min_ps=torch.zeros(size, device=device),
        is_all_greedy=True,
        is_any_greedy=True,
        need_top_p_sampling=False,
        need_top_k_sampling=False,
        need_min_p_sampling=False,
        vocab_size=vocab_size,
        device=device,
    )
