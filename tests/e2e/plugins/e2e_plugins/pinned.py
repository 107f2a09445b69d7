"""The seeded walk through all tiers, but requests named so stay at one depth.

A batch with a request whose id begins with ``at-3-`` runs at three steps for as long as it is
there. So one server shows what a depth gives and what switching gives.
"""

import re
from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from e2e_plugins.forced_switch import SCHEDULER, WalkAllTiers, show_walk


class WalkUnlessPinned(WalkAllTiers):
    """Walks on in the rounds in which nobody is pinned."""

    def choose(self, batch: Any) -> Any:
        pins = {match[1] for rid in batch.requests if (match := re.match(r"at-(\d+)-", rid))}
        if not pins:
            return super().choose(batch)
        (steps,) = pins
        (tier,) = (tier for tier in self._tiers if tier.num_steps == int(steps))
        self._launched.append(tier)
        return tier


def take_over(info: dict[str, Any], scheduler: Any, *_args: Any, **_kw: Any) -> dict[str, Any]:
    """Takes over once every tier is built, just before the scheduler reports that it is ready."""
    worker = scheduler.draft_worker
    tiers = [state.tier for state in worker.pool.states]
    worker.controller.policy = WalkUnlessPinned(worker.controller.policy, tiers)
    return info


def register() -> None:
    HookRegistry.register(f"{SCHEDULER}.get_init_info", take_over, HookType.AFTER)
    HookRegistry.register(f"{SCHEDULER}.get_internal_state", show_walk, HookType.AFTER)
