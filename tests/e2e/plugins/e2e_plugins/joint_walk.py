"""Another tier in every round of ranks whose rounds run together, and runs of any length.

The first rank's choice is everybody's. `vote_alone` is a mutant: another rank chooses for itself.
"""

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

from e2e_plugins.stand_in import StandIn, build_instead
from sglang_adaptive_spec.tiers import PLAIN_TIER, Plan

SEED = 20
LENGTHS = (1, 2, 4, 8)
STAYS = 0.6  # chance of another round at zero steps


class JointWalk(StandIn):
    """Draws tiers; zero steps stay for a while, so that runs and catch-ups come."""

    def __init__(self, policy: Any, tiers: Sequence[Any]) -> None:
        super().__init__(policy, tiers)
        self._random = random.Random(SEED)
        self._last: Any = None
        self.ran: Counter[str] = Counter()  # rounds by tier and decodes
        self.num_catch_ups = 0

    def choose(self, _batch: Any) -> Any:
        if self._last != PLAIN_TIER or self._random.random() > STAYS:
            self._last = self._random.choice([tier for tier in self._tiers if tier != self._last])
        return Plan(self._last)

    def run_length(self, batch: Any) -> int:
        return self._random.choice([each for each in LENGTHS if each <= batch.most_decodes])

    def observe(self, observation: Any) -> None:
        plan = observation.plan
        self.ran[f"{plan.tier.label} x{plan.num_decodes}"] += 1
        self.num_catch_ups += plan.is_catch_up
        self._policy.observe(observation)


def shown(walk: JointWalk) -> dict[str, Any]:
    """What /server_info says of a walk."""
    return {"e2e_ran": dict(walk.ran), "e2e_catch_ups": walk.num_catch_ups}


def register() -> None:
    build_instead(JointWalk, shown)


def vote_alone() -> None:
    """Lets every rank but the first choose for itself: what agreement is there to prevent."""
    from sglang_adaptive_spec.loop.joint import JointController

    agreed, draws = JointController._choose, random.Random(SEED)

    def choose(controller: Any, batch: Any) -> Any:
        chosen = agreed(controller, batch)
        if controller.is_first:
            return chosen
        return chosen._replace(tier=draws.choice(controller.policy.ladder.tiers))

    JointController._choose = choose
