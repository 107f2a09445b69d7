"""The seeded walk through all tiers, but requests named so stay at one depth.

A batch with a request whose id begins with ``at-3-`` runs at three steps for as long as it is
there. So one server shows what a depth gives and what switching gives.
"""

import re
from typing import Any

from e2e_plugins.forced_switch import WalkAllTiers, shown
from e2e_plugins.stand_in import rids, take_over
from sglang_adaptive_spec.tiers import Plan


class WalkUnlessPinned(WalkAllTiers):
    """Walks on in the rounds in which nobody is pinned."""

    def choose(self, batch: Any) -> Any:
        pins = {match[1] for rid in rids(batch.requests) if (match := re.match(r"at-(\d+)-", rid))}
        if not pins:
            return super().choose(batch)
        (steps,) = pins
        (tier,) = (tier for tier in self._tiers if tier.num_steps == int(steps))
        self._launched[-1] = tier
        return Plan(tier)


def register() -> None:
    take_over(WalkUnlessPinned, shown)
