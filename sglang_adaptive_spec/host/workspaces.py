"""FlashInfer's buffers: what a plan takes of the workspace, and plan buffers that graphs share.

FlashInfer gives every wrapper 8 MB on the device and 8 MB of pinned host memory for its plan, and
the host makes a wrapper per captured batch size, stage and draft step: 14 sizes of 7 steps take
1 GB that way. A plan is written anew before every replay and only one batch size of a backend
replays at a time, so one buffer per backend and mode is enough.
"""

from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

PREPARE = (
    "sglang.srt.layers.attention.flashinfer_backend"
    ".FlashInferAttnBackend._prepare_cuda_graph_metadata"
)
FIRST_WRAPPERS = (
    "_adaptive_spec_first_wrappers"  # on the backend: per mode, those of the first size
)
PLAN_BUFFERS = ("_int_workspace_buffer", "_pin_memory_int_workspace_buffer")
PACKED_ROWS = 128  # of the largest tile; smaller ones take less


def plan_bytes(
    batch_size: int, width: int, num_heads: int, num_kv_heads: int, head_dim: int
) -> int:
    """Returns what a prefill plan for a CUDA graph may take of FlashInfer's workspace.

    It keeps partial results of tiles of packed rows in fp32 (flashinfer 0.6
    attention/scheduler.cuh:PrefillPlan).

    Args:
        batch_size: Requests in the graph.
        width: Tokens per request.
        num_heads: Query heads of this rank.
        num_kv_heads: KV heads of this rank.
        head_dim: Of both.
    """
    rows = batch_size * width * max(1, num_heads // num_kv_heads)
    num_tiles = -(-rows // PACKED_ROWS) + batch_size - 1
    return 4 * num_heads * num_tiles * PACKED_ROWS * (head_dim + 1)


def install_workspace_hook() -> None:
    """Hooks the making of graph wrappers; for a process whose attention backend is FlashInfer."""
    HookRegistry.register(PREPARE, share_plan_buffers, HookType.AFTER)
    HookRegistry.apply_hooks()


def share_plan_buffers(
    result: Any, backend: Any, _bs: int, _num_tokens: int, forward_mode: Any, *_: Any
) -> Any:
    """Gives the wrappers just made the plan buffers of the first ones of their mode."""
    metadata = backend.forward_metadata
    if forward_mode.is_decode_or_idle():
        wrappers = metadata.decode_wrappers
    elif forward_mode.is_target_verify() or forward_mode.is_draft_extend_v2():
        wrappers = metadata.prefill_wrappers
    else:
        return result
    firsts = vars(backend).setdefault(FIRST_WRAPPERS, {}).setdefault(forward_mode.name, wrappers)
    for wrapper, first in zip(wrappers, firsts, strict=True):
        for name in PLAN_BUFFERS:
            setattr(wrapper, name, getattr(first, name))
    return result
