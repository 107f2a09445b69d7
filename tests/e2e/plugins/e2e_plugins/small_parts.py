"""Catches the draft up four requests at a time, as if decode graphs held no more.

How many rows the parts had is shown in /server_info, as ``e2e_parts``: {rows: parts}.
"""

from collections import Counter
from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
PART_SIZE = 4

parts: Counter[int] = Counter()


def register() -> None:
    from sglang_adaptive_spec.host.drafters import parts as draft_parts

    rows_of = draft_parts.rows_of

    def counted(batch: Any, part: slice) -> Any:
        rows = rows_of(batch, part)
        parts[len(rows.reqs)] += 1
        return rows

    draft_parts.rows_of = counted
    HookRegistry.register(f"{SCHEDULER}.get_init_info", shrink, HookType.AFTER)
    HookRegistry.register(f"{SCHEDULER}.get_internal_state", show, HookType.AFTER)


def shrink(info: Any, scheduler: Any, *_args: Any, **_kw: Any) -> Any:
    scheduler.draft_worker.drafter.catch_ups.part_size = PART_SIZE
    return info


def show(result: Any, _scheduler: Any, *_args: Any, **_kw: Any) -> Any:
    result.internal_state["e2e_parts"] = {str(size): count for size, count in parts.items()}
    return result
