"""Looks into a scheduler, and takes our hooks out of one as a broken installation would."""

import multiprocessing
from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

INTERNAL_STATE = "sglang.srt.managers.scheduler.Scheduler.get_internal_state"


def show_worker() -> None:
    """Adds the class of the draft worker to /server_info, as ``e2e_worker``."""
    HookRegistry.register(INTERNAL_STATE, _add_worker, HookType.AFTER)


def _add_worker(result: Any, scheduler: Any, *_args: Any, **_kw: Any) -> Any:
    kind = type(scheduler.draft_worker)
    result.internal_state["e2e_worker"] = f"{kind.__module__}.{kind.__qualname__}"
    return result


def drop_our_hooks_in_children() -> None:
    """Leaves every child process without our hooks."""
    if multiprocessing.parent_process() is not None:
        drop_our_hooks()


def drop_our_hooks() -> None:
    """Leaves this process without our hooks, whenever they are registered."""
    apply_hooks = HookRegistry.apply_hooks

    def apply_others() -> None:
        for target, hooks in list(HookRegistry._hooks.items()):
            HookRegistry._hooks[target] = [hook for hook in hooks if not _is_ours(hook[1])]
            if not HookRegistry._hooks[target]:
                del HookRegistry._hooks[target]
        apply_hooks()

    HookRegistry.apply_hooks = apply_others


def _is_ours(hook: Any) -> bool:
    return str(hook.__module__).startswith("sglang_adaptive_spec")
