"""Replaces the policy of a ready scheduler by a seeded walk: another tier in every round."""

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

READY = "sglang.srt.managers.scheduler.Scheduler.get_init_info"
SEED = 20


class WalkAllTiers:
    """Never stays: every round another tier, so that each tier follows each other one."""

    def __init__(self, policy: Any, tiers: Sequence[Any]) -> None:
        self._policy, self._tiers = policy, tiers
        self._random = random.Random(SEED)
        self._last: Any = None

    def choose(self, _batch_size: int) -> Any:
        self._last = self._random.choice([tier for tier in self._tiers if tier != self._last])
        return self._last

    def observe(self, observation: Any) -> None:
        self._policy.observe(observation)

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


def register() -> None:
    HookRegistry.register(READY, walk_all_tiers, HookType.AFTER)
