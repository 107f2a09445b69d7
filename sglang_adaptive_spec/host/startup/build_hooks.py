"""What the host does otherwise while tiers are built; only in a process that builds our worker."""

from collections.abc import Callable
from typing import Any

from sglang.srt.arg_groups.model_override_base import use_mla_backend
from sglang.srt.arg_groups.overrides import resolved_view
from sglang.srt.mem_cache.allocation_sizing import get_alloc_reserve_per_decode
from sglang.srt.utils import is_flashinfer_available

from sglang_adaptive_spec.host.attention.eager_lengths import install_eager_hooks
from sglang_adaptive_spec.host.attention.extend_graphs import install_extend_hook
from sglang_adaptive_spec.host.attention.shared_index import install_index_hooks
from sglang_adaptive_spec.host.attention.uniform_plans import install_plan_hooks
from sglang_adaptive_spec.host.hooks import hook_now
from sglang_adaptive_spec.host.shapes import attention_backends
from sglang_adaptive_spec.host.startup.capture import garbage_hold
from sglang_adaptive_spec.host.startup.tier_builder import TierBuilder

GET_BACKEND = "sglang.srt.model_executor.model_runner.ModelRunner._get_attention_backend"
FREEZE_GC = "sglang.srt.model_executor.runner.base_cuda_graph_runner.freeze_gc"
CAPTURE = "sglang.srt.model_executor.model_runner_components.cuda_graph_setup.capture_decode_graph"
HEADROOM = "sglang.srt.mem_cache.allocation_sizing.get_req_to_token_extra_context_len"
# Set on the target's model runner, where the hooks find their way back to the tier builder.
CAPTURES_ATTRIBUTE = "_adaptive_spec_builder"


def install_build_hooks() -> None:
    """Hooks what the host does while tiers are built, on any device."""
    hook_now(
        {
            CAPTURE: capture_target_graphs,
            GET_BACKEND: get_target_backend,
            FREEZE_GC: garbage_hold.around_freeze_gc,
            HEADROOM: get_row_headroom,
        }
    )


def install_gpu_hooks(server_args: Any) -> None:
    """Hooks what attention backends keep for graphs; before any of them is made."""
    backends = attention_backends(resolved_view(server_args))
    is_mla = use_mla_backend(server_args)
    if is_flashinfer_available():
        install_plan_hooks(is_in_use="flashinfer" in backends and not is_mla)
    install_extend_hook()
    install_index_hooks(backends, is_mla)
    install_eager_hooks(backends)


def capture_target_graphs(capture: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Wraps ``capture_decode_graph``: the target captures what the start-up tier needs."""
    model_runner = kwargs.get("model_runner")
    builder: TierBuilder | None = getattr(model_runner, CAPTURES_ATTRIBUTE, None)
    if builder is None:  # the draft's runner, or another model's
        return capture(*args, **kwargs)
    with builder.startup_capture():
        return capture(*args, **kwargs)


def get_target_backend(
    get_backend: Callable[..., Any], model_runner: Any, *args: Any, **kwargs: Any
) -> Any:
    """Wraps ``ModelRunner._get_attention_backend``: tiers share the workspace in use already.

    The host gives every tier a private one (FlashInfer: 384 MB). It holds what one kernel leaves
    to the next on the same stream; two tiers never run at once, so they can share it just as
    draft, verify and prefill do (sglang 0.5.23 layers/attention/flashinfer_backend.py).
    """
    if hasattr(model_runner, CAPTURES_ATTRIBUTE):
        kwargs = {**kwargs, "init_new_workspace": False}
    return get_backend(model_runner, *args, **kwargs)


def get_row_headroom(get_headroom: Callable[..., Any], *args: Any, **kwargs: Any) -> int:
    """Wraps ``get_req_to_token_extra_context_len``: a row of slots holds a round's whole reserve.

    The host reserves twice what a round may write, and gives a row that much past the context's
    end for pages above 1 only. With eight steps or more, or a tree, a request that ends there
    would write into its neighbour's row (sglang 0.5.23 mem_cache/allocation_sizing.py).
    """
    return max(int(get_headroom(*args, **kwargs)), get_alloc_reserve_per_decode())
