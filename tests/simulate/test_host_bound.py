"""A CPU that bounds drafting rounds, and requests that come and go: no tier is tried everywhere."""

import statistics
from collections.abc import Callable
from dataclasses import replace

import pytest

from sglang_adaptive_spec.config.schema import load_config
from sglang_adaptive_spec.policy.settings import DEFAULTS, Settings
from sglang_adaptive_spec.simulate.command import goodput
from sglang_adaptive_spec.simulate.replay import Replay, RoundCosts
from sglang_adaptive_spec.simulate.synthetic import SyntheticWorkload, alternating
from sglang_adaptive_spec.simulate.true_costs import ExampleCosts
from tests.simulate.worlds import HostBound, SettledShare, Slower

GPU = ExampleCosts("flashinfer")
HOST_MS = 11.0  # 5 steps of 24 requests take as long on the GPU
COST_NOISE = 0.02
STAYS_S, DIPS_S, NUM_DIPS = 0.25, 0.03, 10  # a request ends; some rounds later one is there again
# What longer rounds are where no CPU is behind it, by steps.
SLOWER = {
    "all alike": lambda _steps: 1.25,
    "all but one step": lambda steps: 1.0 if steps < 2 else 1.3,
    "the more, the deeper": lambda steps: 1 + 0.1 * min(steps, 3),
}
NO_FLOOR = replace(DEFAULTS.costs, floor_places=10**6)
SIZES = (1, 8, 16, 4, 24, 8, 2, 12)


def workload() -> SyntheticWorkload:
    """Returns sizes that each stay for some seconds, one request short now and then."""
    load, start_s = [], 0.0
    for size in SIZES:
        for _ in range(NUM_DIPS):
            load += [(start_s, size), (start_s + STAYS_S, max(size - 1, 1))]
            start_s += STAYS_S + DIPS_S
    phases = alternating(start_s / 4, 4, 0.8, 0.5)
    return SyntheticWorkload("host", start_s, tuple(load), phases, mean_tokens=100)


def served(costs: RoundCosts, seed: int, settings: Settings = DEFAULTS) -> tuple[float, int]:
    """Returns the share of the best tier's rate, and how often the policy moved to gain."""
    policy = goodput(GPU, load_config(None), COST_NOISE, seed, settings)  # seeds: the GPU's part
    share = SettledShare(workload(), costs, policy.ladder.of(1), num_rounds=0)
    share.replay = Replay(policy, workload(), costs, recorder=share)
    share.replay.run()
    return share.share, policy.num_switches["gain"]


def test_tiers_are_not_tried_anew_at_every_size() -> None:
    """Without a floor of the host: 0.92 to 0.96, and 59 to 67 moves."""
    shares, num_moves = zip(
        *(served(HostBound(GPU, HOST_MS), seed) for seed in (1, 2, 3)), strict=True
    )
    assert statistics.mean(shares) >= 0.97
    assert min(shares) >= 0.96
    assert max(num_moves) <= 30


@pytest.mark.parametrize("factor", SLOWER.values(), ids=SLOWER)
def test_a_slower_gpu_is_served_as_without_a_floor(factor: Callable[[int], float]) -> None:
    costs = Slower(GPU, factor)
    share, _ = served(costs, 1)
    without, _ = served(costs, 1, replace(DEFAULTS, costs=NO_FLOOR))
    assert share >= without - 0.005
