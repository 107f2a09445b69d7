"""Drafts start before the CPU knows lengths, as on FlashInfer, whose plans are what needs them.

The CPU's kernels read them from tensors, so a bound changes no draft. How many verifies fetched
their lengths is shown in /server_info, as ``e2e_fetched``.
"""

from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

num_fetched = 0


def register() -> None:
    from sglang_adaptive_spec.host.attention import lengths as module

    fetch = module.LateLengths.fetch

    def counted(lengths: Any, batch: Any) -> None:
        global num_fetched
        bound = batch.seq_lens_cpu
        fetch(lengths, batch)
        num_fetched += batch.seq_lens_cpu is not bound

    module.LateLengths.fetch = counted
    module.may_be_late = lambda *_: True
    target = "sglang.srt.managers.scheduler.Scheduler.get_internal_state"
    HookRegistry.register(target, show, HookType.AFTER)


def show(result: Any, _scheduler: Any, *_args: Any, **_kw: Any) -> Any:
    result.internal_state["e2e_fetched"] = num_fetched
    return result
