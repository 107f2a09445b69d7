"""Never leaves zero steps, where a round runs as many decodes as a seeded walk draws."""

from typing import Any

from e2e_plugins.forced_switch import shown
from e2e_plugins.runs import WalkRuns
from e2e_plugins.stand_in import take_over
from sglang_adaptive_spec.tiers import Plan


class StayInRuns(WalkRuns):
    """Draws the decodes of every round, and no tier."""

    def choose(self, _batch: Any) -> Any:
        (self._last,) = (tier for tier in self._tiers if tier.num_steps == 0)
        self._launched[-1] = self._last
        return Plan(self._last)


def register() -> None:
    take_over(StayInRuns, shown)
