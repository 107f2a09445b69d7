"""A policy in the place of the server's own, which is still asked for everything but the choice."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from sglang_adaptive_spec.host.batch import row_keys
from sglang_adaptive_spec.ladder import Ladder

SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
CREATE_WORKER = "sglang.srt.speculative.spec_info.SpeculativeAlgorithm.create_worker"


_rid_of: dict[Any, str] = {}


def rids(requests: Iterable[Any]) -> list[str]:
    """Returns the ids that clients know the rows of a batch by."""
    return [_rid_of[request] for request in requests]


def note_rids(run: Callable[..., Any], scheduler: Any, batch: Any, *args: Any, **kw: Any) -> Any:
    """Remembers the ids of a batch before any policy is asked about it, or is not asked."""
    if batch.reqs:
        _rid_of.update(zip(row_keys(batch), [req.rid for req in batch.reqs], strict=True))
        if batch.forward_mode.is_decode():
            stand_in_of(scheduler).launch()
    return run(scheduler, batch, *args, **kw)


class StandIn:
    """What every policy of these tests has in common; the server's own answers all else."""

    rounds_at_once = 1
    wants_found = False

    def __init__(self, policy: Any, tiers: Sequence[Any]) -> None:
        self._policy, self._tiers = policy, tiers
        self.ladder = Ladder(dict.fromkeys(policy.ladder.ranges, tiers))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def launch(self) -> None:
        """Takes note of a decode round; `choose` may follow, or not (exact rounds and such)."""

    def count_rounds(self, _num_rounds: int) -> None:
        """Takes no notice: the rounds are not the policy's own."""

    def after_results(self) -> None:
        """Takes no notice."""

    def run_length(self, _batch: Any) -> int:
        return 1  # what a round gives shall follow from the choice alone

    def observe_time(self, round_time: Any) -> None:
        self._policy.observe_time(round_time)


def build_instead(
    make: Callable[..., StandIn], show: Callable[[StandIn], Mapping[str, Any]] = lambda _: {}
) -> None:
    """Lets ``make`` build the policy of every server, out of its own and all tiers that it has.

    /server_info then has its name as ``e2e_stand_in``, and what ``show`` says.
    """

    def replace(worker_class: Any, *_args: Any, **_kw: Any) -> Any:
        from sglang_adaptive_spec.host.serving import assemble

        own = assemble.build_policy
        if getattr(own, "is_stand_in", False):  # hooked in this process already
            return worker_class

        def build_policy(
            config: Any, initial_steps: int, ladder: Ladder, *rest: Any, **named: Any
        ) -> StandIn:
            return make(own(config, initial_steps, ladder, *rest, **named), ladder.tiers)

        build_policy.is_stand_in = True
        assemble.build_policy = build_policy
        return worker_class

    def add(result: Any, scheduler: Any, *_args: Any, **_kw: Any) -> Any:
        policy = stand_in_of(scheduler)
        result.internal_state |= {"e2e_stand_in": type(policy).__name__, **show(policy)}
        return result

    HookRegistry.register(CREATE_WORKER, replace, HookType.AFTER)
    HookRegistry.register(f"{SCHEDULER}.get_internal_state", add, HookType.AFTER)


def stand_in_of(scheduler: Any) -> StandIn:
    """Returns the stand-in of a server that serves."""
    policy = scheduler.draft_worker.controller.policy
    assert isinstance(policy, StandIn), policy
    return policy


def take_over(make: Callable[..., StandIn], show: Callable[[StandIn], Mapping[str, Any]]) -> None:
    """Does so, and makes request ids known."""
    note_ids()
    build_instead(make, show)


def note_ids() -> None:
    """Makes `rids` known."""
    HookRegistry.register(f"{SCHEDULER}.run_batch", note_rids, HookType.AROUND)
