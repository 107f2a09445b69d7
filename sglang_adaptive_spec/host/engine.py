"""Typed handles on what a server is made of, for all that must not know the worker."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from sglang.srt.arg_groups.overrides import resolved_view

from sglang_adaptive_spec.host.batch import Batch, ForwardBatch, RequestPool
from sglang_adaptive_spec.host.launch.options import AdaptiveOptions
from sglang_adaptive_spec.host.ranks import Ranks
from sglang_adaptive_spec.host.server_args import ServerArgs
from sglang_adaptive_spec.host.sizes import ModelConfig
from sglang_adaptive_spec.runtime.pool import RuntimePool
from sglang_adaptive_spec.tiers import Plan


class SlotAllocator(Protocol):
    """Gives KV slots away (``BaseTokenToKVPoolAllocator``)."""

    page_size: int

    def available_size(self) -> int:
        """Returns how many are free."""

    def alloc(self, need_size: int) -> torch.Tensor | None:
        """Takes some; None if there are too few."""

    def free(self, free_index: torch.Tensor) -> None:
        """Gives them back."""


class ModelRunner(Protocol):
    """Runs the forwards of the target, or of the draft."""

    device: str
    gpu_id: int
    model_config: ModelConfig
    attn_backend: Any
    model: torch.nn.Module
    kv_cache_dtype: torch.dtype
    max_running_requests: int
    req_to_token_pool: RequestPool
    token_to_kv_pool_allocator: SlotAllocator
    graph_shared_output: Any
    lora_manager: Any  # None without adapters
    hisparse_coordinator: object
    ngram_embedding_manager: Any
    sampling_observer: object
    shared_read_done_event: object
    spec_algorithm: object

    def sample(self, logits_output: object, forward_batch: ForwardBatch) -> torch.Tensor:
        """Returns the next tokens: [bs]."""


class DraftWorker(Protocol):
    """The host's worker of the draft (``EagleDraftWorker``)."""

    device: str
    server_args: ServerArgs
    draft_runner: ModelRunner
    draft_extend_attn_backend: Any
    cuda_graph_runner_for_draft_extend: object
    hot_token_id: torch.Tensor | None  # the draft's vocabulary, in the target's; None: the same
    plan_stream: torch.Stream | None
    speculative_algorithm: Any


class TargetWorker(Protocol):
    """The host's worker of the target (``TpModelWorker``)."""

    model_runner: ModelRunner

    def forward_batch_generation(self, *args: object, **kwargs: object) -> Any:
        """Runs a forward of the target."""


@dataclass(frozen=True, slots=True)
class HostEngine:
    """What a server is made of; tiers are places of its objects."""

    server_args: ServerArgs
    options: AdaptiveOptions
    device: str
    gpu_id: int
    ranks: Ranks
    target: TargetWorker
    draft_runner: ModelRunner | None  # None: no model drafts
    pool: RuntimePool
    run_alone: Callable[[Plan, Batch], None]  # a round that no controller chose

    @property
    def has_overlap(self) -> bool:
        """Whether a round is launched before the scheduler reads the one before."""
        return not resolved_view(self.server_args).disable_overlap_schedule

    @property
    def target_runner(self) -> ModelRunner:
        """The target's."""
        return self.target.model_runner

    @property
    def runners(self) -> tuple[ModelRunner, ...]:
        """The target's, and the draft's if there is one."""
        draft = () if self.draft_runner is None else (self.draft_runner,)
        return (self.target.model_runner, *draft)
