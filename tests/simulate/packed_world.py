"""Round times of an H200 with FA3, packed rounds among them, and traffic of unlike requests.

Llama-3.1-8B shapes, a one-layer EAGLE-3 draft, dummy weights, 150 tokens of context (medians of
windows of 0.3 s; a proof before this was built). Verifies by tokens: rounds of 64 requests that
drafted 7, less the shortest.
"""

from collections.abc import Sequence

import numpy as np

from sglang_adaptive_spec.config.schema import load_config
from sglang_adaptive_spec.policy.costs.curves import Floats
from sglang_adaptive_spec.policy.costs.widths import Series, WidthCosts
from sglang_adaptive_spec.policy.goodput import GoodputPolicy
from sglang_adaptive_spec.policy.packing import Packing
from sglang_adaptive_spec.simulate.command import goodput
from sglang_adaptive_spec.simulate.replay import Replay, ReplayResult
from sglang_adaptive_spec.simulate.synthetic import SyntheticWorkload
from sglang_adaptive_spec.tiers import CATCH_UP_ROUNDS, PLAIN_TIER, Tier, chain_tier

COST_NOISE = 0.02  # of every period that start-up measured
STEPS = (0, 1, 3, 5, 7)
ROUND_MS = {
    16: (5.1, 5.9, 6.6, 7.4, 8.2),
    32: (5.5, 6.3, 7.5, 9.3, 10.6),
    64: (6.1, 7.4, 10.1, 14.1, 17.1),
    128: (7.5, 10.5, 16.7, 24.5, 29.1),
}
TOKENS = (16, 128, 192, 256, 320, 384, 416, 448, 480, 512, 1024, 1408)
VERIFY_MS = (-0.6, 0.0, 1.3, 1.9, 3.4, 4.9, 6.1, 9.4, 6.3, 7.1, 18.3, 26.8)
PACKING_MS = 0.12
CATCH_UP_MS = 0.6
CONTEXT_US = 0.034  # a token: h200-llama-8b.json has how it was computed
USUAL_CONTEXT = 150


class Fa3Costs:
    """True costs, linear between what was measured."""

    def __init__(self) -> None:
        self._sizes = sorted(ROUND_MS)

    def round_ms(self, tier: Tier, batch_size: int, context_tokens: int) -> float:
        """Returns the period."""
        by_size = [np.interp(tier.num_steps, STEPS, ROUND_MS[size]) for size in self._sizes]
        # Beyond 7 steps as from 5 to 7.
        if tier.num_steps > STEPS[-1]:
            slopes = [(ROUND_MS[size][-1] - ROUND_MS[size][-2]) / 2 for size in self._sizes]
            more = tier.num_steps - STEPS[-1]
            by_size = [ms + more * slope for ms, slope in zip(by_size, slopes, strict=True)]
        ms = float(np.interp(batch_size, self._sizes, by_size))
        if tier == PLAIN_TIER:
            ms += self.plain_extra_ms(batch_size, context_tokens)
        return ms + self._context_ms(batch_size, context_tokens)

    def round_ms_all(self, tiers: Sequence[Tier], batch_size: int, context_tokens: int) -> Floats:
        """Returns those of several tiers, as a cost table does: [tiers]."""
        return np.array([self.round_ms(tier, batch_size, context_tokens) for tier in tiers])

    def plain_extra_ms(self, batch_size: int, context_tokens: int) -> float:
        """Returns a catch-up's share of every zero-step round."""
        return CATCH_UP_MS / CATCH_UP_ROUNDS

    def packed_ms(self, tier: Tier, batch_size: int, context_tokens: int, tokens: int) -> float:
        """Returns the period of a round that verifies so many tokens in all."""
        own, packed = np.interp([batch_size * tier.num_draft_tokens, tokens], TOKENS, VERIFY_MS)
        return self.round_ms(tier, batch_size, context_tokens) + float(packed - own) + PACKING_MS

    def _context_ms(self, batch_size: int, context_tokens: int) -> float:
        return CONTEXT_US * (context_tokens - USUAL_CONTEXT * batch_size) / 1e3


# Numbers of tokens that have a graph.
GRID = (64, 96, 128, 160, 192, 256, 320, 384, 416, 448, 480, 512, 640, 768, 896, 1024)
MEASURED_AT = (chain_tier(7), 128)  # what start-up measures them with


def packing_policy(costs: Fa3Costs, seed: int = 1) -> GoodputPolicy:
    """Returns the default policy on a server that has packed rounds."""
    policy = goodput(costs, load_config(None), COST_NOISE, seed)
    tier, size = MEASURED_AT
    widths = WidthCosts(policy.costs, [measured_series(costs, tier, size, GRID)])
    policy.packing = Packing(widths, tier.num_draft_tokens, size)
    return policy


def measured_series(costs: Fa3Costs, tier: Tier, size: int, widths: Sequence[int]) -> Series:
    """Returns what start-up measures of packed rounds, without noise."""
    context = size * USUAL_CONTEXT
    packed_ms = {tokens: costs.packed_ms(tier, size, context, tokens) for tokens in widths}
    return Series(size * tier.num_draft_tokens, costs.round_ms(tier, size, context), packed_ms)


def packed_replay(workload: SyntheticWorkload, seed: int = 1) -> tuple[GoodputPolicy, ReplayResult]:
    """Returns that policy, and what it served."""
    costs = Fa3Costs()
    policy = packing_policy(costs, seed)
    return policy, Replay(policy, workload, costs, seed=seed, packed_ms=costs.packed_ms).run()
