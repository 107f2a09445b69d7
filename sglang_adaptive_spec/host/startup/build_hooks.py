"""What the host does otherwise while tiers are built; only in a process that builds our worker."""

from collections.abc import Callable

from sglang.srt.arg_groups.model_override_base import use_mla_backend
from sglang.srt.arg_groups.overrides import resolved_view
from sglang.srt.mem_cache.allocation_sizing import get_alloc_reserve_per_decode
from sglang.srt.utils import is_flashinfer_available

from sglang_adaptive_spec.host.attention.eager_lengths import install_eager_hooks
from sglang_adaptive_spec.host.attention.extend_graphs import install_extend_hook
from sglang_adaptive_spec.host.attention.shared_index import SharedIndex
from sglang_adaptive_spec.host.attention.uniform_plans import install_plan_hooks
from sglang_adaptive_spec.host.hooks import hook_now
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
    is_mla = use_mla_backend(server_args)
    if is_flashinfer_available():
        install_plan_hooks(is_in_use="flashinfer" in backends and not is_mla)
    install_extend_hook()
    index.install(backends, is_mla)
    install_eager_hooks(backends)


def get_row_headroom(get_headroom: Callable[..., int], *args: object, **kwargs: object) -> int:
    """Around ``get_req_to_token_extra_context_len``: a row of slots holds a round's whole reserve.

    The host reserves twice what a round may write, and gives a row that much past the context's
    end for pages above 1 only. With eight steps or more, or a tree, a request that ends there
    would write into its neighbour's row (sglang 0.5.23 mem_cache/allocation_sizing.py).
    """
    return max(int(get_headroom(*args, **kwargs)), get_alloc_reserve_per_decode())
