"""What prefills between decode rounds take, as far as a tier can save it.

Where requests come and go all the time, the host lets new ones in before almost every round. Of
that time a part is the same for one request and for ten: a round that gives more tokens ends more
of them at once, and they are let in together. With j requests let in per token, and e tokens a
round, an extend comes before the next round with probability 1 - exp(-j * e), so

    between_ms(t) = fixed_ms * (1 - exp(-j * expected_tokens(t)))

and a run of several decodes at zero steps shares it. ``fixed_ms`` is what a line through the last
interrupted periods has for no request: beyond the expected round, over the requests let in.
"""

import math
from collections import deque
from statistics import median

import numpy as np

from sglang_adaptive_spec.policy.acceptance.hazards import Floats
from sglang_adaptive_spec.policy.per_token import PerToken
from sglang_adaptive_spec.policy.settings import InterruptionSettings
from sglang_adaptive_spec.size_classes import size_class, size_range
from sglang_adaptive_spec.tiers import RoundTime


class Interruptions:
    """Owns the newest interrupted periods, by size class, and who was let in."""

    def __init__(self, settings: InterruptionSettings) -> None:
        self._settings = settings
        self._periods: dict[int, deque[tuple[int, float]]] = {}  # requests let in, ms beyond
        self._fixed_ms: dict[int, float] = {}  # where it was asked for since the newest period
        self._joined = PerToken(settings.memory_tokens)  # requests let in beside others

    def count_tokens(self, num_tokens: int) -> None:
        """Counts the tokens of a finished round."""
        self._joined.count_tokens(num_tokens)

    def count_joined(self, num_requests: int) -> None:
        """Counts requests that were let in beside others."""
        self._joined.count(num_requests)

    def learn(self, round_time: RoundTime, expected_ms: float) -> None:
        """Takes a period with an extend in it, and what its round takes alone."""
        sizes = size_class(round_time.batch_size)
        periods = self._periods.setdefault(sizes, deque(maxlen=self._settings.window))
        periods.append((round_time.num_joined, round_time.ms - expected_ms))
        self._fixed_ms.pop(sizes, None)

    def between_ms(self, batch_size: int, tokens: Floats | float, decodes: Floats) -> Floats:
        """Returns what comes between two decodes.

        Args:
            batch_size: Requests.
            tokens: [tiers] of all of them, expected of one decode; or one number for all tiers.
            decodes: [tiers] of a round.
        """
        fixed_ms = self._fixed_of(size_class(batch_size))
        if fixed_ms == 0.0:
            return np.zeros_like(decodes)
        joined: Floats = self._joined.rate * tokens * decodes
        return -fixed_ms * np.expm1(-joined) / decodes

    def describe(self) -> dict[str, object]:
        """Returns fixed ms by batch size, and requests let in per token."""
        fixed = {
            size_range(sizes): round(self._fixed_of(sizes), 3) for sizes in sorted(self._periods)
        }
        return {"fixed_ms": fixed, "joined_per_token": round(self._joined.rate, 6)}

    def _fixed_of(self, sizes: int) -> float:
        fixed_ms = self._fixed_ms.get(sizes)
        if fixed_ms is None:
            fixed_ms = self._fixed_ms[sizes] = self._fit(sizes)
        return fixed_ms

    def _fit(self, sizes: int) -> float:
        """Returns where the line meets no request; without evidence all is said to be theirs."""
        periods, settings = self._periods.get(sizes, ()), self._settings
        if len(periods) < settings.min_periods:
            return 0.0
        joined, beyond = np.array(periods).T
        usual = beyond <= settings.outlier * max(median(beyond.tolist()), 0.0)
        joined, beyond = joined[usual], beyond[usual]
        if len(joined) < settings.min_periods / 2:
            return 0.0
        middle, height = float(joined.mean()), float(beyond.mean())
        prior = settings.slope_weight * middle**2  # of a line through the origin
        off = joined - middle
        # Not by BLAS, which rounds differently on another kind of CPU.
        slope = (float((off * beyond).mean()) + prior * height / middle) / (
            float((off * off).mean()) + prior
        )
        fixed_ms = height - max(slope, 0.0) * middle
        doubt_ms = settings.doubt_z * float(beyond.std()) / math.sqrt(len(beyond))
        return fixed_ms if fixed_ms > doubt_ms else 0.0
