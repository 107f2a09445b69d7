"""Packs every round for which there is a number of tokens, however little that gains.

No number is left out: on a busy CPU more tokens often seem to take less time, which leaves few.

Where the draft tells how sure it is, its confidence chooses after every other decision, whatever
that costs and whatever learned lengths expect.
"""

from itertools import count
from typing import Any

import numpy as np
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from e2e_plugins.stand_in import CREATE_WORKER


def always(worker_class: Any, *_args: Any, **_kw: Any) -> Any:
    """Lets any packed round beat any tier."""
    from sglang_adaptive_spec.policy.costs.widths import WidthCosts
    from sglang_adaptive_spec.policy.packing import Packing

    choose, turns = Packing.choose, count()
    if not getattr(choose, "is_always", False):

        def choose_always(packing: Packing, *args: Any) -> None:
            batch, tiers, survival, between_ms, _rate, confident = args
            if confident is not None and next(turns) % 2:
                survival = survival / 2
            choose(packing, batch, tiers, survival, between_ms, 0.0, confident)

        take = WidthCosts.__init__

        def take_in_order(costs: Any, table: Any, series: Any, *args: Any) -> None:
            take(costs, table, [in_order(each) for each in series], *args)

        WidthCosts.__init__ = take_in_order  # type: ignore[method-assign]
        choose_always.is_always = True  # type: ignore[attr-defined]
        Packing.choose = choose_always  # type: ignore[method-assign]
        WidthCosts.choosing_ms = lambda _self, tiers, _size: np.zeros(len(tiers))  # type: ignore
    return worker_class


def in_order(series: Any) -> Any:
    """Returns measured rounds, of which more tokens take more time."""
    ms = series.packed_ms
    return series._replace(packed_ms=dict(zip(sorted(ms), sorted(ms.values()), strict=True)))


def register() -> None:
    HookRegistry.register(CREATE_WORKER, always, HookType.AFTER)
