"""True costs to replay against: an H200 as an example, and what lies between its measurements.

Measured are a few depths and batch sizes (each file says where). Between two depths above
zero and between two batch sizes periods are linear, beyond the last ones they go on along the last
line, below the smallest batch they stay. A larger batch never costs less: the measurement's noise
says otherwise here and there. Context adds the bytes of its KV cache, read once per target forward
and once, by the draft's one layer, per step.
"""

from collections.abc import Sequence
from functools import cache
from itertools import product
from pathlib import Path

import msgspec
import numpy as np

from sglang_adaptive_spec.policy.costs.cache import CostFile
from sglang_adaptive_spec.policy.costs.table import CostTable
from sglang_adaptive_spec.simulate.replay import RoundCosts
from sglang_adaptive_spec.tiers import CATCH_UP_ROUNDS, PLAIN_TIER, Tier

# What start-up measures (host/startup/seeding.py).
SEEDED_SIZES = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128)
SEEDED_CONTEXTS = (256, 16384)
SEEDED_ROUNDS = 3  # whose mean is a seed and whose spread says how far to trust it

# By attention backend.
EXAMPLES = {"flashinfer": "h200-llama-8b.json", "fa3": "h200-llama-8b-fa3.json"}
DEFAULT_EXAMPLE = "fa3"  # SGLang's default on that GPU


class NoSpeculation:
    """The host without a draft: zero steps that never catch one up."""

    def __init__(self, costs: RoundCosts) -> None:
        self._costs = costs

    def round_ms(self, tier: Tier, batch_size: int, context_tokens: int) -> float:
        """Returns the period of a plain decode round."""
        ms = self._costs.round_ms(tier, batch_size, context_tokens)
        return ms - self._costs.plain_extra_ms(batch_size, context_tokens)

    def plain_extra_ms(self, batch_size: int, context_tokens: int) -> float:
        """Returns 0: there is no draft to catch up."""
        return 0.0


def seed_table(
    table: CostTable, costs: RoundCosts, *, noise: float = 0.0, seed: int = 1
) -> CostTable:
    """Fills ``table`` with what a server's start-up would have measured of ``costs``.

    Args:
        noise: Relative standard deviation of a seed, the mean of `SEEDED_ROUNDS` rounds.
    """
    luck, samples = np.random.default_rng(seed), np.random.default_rng(seed)
    for tier, size, context in product(table.tiers, SEEDED_SIZES, SEEDED_CONTEXTS):
        context_tokens = size * context
        ms = costs.round_ms(tier, size, context_tokens)
        error = 1 + noise * float(luck.standard_normal())
        if tier == PLAIN_TIER:
            extra_ms = costs.plain_extra_ms(size, context_tokens)
            ms -= extra_ms
            longer_ms = ms + CATCH_UP_ROUNDS * extra_ms
            table.seed(tier, size, context_tokens, longer_ms * error, is_catch_up=True)
        deviations = float(samples.chisquare(SEEDED_ROUNDS - 1)) / (SEEDED_ROUNDS - 1)
        spread = noise * deviations**0.5
        table.seed(tier, size, context_tokens, ms * error, spread=spread)
    table.fit()
    return table


def read_table(path: Path) -> CostTable:
    """Returns the table in a cost-cache file of any server, at the drift of start-up.

    Raises:
        ValueError: It cannot be read, or is no such file.
    """
    try:
        table = CostTable.from_dict(msgspec.json.decode(path.read_bytes(), type=CostFile).costs)
    except (OSError, msgspec.DecodeError, ValueError) as error:
        raise ValueError(
            f"{path} holds no costs ({error}); fix: name a costs-*.json of a server's cache folder."
        ) from error
    table.forget_drift()
    return table


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    origin: str
    computed: str
    context_tokens_per_request: int
    context_us_per_token: float
    draft_context_us_per_token: float
    catch_up_ms: float
    round_ms: dict[int, dict[int, float]]  # by batch size and num_steps


class ExampleCosts:
    """The measured H200 as `RoundCosts`; ``backend`` is a key of `EXAMPLES`."""

    def __init__(self, backend: str = DEFAULT_EXAMPLE) -> None:
        path = Path(__file__).parent / EXAMPLES[backend]
        file = msgspec.json.decode(path.read_bytes(), type=_File)
        self.origin = file.origin
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
            ms += self.plain_extra_ms(batch_size, context_tokens)
        return ms

    def plain_extra_ms(self, batch_size: int, context_tokens: int) -> float:
        """Returns a catch-up's share of every zero-step round."""
        return self._file.catch_up_ms / CATCH_UP_ROUNDS

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
        return line(depths, [measured[steps] for steps in depths], num_steps)


def _linear(sizes: Sequence[int], periods: Sequence[float], size: int) -> float:
    return periods[0] if size <= sizes[0] else line(sizes, periods, size)


def line(xs: Sequence[int], ys: Sequence[float], x: int) -> float:
    """Returns the value at x on the lines through the points, the outer ones prolonged."""
    right = min(max(int(np.searchsorted(xs, x)), 1), len(xs) - 1)
    left = right - 1
    return ys[left] + (ys[right] - ys[left]) * (x - xs[left]) / (xs[right] - xs[left])
