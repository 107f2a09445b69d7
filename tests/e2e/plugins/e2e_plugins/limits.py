"""Looks at every round whose requests set something for themselves.

/server_info shows as ``e2e_limits``: rounds in which some request had a limit (``limited``), those
that drafted deeper than every request's (``too_deep``); rows with a limit in packed rounds
(``rows``), those of which nothing was verified (``none``) and those verified ``beyond`` it; rounds
that a request held at zero steps (``exact``), and those that drafted all the same (``drafted``).
"""

from collections.abc import Callable
from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from e2e_plugins.stand_in import CREATE_WORKER, SCHEDULER

account = dict.fromkeys(("limited", "too_deep", "rows", "none", "beyond", "exact", "drafted"), 0)


def look(plan_round: Callable[..., Any], controller: Any, batch: Any) -> Any:
    """Around before_decode."""
    launched = plan_round(controller, batch)
    limits, most, lens = batch.limits, batch.most_steps, launched.plan.verify_lens
    account["limited"] += bool(limits)
    account["too_deep"] += most is not None and launched.tier.num_steps > most
    account["exact"] += batch.exact is not None
    account["drafted"] += batch.exact is not None and launched.tier.num_steps > 0
    for request, length in zip(batch.requests, lens or (), strict=lens is not None):
        if request in limits:
            account["rows"] += 1
            account["none"] += length == 1
            account["beyond"] += length - 1 > limits[request]
    return launched


def replace(worker_class: Any, *_args: Any, **_kw: Any) -> Any:
    from sglang_adaptive_spec.loop.controller import AdaptiveController

    own = AdaptiveController.before_decode
    if not getattr(own, "is_looked_at", False):

        def before_decode(controller: Any, batch: Any) -> Any:
            return look(own, controller, batch)

        before_decode.is_looked_at = True  # type: ignore[attr-defined]
        AdaptiveController.before_decode = before_decode  # type: ignore[method-assign]
    return worker_class


def show(result: Any, *_args: Any, **_kw: Any) -> Any:
    result.internal_state |= {"e2e_limits": dict(account)}
    return result


def register() -> None:
    HookRegistry.register(CREATE_WORKER, replace, HookType.AFTER)
    HookRegistry.register(f"{SCHEDULER}.get_internal_state", show, HookType.AFTER)
