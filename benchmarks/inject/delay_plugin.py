"""Lets the GPU lag behind the CPU, to show that no plan is overwritten before it was copied.

Plans travel through pinned memory that rounds and decodes share (flashinfer/workspace.py in
host/attention). A CPU that is a round ahead would write the next one there too early, unless it
waits. So every forward of a model begins with a pause on the device alone.
"""

import os
from typing import Any

DELAY_ENV = "BENCH_GPU_DELAY_MS"
FORWARD = "sglang.srt.model_executor.model_runner.ModelRunner.forward"
CYCLES_PER_MS = 1_800_000  # of an H100 or H200, about


def register() -> None:
    """Installs the hook; does nothing in a server that no benchmark asked to be slow."""
    delay_ms = os.environ.get(DELAY_ENV)
    if delay_ms is None:
        return
    import torch
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    cycles = int(float(delay_ms) * CYCLES_PER_MS)

    def pause(*_args: Any, **_kwargs: Any) -> None:
        torch.cuda._sleep(cycles)  # launched, not waited for

    HookRegistry.register(FORWARD, pause, HookType.BEFORE)
