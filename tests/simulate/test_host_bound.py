"""A CPU that bounds drafting rounds, and requests that come and go: no tier is tried everywhere."""

import pytest

from sglang_adaptive_spec.config.schema import load_config
from sglang_adaptive_spec.simulate.command import goodput
from sglang_adaptive_spec.simulate.replay import Replay
from sglang_adaptive_spec.simulate.synthetic import SyntheticWorkload, alternating
from sglang_adaptive_spec.simulate.true_costs import ExampleCosts
from tests.simulate.worlds import HostBound, SettledShare

GPU = ExampleCosts()
HOST_MS = 11.0  # 5 steps of 24 requests take as long on the GPU
COST_NOISE = 0.02
STAYS_S, DIPS_S, NUM_DIPS = 0.25, 0.03, 10  # a request ends; some rounds later one is there again
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


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_tiers_are_not_tried_anew_at_every_size(seed: int) -> None:
    """Without a floor of the host: 0.92 to 0.96, and 60 moves."""
    costs = HostBound(GPU, HOST_MS)
    policy = goodput(GPU, load_config(None), COST_NOISE, seed)  # seeds have the GPU's part alone
    share = SettledShare(workload(), costs, policy.ladder.of(1), num_rounds=0)
    share.replay = Replay(policy, workload(), costs, recorder=share)
    share.replay.run()
    assert share.share >= 0.965
    assert policy.num_switches["gain"] <= 30
