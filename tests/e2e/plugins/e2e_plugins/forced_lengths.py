"""The walk through all tiers, where every drafting round verifies another length of each row.

/server_info shows as ``e2e_packed``: ``rows`` packed, of which ``shortened`` were verified
less far than they drafted, of which ``cut`` had all verified drafts accepted, of which the next one
would have ``held``; and rows that accepted drafts ``beyond`` those verified.
"""

import random
from typing import Any

from e2e_plugins.forced_switch import SEED, WalkAllTiers, shown
from e2e_plugins.stand_in import take_over


class WalkAllLengths(WalkAllTiers):
    """Draws for each row how many of its tokens are verified, the root alone among them."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._lengths = random.Random(SEED)
        self.packed = dict.fromkeys(("rows", "shortened", "cut", "held", "beyond"), 0)

    def choose(self, batch: Any) -> Any:
        plan = super().choose(batch)
        if not plan.tier.num_steps:
            return plan
        most = plan.tier.num_draft_tokens
        return plan._replace(
            verify_lens=tuple(self._lengths.randint(1, most) for _ in batch.requests)
        )

    def observe(self, observation: Any) -> None:
        super().observe(observation)
        if observation.plan.verify_lens is None:
            return
        steps, packed = observation.tier.num_steps, self.packed
        counts, firsts = observation.num_correct_drafts, observation.first_draft_correct
        for kept, accepted, first in zip(observation.kept, counts, firsts, strict=True):
            packed["rows"] += 1
            assert (first is None) == (kept == steps or accepted < kept)
            packed["held"] += first is True
            packed["shortened"] += kept < steps
            packed["cut"] += kept < steps and accepted == kept
            packed["beyond"] += accepted > kept


def shown_packed(walk: WalkAllLengths) -> dict[str, Any]:
    """What /server_info says of it."""
    return {**shown(walk), "e2e_packed": dict(walk.packed)}


def register() -> None:
    take_over(WalkAllLengths, shown_packed)
