"""The server's own policy and ladder, but zero-step rounds run as many decodes as they may."""

from collections.abc import Sequence
from typing import Any

from e2e_plugins.stand_in import StandIn, take_over


class LongRuns(StandIn):
    """Asks the server's policy for the tier of every round."""

    def __init__(self, policy: Any, tiers: Sequence[Any]) -> None:
        super().__init__(policy, tiers)
        self.ladder = policy.ladder

    def choose(self, batch: Any) -> Any:
        return self._policy.choose(batch)

    def count_rounds(self, num_rounds: int) -> None:
        self._policy.count_rounds(num_rounds)

    def after_results(self) -> None:
        self._policy.after_results()

    def observe(self, observation: Any) -> None:
        self._policy.observe(observation)

    def run_length(self, batch: Any) -> int:
        return 1 << (int(batch.most_decodes).bit_length() - 1)


def register() -> None:
    take_over(LongRuns, lambda _: {})
