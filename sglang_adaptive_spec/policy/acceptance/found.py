"""How often a table has drafts: shares of requests that had one at a position.

A head always has one. A table has as many in a row as it saw follow the same words before, and the
rest of a round is padding. A position's hazard is that of the drafts that were there; times the
share of those before it that were followed by one, it is what a round will hold whose look-up is
yet to come. A text begins and ends to repeat at once, so little is remembered.
"""

from collections.abc import Sequence

import numpy as np

from sglang_adaptive_spec.policy.acceptance.hazards import Floats
from sglang_adaptive_spec.policy.settings import AcceptanceSettings


class FoundShares:
    """Owns discounted sums, over rounds, of shares of requests by their drafts in a row."""

    def __init__(self, max_steps: int, settings: AcceptanceSettings) -> None:
        self._settings = settings
        self._depths = np.arange(max_steps + 1)[:, None]
        self._sums = np.zeros(max_steps + 1)  # with d drafts or more; d = 0: rounds

    def add(self, found: Sequence[int]) -> None:
        """Counts a round: drafts in a row per request."""
        self._sums *= np.exp(-1.0 / self._settings.found_memory_rounds)
        self._sums += (np.array(found) >= self._depths).mean(axis=1)

    def shorten_memory(self) -> None:
        """Remembers few rounds: what comes may be of another kind."""
        fresh_rounds = self._settings.found_fresh_rounds
        if self._sums[0] > fresh_rounds:
            self._sums *= fresh_rounds / self._sums[0]

    def times(self, hazards: Floats) -> Floats:
        """Returns hazards [num_steps, requests] of drafts that may be missing."""
        if self._sums[0] == 0.0:
            return hazards
        followed = self._sums[1:] / np.maximum(self._sums[:-1], 1e-9)
        missing: Floats = hazards * np.minimum(followed, 1.0)[:, None]
        return missing

    def describe(self) -> list[float]:
        """Returns the share of requests with a draft at each position."""
        total = max(float(self._sums[0]), 1e-9)
        return [round(value / total, 4) for value in self._sums[1:].tolist()]
