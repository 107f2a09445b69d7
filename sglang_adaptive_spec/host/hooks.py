"""Hooks that one process needs at once, through the host's own HookRegistry."""

from collections.abc import Callable, Mapping
from pkgutil import resolve_name
from typing import Any, TypeAlias

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from sglang_adaptive_spec.contract.table import HOOK_TARGETS

# By the name of what they hook, as the contract has it: "Class.method" or "function".
Hooks: TypeAlias = Mapping[str, Callable[..., Any]]
AROUND, AFTER = HookType.AROUND, HookType.AFTER
_hooked: set[tuple[str, Callable[..., Any], HookType]] = set()


def hook_now(hooks: Hooks, kind: HookType = AROUND) -> None:
    """Hooks host symbols in this process alone; what is hooked already stays so.

    Hooks of a worker are its own methods, and the host hooks a target once. So a process serves
    one worker, as SGLang's scheduler processes do.

    Raises:
        RuntimeError: The host did not apply one.
    """
    targets = ((HOOK_TARGETS[name], hook, kind) for name, hook in hooks.items())
    new = [each for each in targets if each not in _hooked]
    before = [resolve_name(target) for target, *_ in new]
    for target, hook, kind in new:
        HookRegistry.register(target, hook, kind)
    HookRegistry.apply_hooks()
    for (target, *_), unhooked in zip(new, before, strict=True):
        if resolve_name(target) is unhooked:  # the host hooks a target once, and logs what fails
            raise RuntimeError(
                f"ADAPTIVE_EAGLE could not hook {target}: another plugin, or a worker of this "
                "process, did so before, or the log above says why. SGLANG_PLUGINS names the "
                "plugins to load."
            )
    _hooked.update(new)
