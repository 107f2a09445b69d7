"""The visit to zero steps in fewer rounds, each of as many decodes as there is room for."""

from typing import Any

from e2e_plugins import visit_zero

LAST_ROUND = visit_zero.FIRST_ROUND + 11  # of the visit, in 12 rounds


class VisitRuns(visit_zero.VisitZero):
    """Runs 4 decodes a round, then as many as are left until the draft catches up."""

    last_round = LAST_ROUND

    def run_length(self, batch: Any) -> int:
        return max(length for length in (1, 2, 4, 8) if length <= batch.most_decodes)


def register() -> None:
    visit_zero.register(VisitRuns)
