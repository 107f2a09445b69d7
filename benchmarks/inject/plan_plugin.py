"""Takes one part away from how ADAPTIVE_EAGLE plans for FlashInfer, to show what it brings.

``mask``: chains have the mask of a tree again; ``tile``: tiles are sized for ragged rows;
``verify-sync`` and ``draft-sync``: the plan waits for the device, as reading lengths back does;
``lengths``: the scheduler waits for lengths before a draft.
"""

import os
from types import SimpleNamespace
from typing import Any

WITHOUT_ENV = "BENCH_PLAN_WITHOUT"
BACKENDS = "sglang.srt.managers.scheduler.Scheduler.init_all_attention_backends"


def take_away(part: str) -> None:
    """Changes the plugin in this process."""
    import torch

    from sglang_adaptive_spec.host.attention.flashinfer import draft_bounds
    from sglang_adaptive_spec.host.attention.flashinfer import plans as module
    from sglang_adaptive_spec.host.serving import worker

    plans: Any = module
    if part == "mask":
        plans.SimpleNamespace = lambda custom_mask: SimpleNamespace(custom_mask=not custom_mask)
    elif part == "tile":
        own_plan = plans.PlannedModule.plan

        def ragged(module: Any, *args: Any) -> Any:
            module._width = (0,) * len(module._width)
            return own_plan(module, *args)

        plans.PlannedModule.plan = ragged
    elif part == "verify-sync":
        own_call = plans.VerifyPlan.__call__

        def waiting(plan: Any, *args: Any, **kwargs: Any) -> None:
            torch.cuda.current_stream().synchronize()
            own_call(plan, *args, **kwargs)

        plans.VerifyPlan.__call__ = waiting
    elif part == "lengths":
        vars(worker)["may_be_late"] = lambda *_args: False
    else:
        assert part == "draft-sync", part
        vars(draft_bounds)["bounds_on_cpu"] = lambda *_args: None


def register() -> None:
    """Installs the hook; does nothing in a server that no benchmark asked to do without."""
    part = os.environ.get(WITHOUT_ENV)
    if part is None:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(BACKENDS, lambda *_args, **_kw: take_away(part), HookType.BEFORE)
