"""Round times with a heavy tail: some rounds are measured, or really take, many times too long.

A share of rounds takes 2 to 20 times its period (logs evenly spread), one by one or in spells. A
stall may lie in the time itself, round by round, or in the clock alone, reading by reading. The
first round of a tier at a batch size is slow besides, as where kernels load or caches fill.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sglang_adaptive_spec.tiers import Tier

LEAST_FACTOR, MOST_FACTOR = 2.0, 20.0


@dataclass(frozen=True, slots=True)
class Tail:
    """How often rounds take too long, and whether they do or only the clock says so."""

    share: float  # of rounds
    spell_rounds: int = 1  # mean length of a spell; 1: each round by itself
    is_real: bool = True  # else the clock alone
    first_factor: float = 5.0  # of a tier's first round at a batch size, in the time itself


class Stalls:
    """Draws how many times too long rounds and readings are."""

    def __init__(self, tail: Tail, seed: int = 1) -> None:
        self._tail = tail
        self._factors = _factors(tail, np.random.default_rng((seed, 1)))
        self._used: set[tuple[Tier, int]] = set()

    def of_round(self, tier: Tier, batch_size: int) -> float:
        """Returns how many times its period the next round takes."""
        factor = next(self._factors) if self._tail.is_real else 1.0
        if (tier, batch_size) in self._used:
            return factor
        self._used.add((tier, batch_size))
        return max(factor, self._tail.first_factor)

    def of_reading(self) -> float:
        """Returns by what the clock multiplies the next period it tells."""
        return 1.0 if self._tail.is_real else next(self._factors)


def _factors(tail: Tail, luck: np.random.Generator) -> Iterator[float]:
    """Yields factors whose share and mean spell are those of ``tail``."""
    end = 1 / tail.spell_rounds  # chance that a spell is over
    begin = end * tail.share / (1 - tail.share)
    has_spells = tail.spell_rounds > 1
    is_slow = False
    while True:
        stays = is_slow and has_spells
        is_slow = luck.random() < (1 - end if stays else begin if has_spells else tail.share)
        log = luck.uniform(math.log(LEAST_FACTOR), math.log(MOST_FACTOR))
        yield math.exp(log) if is_slow else 1.0
