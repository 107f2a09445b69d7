"""LoRA: what the target's decode graphs read of a batch's adapters belongs to a tier.

Every runner makes it anew, as wide as it captures, and the host keeps the newest alone (sglang
0.5.23 model_executor/runner/decode_cuda_graph_runner.py, lora/lora_manager.py). The draft has no
adapters.
"""

from collections.abc import Callable
from typing import Any

from sglang.srt.lora.lora_manager import LoRAManager

from sglang_adaptive_spec.host.engine import ModelRunner
from sglang_adaptive_spec.host.hooks import hook_now
from sglang_adaptive_spec.runtime.pool import Place

BATCH_INFOS = ("cuda_graph_batch_info", "cuda_graph_sgemm_batch_info")
LARGEST, LARGEST_BEFORE = "max_bs_in_decode_cuda_graph", "max_bs_in_cuda_graph"
INIT = "LoRAManager.init_decode_cuda_graph_batch_info"
INIT_BEFORE = "LoRAManager.init_cuda_graph_batch_info"  # up to 0.5.22, as what precedes it


def lora_places(runner: ModelRunner) -> tuple[Place, ...]:
    """Returns what changes with the tier of a target that serves adapters; before any capture."""
    manager = runner.lora_manager
    if manager is None:
        return ()
    is_new = hasattr(LoRAManager, "init_decode_cuda_graph_batch_info")
    hook_now({INIT if is_new else INIT_BEFORE: keep_moe_buffers})
    largest, backend = LARGEST if is_new else LARGEST_BEFORE, manager.lora_backend
    for name in BATCH_INFOS:  # a backend has those that it needs, once it captured
        setattr(backend, name, getattr(backend, name, None))
    setattr(manager, largest, getattr(manager, largest, 0))
    return (*(Place(backend, name) for name in BATCH_INFOS), Place(manager, largest))


def keep_moe_buffers(
    init: Callable[..., Any], manager: Any, *args: object, **kwargs: object
) -> Any:
    """Around ``LoRAManager.init_decode_cuda_graph_batch_info``: expert layers keep their buffers.

    They are made before, for as many tokens as the largest tier verifies, and all graphs share
    them. From 0.5.21 on the host empties them here and makes smaller ones for the newest runner.
    """
    backend = manager.lora_backend
    buffers = getattr(backend, "moe_cg_buffers", None)
    if buffers is None:
        return init(manager, *args, **kwargs)
    backend.moe_cg_buffers = dict(buffers)
    try:
        return init(manager, *args, **kwargs)
    finally:
        backend.moe_cg_buffers = buffers
