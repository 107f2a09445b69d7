"""The matrix with trees without a GPU: visit after visit of new requests, one policy throughout.

Round times are those of an H200 (matrix-trees-h200.json and matrix-trees-h200-shared.json), each
known to 2 %; acceptance is injected as there: a tree lifts the chain's hazards by what
tree-acceptance.json.xz measured for its shape.
"""

from collections.abc import Mapping

import numpy as np
import pytest

from sglang_adaptive_spec.ladder import Ladder
from sglang_adaptive_spec.policy.acceptance.hazards import Floats
from sglang_adaptive_spec.policy.acceptance.model import AcceptanceModel
from sglang_adaptive_spec.policy.goodput import GoodputPolicy
from sglang_adaptive_spec.tiers import (
    PLAIN_TIER,
    Tier,
)
from sglang_adaptive_spec.tiers import chain_tier as chain
from tests.policy.rounds import KnownCosts, Loop, draw, true_tokens

# By how many logits a draft of each is likelier to hold than a chain's (tree-acceptance.json.xz).
LIFTS = {Tier(1, 4, 5): 0.847, Tier(3, 4, 16): 0.64, Tier(5, 4, 12): 0.448, Tier(5, 4, 24): 0.559}
TREES = tuple(LIFTS)
TIERS = tuple(sorted([PLAIN_TIER, *map(chain, (1, 2, 3, 5, 7, 10)), *TREES]))
MS = {  # by batch size, in the order of TIERS
    1: (4.9, 7.3, 7.6, 7.4, 7.6, 8.3, 8.2, 8.7, 9.0, 8.8, 9.8),
    4: (5.0, 7.4, 7.8, 7.6, 7.8, 8.9, 8.6, 9.1, 9.6, 9.2, 10.2),
    8: (5.1, 7.5, 8.0, 7.7, 8.2, 9.4, 8.9, 10.4, 11.0, 9.7, 11.0),
}
COST_NOISE = 0.02
HALF_AND_HALF = (0.3, 0.9)
CELLS = [(size, (chance,)) for size in MS for chance in (0.3, 0.5, 0.7, 0.85, 0.95)]
CELLS += [(size, HALF_AND_HALF) for size in (4, 8)]
WINDOW_MS = 600.0


class TableCosts(KnownCosts):
    """Round times as start-up measured them."""

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__()
        noise = np.exp(COST_NOISE * rng.standard_normal((len(MS), len(TIERS))))
        self.by_size = dict(zip(MS, np.array(list(MS.values())) * noise, strict=True))

    def round_ms_all(self, tiers: tuple[Tier, ...], batch_size: int, _context: int) -> Floats:
        row = self.by_size[batch_size]
        return np.array([row[TIERS.index(tier)] for tier in tiers])


def hazards(tier: Tier, chances: Floats) -> Floats:
    """Returns the chance of every draft: [requests, num_steps]."""
    odds = chances / (1.0 - chances) * np.exp(LIFTS.get(tier, 0.0))
    return np.repeat((odds / (1.0 + odds))[:, None], tier.num_steps, axis=1)


def rate(tier: Tier, chances: Floats) -> float:
    """Returns the expected tokens per ms."""
    tokens = true_tokens(hazards(tier, chances), tier.num_steps)
    return tokens / MS[len(chances)][TIERS.index(tier)]


class Tour:
    """One policy that is visited by batch after batch of new requests."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        model = AcceptanceModel(TIERS[-1].num_steps, TREES)
        self.policy = GoodputPolicy(Ladder({1: TIERS}), TableCosts(self.rng), model, chain(3))
        self.num_requests = 0

    def visit(self, chances: Floats, settle_ms: float) -> float:
        """Returns the rate of the window after settling over that of its best tier."""
        size = len(chances)
        names = tuple(f"r{self.num_requests + row}" for row in range(size))
        self.num_requests += size
        time_ms, served, window_ms = 0.0, 0.0, 0.0
        loop = Loop(self.policy, lambda tier, size: MS[size][TIERS.index(tier)])
        while time_ms < settle_ms + WINDOW_MS:
            tier = loop.run(
                names,
                lambda tier: draw(self.rng, hazards(tier, chances), tier.num_steps),
                lambda: self.rng.random(size) < chances,
            ).tier
            ms = MS[size][TIERS.index(tier)]
            time_ms += ms
            if time_ms > settle_ms:
                served += rate(tier, chances) * ms
                window_ms += ms
        loop.end()
        return served / window_ms / max(rate(tier, chances) for tier in TIERS)


def tour(seed: int, settle_s: Mapping[int, float]) -> list[float]:
    """Returns the share of the best tier's rate in every cell."""
    taken = Tour(seed)
    return [
        taken.visit(np.resize(np.array(kinds), size), 1e3 * settle_s[size]) for size, kinds in CELLS
    ]


@pytest.mark.parametrize(
    ("settle_s", "least", "least_cell"),
    [
        ({1: 2.0, 4: 0.5, 8: 0.5}, 0.97, 0.92),  # as the benchmark settles
        ({1: 18.0, 4: 6.0, 8: 6.0}, 0.985, 0.95),
    ],
)
@pytest.mark.full  # hours of rounds
def test_every_cell_settles_near_its_best_tier(
    settle_s: Mapping[int, float], least: float, least_cell: float
) -> None:
    shares = np.mean([tour(seed, settle_s) for seed in range(4)], axis=0)
    assert np.exp(np.log(shares).mean()) > least
    assert shares.min() > least_cell
