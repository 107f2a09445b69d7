"""What the host does otherwise while tiers are built; only in a process that builds our worker."""

from collections.abc import Callable

import torch
from sglang.srt.arg_groups.model_override_base import use_mla_backend
from sglang.srt.arg_groups.overrides import resolved_view
from sglang.srt.mem_cache.allocation_sizing import get_alloc_reserve_per_decode
from sglang.srt.utils import is_flashinfer_available

from sglang_adaptive_spec.host.attention.fa3 import (
    bound_extend_table,
    bound_page_table,
    capture_extend,
)
from sglang_adaptive_spec.host.attention.flashinfer.plans import plan_hooks
from sglang_adaptive_spec.host.attention.kv_index import SharedIndex
from sglang_adaptive_spec.host.attention.lengths import bound_slots
from sglang_adaptive_spec.host.hooks import AFTER, Hooks, hook_now
from sglang_adaptive_spec.host.server_args import ServerArgs
from sglang_adaptive_spec.host.sizes import attention_backends
from sglang_adaptive_spec.host.startup.capture import GarbageHold, StartupCapture


def install_build_hooks(startup: StartupCapture, hold: GarbageHold) -> None:
    """Hooks what the host does while tiers are built, on any device."""
    hook_now(
        {
            "capture_decode_graph": startup.around_capture,
            "ModelRunner._get_attention_backend": startup.around_get_backend,
            "freeze_gc": hold.around_freeze_gc,
            "get_req_to_token_extra_context_len": get_row_headroom,
        }
    )


def install_gpu_hooks(server_args: ServerArgs, index: SharedIndex) -> None:
    """Hooks what attention backends keep for graphs; before any of them is made."""
    backends = attention_backends(resolved_view(server_args))
    if use_mla_backend(server_args):
        backends = {"flashinfer-mla" if name == "flashinfer" else name for name in backends}
    hook_now({"EAGLEDraftExtendCudaGraphRunner.capture_one_shape": capture_extend})
    if is_flashinfer_available():
        hook_now(plan_hooks(is_in_use="flashinfer" in backends))
    table = hooks_by_backend(index)
    for name in sorted(table.keys() & backends):
        around, after = table[name]
        hook_now(around)
        hook_now(after, AFTER)


def hooks_by_backend(index: SharedIndex) -> dict[str, tuple[Hooks, Hooks]]:
    """Returns what runs around the host's methods on an attention backend, and after them."""
    slots, mla_slots = index.around_init(index.share_flashinfer), index.around_init()
    triton_slots = index.around_init(index.share_triton, torch.int64)
    pages, steps = index.share_page_tables, index.share_draft_slots
    return {
        "fa3": (
            {
                "FlashAttentionBackend.init_forward_metadata": bound_page_table,
                "FlashAttentionBackend._apply_cuda_graph_metadata": bound_extend_table,
            },
            {"FlashAttentionBackend.init_cuda_graph_state": pages},
        ),
        "flashinfer": (
            {"FlashInferAttnBackend.init_cuda_graph_state": slots},
            {"FlashInferMultiStepDraftBackend.init_cuda_graph_state": steps},
        ),
        "flashinfer-mla": (
            {"FlashInferMLAAttnBackend.init_cuda_graph_state": mla_slots},
            {"FlashInferMLAMultiStepDraftBackend.init_cuda_graph_state": steps},
        ),
        "triton": (
            {
                "TritonAttnBackend.init_cuda_graph_state": triton_slots,
                "TritonAttnBackend.init_forward_metadata": bound_slots,
            },
            {"TritonMultiStepDraftBackend.init_cuda_graph_state": steps},
        ),
    }


def get_row_headroom(get_headroom: Callable[..., int], *args: object, **kwargs: object) -> int:
    """Around ``get_req_to_token_extra_context_len``: a row of slots holds a round's whole reserve.

    The host reserves twice what a round may write, and gives a row that much past the context's
    end for pages above 1 only. With eight steps or more, or a tree, a request that ends there
    would write into its neighbour's row (sglang 0.5.23 mem_cache/allocation_sizing.py).
    """
    return max(int(get_headroom(*args, **kwargs)), get_alloc_reserve_per_decode())
