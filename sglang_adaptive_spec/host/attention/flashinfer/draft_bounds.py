"""FlashInfer's plans of draft steps, made from lengths that the CPU has.

The host reads the bounds of every step's index back from the device, and so waits for all that the
device does (sglang 0.5.23 flashinfer_backend.py:FlashInferMultiStepDraftBackend.common_template;
its own way around that is off unless asked for).
"""

from collections.abc import Callable
from typing import Any

import torch

from sglang_adaptive_spec.host.batch import ForwardBatch


def bounds_on_cpu(lens: torch.Tensor, topk: int, num_steps: int) -> torch.Tensor:
    """Returns where the index of each branch begins: [num_steps, bs * topk + 1] int32.

    Args:
        lens: [bs] on the CPU: tokens of each request.
        topk: Branches of a request.
        num_steps: Each adds a token to every branch.
    """
    starts = torch.zeros(len(lens) * topk + 1, dtype=torch.int32)
    torch.cumsum(lens.repeat_interleave(topk), dim=0, out=starts[1:])
    steps = torch.arange(1, num_steps + 1, dtype=torch.int32)
    return starts + steps.unsqueeze(1) * torch.arange(len(starts), dtype=torch.int32)


class _Known:
    """Bounds that are asked for on the CPU and are there."""

    def __init__(self, bounds: torch.Tensor) -> None:
        self._bounds = bounds

    def cpu(self) -> torch.Tensor:
        """Returns them."""
        return self._bounds


class DraftBounds(torch.Tensor):
    """The host's ``kv_indptr`` on the device: [steps, requests * topk + 1]."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # parts of it are plain tensors
    on_cpu: torch.Tensor | None = None  # of the draft to come

    def __getitem__(self, index: Any) -> Any:
        """Returns a part; that of all steps is what the host copies to the CPU."""
        if self.on_cpu is not None and isinstance(index[0], slice):
            return _Known(self.on_cpu)
        return super().__getitem__(index)


def know_bounds(
    template: Callable[..., Any],
    steps: Any,
    forward_batch: ForwardBatch,
    *args: object,
    **kwargs: object,
) -> Any:
    """Around FlashInferMultiStepDraftBackend.common_template."""
    lens = forward_batch.seq_lens_cpu
    has_window = getattr(steps, "draft_window_size", 0) > 0  # from 0.5.21 on
    if lens is None or has_window:
        return template(steps, forward_batch, *args, **kwargs)
    if not isinstance(steps.kv_indptr, DraftBounds):
        steps.kv_indptr = steps.kv_indptr.as_subclass(DraftBounds)
    steps.kv_indptr.on_cpu = bounds_on_cpu(lens, steps.topk, steps.speculative_num_steps)
    try:
        return template(steps, forward_batch, *args, **kwargs)
    finally:
        steps.kv_indptr.on_cpu = None
