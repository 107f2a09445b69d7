"""Hooks that one process needs at once, through the host's own HookRegistry."""

from collections.abc import Callable, Sequence
from pkgutil import resolve_name
from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

Hook = tuple[str, Callable[..., Any], HookType]  # dotted path, hook, how it is applied
_hooked: set[Hook] = set()


def hook_now(hooks: Sequence[Hook]) -> None:
    """Hooks host symbols in this process alone; what is hooked already stays so.

    Raises:
        RuntimeError: The host did not apply one.
    """
    new = [each for each in hooks if each not in _hooked]
    before = [resolve_name(target) for target, _, _ in new]
    for target, hook, hook_type in new:
        HookRegistry.register(target, hook, hook_type)
    HookRegistry.apply_hooks()
    for (target, _, _), unhooked in zip(new, before, strict=True):
        if resolve_name(target) is unhooked:  # the host hooks a target once, and logs what fails
            raise RuntimeError(
                f"ADAPTIVE_EAGLE could not hook {target}: another plugin did so before, or the log "
                "above says why. SGLANG_PLUGINS names the plugins to load."
            )
    _hooked.update(new)
