"""FlashInfer's buffers: a workspace that holds the plans, and plan buffers that graphs share.

Every backend of a process plans in one workspace, 384 MB unless the user or the host says otherwise
(sglang 0.5.23 layers/attention/flashinfer_backend.py: the buffer "flashinfer_workspace", made by
whoever asks first). A verify or a catch-up of many requests needs more.

FlashInfer gives every wrapper 8 MB on the device and 8 MB of pinned host memory for its plan, and
the host makes a wrapper per captured batch size, stage and draft step: 14 sizes of 7 steps take
1 GB that way. A plan is written anew before every replay and only one batch size of a backend
replays at a time, so one buffer per backend and mode is enough.
"""

from typing import Any

import torch
from sglang.srt.environ import envs
from sglang.srt.runtime_context import get_buffer

from sglang_adaptive_spec.host.batch import ForwardMode
from sglang_adaptive_spec.host.events import DoneEvent
from sglang_adaptive_spec.host.sizes import MOST_WORKSPACE_BYTES, plan_bytes

FIRST_WRAPPERS = (
    "_adaptive_spec_first_wrappers"  # on the backend: per mode, those of the first size
)
PLAN_BUFFERS = ("_int_workspace_buffer", "_pin_memory_int_workspace_buffer")
WORKSPACE = "flashinfer_workspace"
# A choice: the catch-ups of 256 requests of Llama 3.1 8B take 0.8 GB.
LARGE_WORKSPACE_BYTES = 2**30


def provide_workspace(num_bytes: int, device: str) -> None:
    """Makes a large workspace for this process if the host's would not hold ``num_bytes``.

    To be called before the first attention backend is made: the host takes the buffer that is
    there. What the user set stays. Above `MOST_WORKSPACE_BYTES` catch-ups are narrower, and a
    verify that does not fit says so when it is captured.

    Raises:
        RuntimeError: There is no room for it.
    """
    size = envs.SGLANG_FLASHINFER_WORKSPACE_SIZE
    if size.is_set() or num_bytes <= size.get():
        return
    large = min(max(LARGE_WORKSPACE_BYTES, num_bytes), MOST_WORKSPACE_BYTES)
    try:
        get_buffer(WORKSPACE, lambda: torch.empty(large, dtype=torch.uint8, device=device))
    except torch.OutOfMemoryError as error:
        raise RuntimeError(
            f"ADAPTIVE_EAGLE has no room for a FlashInfer workspace of {large} "
            f"bytes, and the plans of the largest batches need {num_bytes}: lower "
            "--mem-fraction-static or --max-running-requests, or set "
            "SGLANG_FLASHINFER_WORKSPACE_SIZE."
        ) from error


def holds_plan(backend: object, batch_size: int, width: int, heads: tuple[int, int, int]) -> bool:
    """Returns whether a ``backend`` has room to plan ``width`` tokens of so many requests.

    One without a workspace needs none. ``heads`` are as `sizes.plan_heads` gives them.
    """
    workspace: torch.Tensor | None = getattr(backend, "workspace_buffer", None)
    return workspace is None or plan_bytes(batch_size, width, *heads) <= workspace.nbytes


def share_plan_buffers(backend: Any, forward_mode: ForwardMode) -> DoneEvent | None:
    """Gives the wrappers just made the plan buffers of the first ones of their mode.

    Returns:
        What marks that the newest plan was copied out of them; None for a mode without plans.
    """
    metadata = backend.forward_metadata
    if forward_mode.is_decode_or_idle():
        wrappers = metadata.decode_wrappers
    elif forward_mode.is_target_verify() or forward_mode.is_draft_extend_v2():
        wrappers = metadata.prefill_wrappers
    else:
        return None
    of_modes = vars(backend).setdefault(FIRST_WRAPPERS, {})
    if forward_mode.name not in of_modes:
        event = torch.get_device_module(backend.workspace_buffer.device).Event()
        of_modes[forward_mode.name] = wrappers, event
    firsts, copied = of_modes[forward_mode.name]
    for wrapper, first in zip(wrappers, firsts, strict=True):
        for name in PLAN_BUFFERS:
            setattr(wrapper, name, getattr(first, name))
    return copied
