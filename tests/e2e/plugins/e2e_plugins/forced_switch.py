"""Replaces the policy of a ready scheduler by a seeded walk: another choice in every round.

The walk keeps its own account of what then ran, from what it is told; /server_info shows it as
``e2e_walk``, and what every round of a request accepted as ``e2e_rounds``. A choice to draft while
the draft is behind is to run as a zero-step round instead. A ladder of one tier stays at it.
"""

import random
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
SEED = 20


class WalkAllTiers:
    """Never chooses the same twice, so that each tier follows each other one."""

    def __init__(self, policy: Any, tiers: Sequence[Any]) -> None:
        self._policy, self._tiers = policy, tiers
        self._random = random.Random(SEED)
        self._last: Any = None
        self._launched: deque[Any] = deque()  # what was chosen for the rounds in flight
        self._ran: Any = None
        self._behind: set[Any] = set()  # requests whose newest round was a zero-step one
        # request id: per round [the tier's name, accepted drafts]
        self.rounds: dict[Any, list[list[Any]]] = defaultdict(list)
        self.account = dict.fromkeys(
            ("rounds", "changes", "plain_chosen", "catch_ups", "needless_catch_ups", "wrong"), 0
        )

    def choose(self, _batch: Any) -> Any:
        others = [tier for tier in self._tiers if tier != self._last]
        self._last = self._random.choice(others or self._tiers)
        self._launched.append(self._last)
        return self._last

    def observe(self, observation: Any) -> None:
        self._policy.observe(observation)
        for rid, accepted in zip(observation.requests, observation.num_correct_drafts, strict=True):
            self.rounds[rid].append([observation.tier.label, accepted])
        chosen, ran = self._launched.popleft(), observation.tier
        account, requests = self.account, set(observation.requests)
        account["rounds"] += 1
        account["changes"] += self._ran not in (None, ran)
        account["plain_chosen"] += chosen.num_steps == 0
        was_behind, self._ran = bool(requests & self._behind), ran
        if chosen.num_steps == 0:
            account["wrong"] += ran != chosen
            self._behind = requests
        elif ran.num_steps == 0:
            account["catch_ups"] += 1
            account["needless_catch_ups"] += not was_behind
            self._behind = set()
        else:
            account["wrong"] += was_behind or ran != chosen
            self._behind = set()

    def observe_time(self, round_time: Any) -> None:
        self._policy.observe_time(round_time)

    def reachable(self, _batch_size: int) -> Sequence[Any]:
        return self._tiers

    def slot(self, batch_size: int) -> int:
        return int(self._policy.slot(batch_size))

    def without(self, tiers: Iterable[Any]) -> Any:
        raise NotImplementedError("only asked before serving")

    def describe(self) -> Mapping[str, Any]:
        return dict(self._policy.describe())


def walk_all_tiers(info: dict[str, Any], scheduler: Any, *_args: Any, **_kw: Any) -> dict[str, Any]:
    """Takes over once every tier is built, just before the scheduler reports that it is ready."""
    worker = scheduler.draft_worker
    tiers = [state.tier for state in worker.pool.states]
    worker.controller.policy = WalkAllTiers(worker.controller.policy, tiers)
    return info


def show_walk(result: Any, scheduler: Any, *_args: Any, **_kw: Any) -> Any:
    """Adds the walk's account to /server_info."""
    walk = scheduler.draft_worker.controller.policy
    result.internal_state["e2e_walk"] = dict(walk.account)
    result.internal_state["e2e_rounds"] = dict(walk.rounds)
    return result


def register() -> None:
    HookRegistry.register(f"{SCHEDULER}.get_init_info", walk_all_tiers, HookType.AFTER)
    HookRegistry.register(f"{SCHEDULER}.get_internal_state", show_walk, HookType.AFTER)
