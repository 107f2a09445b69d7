"""A policy in the place of the server's own, which is still asked for everything but the choice."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from sglang_adaptive_spec.host.serving.rows import row_keys
from sglang_adaptive_spec.ladder import Ladder

SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"


_rid_of: dict[Any, str] = {}


def rids(requests: Iterable[Any]) -> list[str]:
    """Returns the ids that clients know the rows of a batch by."""
    return [_rid_of[request] for request in requests]


def note_rids(run: Callable[..., Any], scheduler: Any, batch: Any, *args: Any, **kw: Any) -> Any:
    """Remembers the ids of a batch before any policy is asked about it."""
    if batch.reqs:
        _rid_of.update(zip(row_keys(batch), [req.rid for req in batch.reqs], strict=True))
    return run(scheduler, batch, *args, **kw)


class StandIn:
    """What every policy of these tests has in common."""

    def __init__(self, policy: Any, tiers: Sequence[Any]) -> None:
        self._policy, self._tiers = policy, tiers
        self.ladder = Ladder(dict.fromkeys(policy.ladder.ranges, tiers))

    def observe_time(self, round_time: Any) -> None:
        self._policy.observe_time(round_time)

    def describe(self) -> Mapping[str, Any]:
        return dict(self._policy.describe())


def take_over(make: Callable[..., StandIn], show: Callable[[StandIn], Mapping[str, Any]]) -> None:
    """Lets the policy that ``make`` returns choose, and adds what ``show`` says to /server_info.

    It takes over once every tier is built, just before the scheduler reports that it is ready.
    """

    def replace(info: dict[str, Any], scheduler: Any, *_args: Any, **_kw: Any) -> dict[str, Any]:
        worker = scheduler.draft_worker
        tiers = [state.tier for state in worker.pool.states]
        worker.controller.policy = make(worker.controller.policy, tiers)
        return info

    def add(result: Any, scheduler: Any, *_args: Any, **_kw: Any) -> Any:
        result.internal_state |= show(scheduler.draft_worker.controller.policy)
        return result

    note_ids()
    HookRegistry.register(f"{SCHEDULER}.get_init_info", replace, HookType.AFTER)
    HookRegistry.register(f"{SCHEDULER}.get_internal_state", add, HookType.AFTER)


def note_ids() -> None:
    """Makes `rids` known."""
    HookRegistry.register(f"{SCHEDULER}.run_batch", note_rids, HookType.AROUND)
