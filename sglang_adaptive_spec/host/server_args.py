"""Protocols of the host's arguments and of the scheduler that carries them."""

from collections.abc import Sequence
from typing import Any, Protocol


class ServerArgs(Protocol):
    """A record of ``ServerArgs``, or a view of it while and after it is resolved."""

    model_path: str
    revision: str | None
    trust_remote_code: bool
    device: str | None
    tp_size: int
    dp_size: int
    page_size: int | None
    max_running_requests: int | None
    disable_overlap_schedule: bool
    disaggregation_mode: str
    enable_mixed_chunk: bool
    enable_dp_attention: bool
    triton_attention_num_kv_splits: int
    speculative_algorithm: str | None
    speculative_draft_model_path: str | None
    speculative_draft_model_revision: str | None
    speculative_token_map: str | None
    speculative_num_steps: int | None
    speculative_eagle_topk: int | None
    speculative_num_draft_tokens: int | None
    speculative_adaptive: bool
    speculative_adaptive_config: str | None
    speculative_use_rejection_sampling: bool


class Scheduler(Protocol):
    """The host's scheduler; its worker is ours on an adaptive server."""

    server_args: ServerArgs
    draft_worker: Any
    waiting_queue: Sequence[object]
    recv_from_tokenizer: Any
    future_map: Any


def num_replicas(view: Any) -> int:
    """Returns how many attention groups have requests of their own; ``view``: resolved."""
    size: int | None = getattr(view, "attn_dp_size", None)
    if size is None:  # up to 0.5.21 the host works it out later
        size = view.dp_size if view.enable_dp_attention else 1
    return size
