"""The changes to SGLang itself: an SGLang general plugin, all through the host's HookRegistry.

Does nothing when a real sgl_kernel is installed. README.md says of each hook why it is needed and
when it can go.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from .finder import StandInLoader

logger = logging.getLogger(__name__)

OVERLAP_SWITCH = "SGLANG_CPU_HOST_OVERLAP"


def register() -> None:
    """Registers the hooks; SGLang calls it once in each of its processes."""
    spec = find_spec("sgl_kernel")
    if spec is None or not isinstance(spec.loader, StandInLoader):
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    if os.environ.get("SGLANG_USE_CPU_ENGINE") != "1":
        logger.warning("No GPU kernels are installed: set SGLANG_USE_CPU_ENGINE=1 to serve on CPU.")
    HookRegistry.register(
        "sglang.srt.arg_groups.overrides._attention_backend_platform_fallbacks",
        keep_intel_amx,
        HookType.AROUND,
    )
    HookRegistry.register("torch.cuda.synchronize", skip_without_cuda, HookType.AROUND)
    HookRegistry.register(
        "sglang.srt.layers.attention.intel_amx_backend.IntelAMXAttnBackend._build_extend_metadata",
        verify_packed_on_cpu,
        HookType.AROUND,
    )
    HookRegistry.register(
        "sglang.kernels.ops.elementwise.elementwise.fused_gate_sigmoid_mul_add",
        add_shared_expert_on_cpu,
        HookType.AROUND,
    )
    HookRegistry.register(
        "sglang.kernels.ops.attention.fla.fused_norm_gate.FusedRMSNormGated.forward",
        gated_norm_on_cpu,
        HookType.AROUND,
    )
    HookRegistry.register(
        "sglang.kernels.ops.speculative.ngram_corpus.get_ngram_corpus_cls",
        corpus_without_compiler,
        HookType.REPLACE,
    )
    for name in ("fused_mamba_state_scatter_with_mask", "fused_conv_window_scatter_with_mask"):
        target = f"sglang.kernels.ops.mamba.mamba_state_scatter_triton.{name}"
        HookRegistry.register(target, scatter_states_on_cpu, HookType.AROUND)
    if os.environ.get(OVERLAP_SWITCH) == "1":
        HookRegistry.register(
            "sglang.srt.arg_groups.speculative_hook._disable_overlap_schedule_for_cpu",
            keep_overlap_schedule,
            HookType.REPLACE,
        )
        HookRegistry.register(
            "sglang.kernels.ops.speculative.gather_spec_extras.gather_spec_extras",
            gather_spec_extras_on_cpu,
            HookType.AROUND,
        )
        HookRegistry.register("torch.Tensor.record_stream", skip_on_cpu, HookType.AROUND)


def keep_intel_amx(original: Callable[[Any], dict[str, Any]], view: Any) -> dict[str, Any]:
    """Keeps the one CPU backend that can draft, on machines whose CPU has no AMX, too."""
    if view.device == "cpu" and view.attention_backend == "intel_amx":
        return {}
    return original(view)


def skip_without_cuda(original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    """Has no device to wait for."""
    import torch

    if torch.cuda.is_available():
        original(*args, **kwargs)


def verify_packed_on_cpu(
    original: Callable[..., tuple[Any, ...]], backend: Any, forward_batch: Any
) -> tuple[Any, ...]:
    """Verifies rows of another length each, which the backend takes for equal ones.

    Returns:
        Lengths with the new tokens [bs], the new tokens [bs], where those begin [bs], no tree.
    """
    layout = getattr(forward_batch.spec_info, "ragged_verify_layout", None)
    if layout is None or not forward_batch.forward_mode.is_target_verify():
        return original(backend, forward_batch)
    lengths = forward_batch.seq_lens + layout.verify_lens
    return lengths, layout.verify_lens, layout.extend_start_loc, None


def corpus_without_compiler() -> type[Any]:
    """Returns NGRAM's corpus in Python."""
    from .kernels.corpus import NgramCorpus

    return NgramCorpus


def keep_overlap_schedule(server_args: Any) -> None:
    """Replaces a function that turns the overlap schedule off, and does so for device cpu only."""


def gather_spec_extras_on_cpu(
    original: Callable[..., tuple[Any, ...]],
    indices: Any,  # [n] tensor
    topk_p_buf: Any,
    topk_index_buf: Any,
    output_tokens_buf: Any,
    hidden_states_buf: Any,  # or None
) -> tuple[Any, ...]:
    """Gathers rows of the relay buffers without the Triton kernel, for which there is no branch."""
    buffers = (topk_p_buf, topk_index_buf, output_tokens_buf, hidden_states_buf)
    if indices.device.type != "cpu":
        return original(indices, *buffers)
    return tuple(None if buffer is None else buffer[indices] for buffer in buffers)


def scatter_states_on_cpu(
    original: Callable[..., None],
    dst: Any,
    src: Any,
    dst_indices_raw: Any,
    step_indices_raw: Any,
    src_indices_raw: Any = None,  # since 0.5.22
) -> None:
    """Keeps the recurrent states after the accepted drafts without the Triton kernel."""
    if dst.device.type != "cpu":
        rows = () if src_indices_raw is None else (src_indices_raw,)
        original(dst, src, dst_indices_raw, step_indices_raw, *rows)
        return
    from .kernels.recurrent import scatter_states

    scatter_states(dst, src, dst_indices_raw, step_indices_raw, src_indices_raw)


def add_shared_expert_on_cpu(
    original: Callable[..., None],
    hidden_states: Any,
    gate_weight: Any,
    shared_output: Any,
    final_hidden_states: Any,
) -> None:
    """Adds the gated shared expert without the Triton kernel."""
    if hidden_states.device.type != "cpu":
        original(hidden_states, gate_weight, shared_output, final_hidden_states)
        return
    gate = (hidden_states @ gate_weight).sigmoid()
    final_hidden_states += gate[:, None] * shared_output


def gated_norm_on_cpu(
    original: Callable[..., Any], norm: Any, x: Any, g: Any, *args: Any, **kwargs: Any
) -> Any:
    """Norms a recurrent layer's output and gates it without the Triton kernel."""
    from torch.nn.functional import rms_norm, sigmoid, silu

    if x.device.type != "cpu":
        return original(norm, x, g, *args, **kwargs)
    act = sigmoid if norm.activation == "sigmoid" else silu
    normed = rms_norm(x.float(), (norm.hidden_size,), norm.weight.float(), norm.eps)
    return (normed * act(g.float())).to(x.dtype)


def skip_on_cpu(original: Callable[..., None], tensor: Any, stream: Any) -> None:
    """Has no stream to record for a tensor in host memory."""
    if tensor.device.type != "cpu":
        original(tensor, stream)
