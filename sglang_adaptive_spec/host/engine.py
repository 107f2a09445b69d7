"""The host's worker as everybody but the worker sees it: a few typed handles, made once."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from sglang_adaptive_spec.host.batch import Batch, RequestPool
from sglang_adaptive_spec.host.launch.options import AdaptiveOptions
from sglang_adaptive_spec.host.ranks import Ranks
from sglang_adaptive_spec.runtime.pool import RuntimePool
from sglang_adaptive_spec.tiers import Tier


class ModelConfig(Protocol):
    """A model's shape."""

    context_len: int
    vocab_size: int
    dtype: torch.dtype
    quantization: str | None
    is_encoder_decoder: bool
    num_attention_heads: int
    head_dim: int
    hf_config: Any

    def get_num_kv_heads(self, tensor_parallel_size: int) -> int:
        """Returns those of a rank."""


class ModelRunner(Protocol):
    """Runs the forwards of the target, or of the draft."""

    device: str
    gpu_id: int
    model_config: ModelConfig
    attn_backend: Any
    kv_cache_dtype: torch.dtype
    max_running_requests: int
    req_to_token_pool: RequestPool
    token_to_kv_pool_allocator: Any
    graph_shared_output: Any
    hisparse_coordinator: object
    ngram_embedding_manager: Any
    sampling_observer: object
    shared_read_done_event: object
    spec_algorithm: Any

    def sample(self, logits_output: Any, forward_batch: Any) -> torch.Tensor:
        """Returns the next tokens: [bs]."""


class TargetWorker(Protocol):
    """The host's worker of the target (``TpModelWorker``)."""

    model_runner: ModelRunner

    def forward_batch_generation(self, *args: Any, **kwargs: Any) -> Any:
        """Runs a forward of the target."""


@dataclass(frozen=True, slots=True)
class HostEngine:
    """What a server is made of; tiers are places of its objects."""

    server_args: Any
    options: AdaptiveOptions
    device: str
    gpu_id: int
    ranks: Ranks
    target: TargetWorker
    draft_runner: ModelRunner
    pool: RuntimePool
    run_alone: Callable[[Tier, Batch, bool], None]  # a round that no controller chose

    @property
    def target_runner(self) -> ModelRunner:
        """The target's."""
        return self.target.model_runner

    @property
    def runners(self) -> tuple[ModelRunner, ModelRunner]:
        """The target's and the draft's."""
        return self.target.model_runner, self.draft_runner
