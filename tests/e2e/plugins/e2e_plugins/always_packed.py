"""Packs every round for which there is a number of tokens, however little that gains."""

from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from e2e_plugins.stand_in import CREATE_WORKER


def always(worker_class: Any, *_args: Any, **_kw: Any) -> Any:
    """Lets any packed round beat any tier."""
    from sglang_adaptive_spec.policy.packing import Packing

    choose = Packing.choose
    if not getattr(choose, "is_always", False):

        def choose_always(packing: Packing, *args: Any) -> None:
            *rows, _rate, confident = args
            choose(packing, *rows, 0.0, confident)

        choose_always.is_always = True  # type: ignore[attr-defined]
        Packing.choose = choose_always  # type: ignore[method-assign]
    return worker_class


def register() -> None:
    HookRegistry.register(CREATE_WORKER, always, HookType.AFTER)
