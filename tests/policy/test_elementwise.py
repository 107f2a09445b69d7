"""Sequential updates, element by element, against the closed forms with an inverse."""

import numpy as np
import pytest

from sglang_adaptive_spec.policy.costs import seeds as cost_seeds
from sglang_adaptive_spec.policy.costs.belief import believe, prior
from sglang_adaptive_spec.policy.costs.curves import Floats
from sglang_adaptive_spec.policy.settings import DEFAULTS
from sglang_adaptive_spec.tiers import Tier, chain_tier

COSTS = DEFAULTS.costs
TIERS = [chain_tier(steps) for steps in (0, 1, 2, 3, 5, 7)]
SIZES = (1, 2, 4, 16, 64)
NUM_BUCKETS = 20
DRAWS = range(5)


def random_covariance(rng: np.random.Generator) -> Floats:
    root = rng.normal(0, 0.1, (NUM_BUCKETS, len(TIERS), len(TIERS)))
    return prior(root @ root.transpose(0, 2, 1), 0, COSTS)


@pytest.mark.parametrize("draw", DRAWS)
def test_one_tier_after_the_other_is_believed_as_all_at_once(draw: int) -> None:
    rng = np.random.default_rng(draw)
    covariance = random_covariance(rng)
    shape = (len(TIERS), NUM_BUCKETS)
    rounds = rng.choice([0, 0, COSTS.firm_rounds, 9, COSTS.settle_rounds, 256], shape)
    error = rng.uniform(0.001, 0.1, shape)
    log = np.where(rounds > 0, rng.normal(0, 0.3, shape), 0.0)
    seen = rounds > 0
    surprising = (rounds >= COSTS.settle_rounds) | (seen & (log < 0))
    usual = COSTS.surprise_pairs
    pairs = log**2 / np.diagonal(covariance, axis1=1, axis2=2).T
    scale = max(1.0, (usual + pairs[surprising].sum()) / (usual + surprising.sum()))
    belief = believe(rounds, log, error, covariance, COSTS)
    for bucket in range(NUM_BUCKETS):
        own, told = scale * covariance[bucket], seen[:, bucket]
        noise = np.diag(error[told, bucket] ** 2)
        gain = own[:, told] @ np.linalg.inv(own[np.ix_(told, told)] + noise)
        mean = gain @ log[told, bucket]
        spread = np.sqrt(np.diagonal(own - gain @ own[told]))
        np.testing.assert_allclose(belief.mean[:, bucket], mean, atol=1e-9, rtol=0)
        np.testing.assert_allclose(belief.spread[:, bucket], spread, atol=1e-9, rtol=0)


def smoothed_at_once(seeds, spreads) -> tuple[Floats, Floats]:
    """Returns the minimum that `cost_seeds` states, at one context length."""
    surface = {
        (idx, point[0]): (np.log(point[2]), spread)
        for idx, points in enumerate(seeds)
        for point, spread in zip(points, spreads[idx], strict=True)
    }
    places = sorted(surface)
    precision = np.diag([surface[place][1] ** -2 for place in places])
    weighted = precision @ np.array([surface[place][0] for place in places])
    for (left, middle, right), share, bend in cost_seeds._triples(TIERS, surface, COSTS):
        line = np.zeros(len(places))
        line[places.index(middle)] = 1.0
        line[places.index(left)] = share - 1.0
        line[places.index(right)] = -share
        precision += np.outer(line, line) / bend**2
    covariance = np.linalg.inv(precision)
    return covariance @ weighted, covariance


def noisy_seeds(rng: np.random.Generator):
    def ms(tier: Tier, size: int) -> float:
        return (5 + 0.03 * size) * (1 + 0.14 * tier.num_steps) * float(rng.normal(1, 0.1))

    return [[(size, 100, ms(tier, size)) for size in SIZES] for tier in TIERS]


@pytest.mark.parametrize("draw", DRAWS)
def test_one_bend_after_the_other_smooths_as_all_at_once(draw: int) -> None:
    seeds = noisy_seeds(np.random.default_rng(draw))
    spreads = [[0.1] * len(SIZES) for _ in TIERS]
    mean, covariance = smoothed_at_once(seeds, spreads)
    smoothed = cost_seeds.smooth(TIERS, seeds, spreads, COSTS)
    found = [np.log(ms) for points in smoothed.points for _, _, ms in points]
    np.testing.assert_allclose(found, mean, atol=1e-9, rtol=0)
    np.testing.assert_allclose(smoothed.covariance, covariance, atol=1e-9, rtol=0)


def test_exact_seeds_stay_to_the_last_bit_among_noisy_ones() -> None:
    seeds = noisy_seeds(np.random.default_rng(0))
    spreads = [[0.0 if idx == 3 else 0.1] * len(SIZES) for idx in range(len(TIERS))]
    smoothed = cost_seeds.smooth(TIERS, seeds, spreads, COSTS)
    assert smoothed.points[3] == seeds[3]
    assert smoothed.points[2] != seeds[2]
