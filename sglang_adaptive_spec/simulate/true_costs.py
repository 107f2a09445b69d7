"""True costs to replay against: an H200 as an example, and what lies between its measurements.

Measured are a few depths and batch sizes (h200-llama-8b.json says where). Between two depths above
zero and between two batch sizes periods are linear, beyond the last ones they go on along the last
line, below the smallest batch they stay. A larger batch never costs less: the measurement's noise
says otherwise here and there. Context adds the bytes of its KV cache, read once per target forward
and once, by the draft's one layer, per step.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import msgspec
import numpy as np

from sglang_adaptive_spec.policy.tiers import PLAIN_TIER, Tier
from sglang_adaptive_spec.simulate.replay import CATCH_UP_ROUNDS, RoundCosts

FILE = Path(__file__).parent / "h200-llama-8b.json"


class NoSpeculation:
    """The host without a draft: zero steps that never catch one up."""

    catch_up_ms = 0.0

    def __init__(self, costs: RoundCosts) -> None:
        self._costs = costs

    def round_ms(self, tier: Tier, batch_size: int, context_tokens: int) -> float:
        """Returns the period of a plain decode round."""
        ms = self._costs.round_ms(tier, batch_size, context_tokens)
        return ms - self._costs.catch_up_ms / CATCH_UP_ROUNDS


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    origin: str
    computed: str
    context_tokens_per_request: int
    context_us_per_token: float
    draft_context_us_per_token: float
    catch_up_ms: float
    round_ms: dict[int, dict[int, float]]  # by batch size and num_steps


class ExampleCosts:
    """The measured H200 as `RoundCosts`."""

    def __init__(self) -> None:
        file = msgspec.json.decode(FILE.read_bytes(), type=_File)
        self.origin = file.origin
        self.catch_up_ms = file.catch_up_ms
        self._file = file
        self._sizes = sorted(file.round_ms)

    def round_ms(self, tier: Tier, batch_size: int, context_tokens: int) -> float:
        """Returns the period."""
        file = self._file
        beyond = context_tokens - file.context_tokens_per_request * batch_size
        slope_us = file.context_us_per_token + file.draft_context_us_per_token * tier.num_steps
        ms = _linear(self._sizes, self._by_size(tier.num_steps), batch_size)
        ms += slope_us * beyond / 1e3
        if tier == PLAIN_TIER:
            ms += self.catch_up_ms / CATCH_UP_ROUNDS
        return ms

    @cache  # noqa: B019 - one instance per process, a handful of depths
    def _by_size(self, num_steps: int) -> list[float]:
        periods = [self._at(size, num_steps) for size in self._sizes]
        rising: list[float] = np.maximum.accumulate(periods).tolist()
        return rising

    def _at(self, size: int, num_steps: int) -> float:
        measured = self._file.round_ms[size]
        if num_steps in measured:
            return measured[num_steps]
        depths = sorted(steps for steps in measured if steps > 0)
        return _line(depths, [measured[steps] for steps in depths], num_steps)


def _linear(sizes: Sequence[int], periods: Sequence[float], size: int) -> float:
    return periods[0] if size <= sizes[0] else _line(sizes, periods, size)


def _line(xs: Sequence[int], ys: Sequence[float], x: int) -> float:
    """Returns the value at x on the lines through the points, the outer ones prolonged."""
    right = min(max(int(np.searchsorted(xs, x)), 1), len(xs) - 1)
    left = right - 1
    return ys[left] + (ys[right] - ys[left]) * (x - xs[left]) / (xs[right] - xs[left])
