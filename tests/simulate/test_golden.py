"""The golden traces: how much of the oracle's throughput a policy must serve, trace by trace."""

import pytest

from sglang_adaptive_spec.config.schema import load_config
from sglang_adaptive_spec.simulate.command import STEPS, goodput
from sglang_adaptive_spec.simulate.regret import StaticPolicy, replay_oracle
from sglang_adaptive_spec.simulate.replay import Replay
from sglang_adaptive_spec.simulate.synthetic import SyntheticWorkload, golden_workloads, matrix_cell
from sglang_adaptive_spec.simulate.true_costs import ExampleCosts
from sglang_adaptive_spec.tiers import chain_tier

COSTS = ExampleCosts("flashinfer")
COST_NOISE = 0.02  # of every period in the policy's own table
TIERS = tuple(map(chain_tier, STEPS))
GOLDEN = golden_workloads()
LEAST = 0.97  # of the oracle: a choice
LEAST_AT = {"phases-2s-16": 0.93, "phases-0.5s-16": 0.90}
MOST_PROBING = 0.01  # of the time (policy/settings.py: probing.share)
# Where a single tier beats the clairvoyant policy, which looks one round ahead: see docs.
BEST_STATIC = {"mixed-32": 3}


def oracle_tokens_per_s(workload: SyntheticWorkload) -> float:
    found = replay_oracle(workload, COSTS, TIERS).tokens_per_s
    if workload.name in BEST_STATIC:
        static = StaticPolicy(chain_tier(BEST_STATIC[workload.name]))
        found = max(found, Replay(static, workload, COSTS).run().tokens_per_s)
    return found


def share_of_oracle(workload: SyntheticWorkload) -> tuple[float, float]:
    """Returns what goodput serves, over the oracle, and the share of time that its probes took."""
    policy = goodput(COSTS, load_config(None), COST_NOISE)
    served = Replay(policy, workload, COSTS).run()
    return served.tokens_per_s / oracle_tokens_per_s(workload), served.probing_share


@pytest.mark.parametrize("name", GOLDEN)
def test_goodput_serves_nearly_what_the_oracle_serves(name: str) -> None:
    share, probing = share_of_oracle(GOLDEN[name])
    assert share >= LEAST_AT.get(name, LEAST)
    assert probing <= MOST_PROBING


@pytest.mark.parametrize(
    ("batch_size", "hazards"),
    [(1, (0.5,)), (16, (0.85,)), (32, (0.3,)), (64, (0.7,)), (128, (0.95,)), (16, (0.3, 0.9))],
)
def test_goodput_serves_cells_of_the_matrix(batch_size: int, hazards: tuple[float, ...]) -> None:
    share, probing = share_of_oracle(matrix_cell(batch_size, *hazards, duration_s=6.0))
    assert share >= LEAST
    assert probing <= MOST_PROBING


def test_no_single_tier_is_the_oracle_where_acceptance_or_load_change() -> None:
    for name in ("phases-2s-16", "ramp-1-128-1"):
        oracle = oracle_tokens_per_s(GOLDEN[name])
        for steps in (2, 3, 5):  # the others are further off
            static = Replay(StaticPolicy(chain_tier(steps)), GOLDEN[name], COSTS).run()
            assert static.tokens_per_s < 0.98 * oracle
