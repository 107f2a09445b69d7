"""The seeded walk, which stays at zero steps for a while and runs several decodes a round there."""

from typing import Any

from e2e_plugins.forced_switch import WalkAllTiers, shown
from e2e_plugins.stand_in import take_over
from sglang_adaptive_spec.tiers import Plan

LENGTHS = (1, 2, 4, 8)
STAYS = 0.85  # chance of another round at zero steps


class WalkRuns(WalkAllTiers):
    """Draws how long it stays, and the decodes of every round."""

    def choose(self, batch: Any) -> Any:
        if self._last is None or self._last.num_steps or self._random.random() > STAYS:
            return super().choose(batch)
        self._launched[-1] = self._last
        return Plan(self._last)

    def run_length(self, batch: Any) -> int:
        fitting = [length for length in LENGTHS if length <= batch.most_decodes]
        return self._random.choice(fitting)


def register() -> None:
    take_over(WalkRuns, shown)
