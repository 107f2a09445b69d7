"""Regret: what a policy serves, beside the oracle and every single static tier.

The oracle of a workload is the better of two: the best single static tier, and a policy that knows
every live request's true hazards and the true costs and runs the tier with the most expected
tokens per ms, phase by phase and batch by batch. It does not know luck.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sglang_adaptive_spec.ladder import Ladder
from sglang_adaptive_spec.policy.goodput import GoodputPolicy
from sglang_adaptive_spec.policy.protocol import Choices, SimplePolicy
from sglang_adaptive_spec.simulate.replay import Replay, ReplayResult, RoundCosts
from sglang_adaptive_spec.simulate.true_costs import NoSpeculation
from sglang_adaptive_spec.simulate.workload import Workload
from sglang_adaptive_spec.tiers import PLAIN_TIER, DecodeBatch, Plan, Tier, chain_tier

# Leaving zero steps costs a round: the oracle, too, leaves a tier only for a gain. Any value
# below the 3 % that a policy may lose does; ties are what it must not chase.
ORACLE_MIN_GAIN = 0.002


class StaticPolicy(SimplePolicy):
    """One tier for every batch, of a ladder that may draft: zero steps catch the draft up, too."""

    def __init__(self, tier: Tier) -> None:
        self.tier = tier
        self.ladder = Ladder({1: [PLAIN_TIER, chain_tier(1), tier]})

    def choose(self, batch: DecodeBatch) -> Plan:
        """Returns the tier."""
        return Plan(self.tier)


class OraclePolicy(SimplePolicy):
    """Looks into the replay that asks it; one replay per oracle."""

    def __init__(self, workload: Workload, costs: RoundCosts, tiers: tuple[Tier, ...]) -> None:
        self._workload = workload
        self._costs = costs
        self._tiers = tiers
        self.ladder = Ladder({1: tiers})
        self._depths = np.array([tier.num_steps for tier in tiers])
        self._best: int | None = None
        self.replay: Replay | None = None

    def choose(self, batch: DecodeBatch) -> Plan:
        """Returns the tier with the most expected tokens per ms."""
        assert self.replay is not None
        live, clock = self.replay.live, self.replay.clock
        expected = self._workload.expected_tokens(self._workload.phase(clock), live)
        rates = expected[self._depths] / [
            self._costs.round_ms(tier, batch.size, batch.context_tokens)
            * self._workload.slowdown(clock, tier.num_steps)
            for tier in self._tiers
        ]
        best = int(np.argmax(rates))
        if self._best is None or rates[best] > rates[self._best] * (1 + ORACLE_MIN_GAIN):
            self._best = best
        return Plan(self._tiers[self._best])


@dataclass(frozen=True, slots=True)
class Probing:
    """What probes took, as shares of all time."""

    time_share: float  # rounds for which another tier than the one in force was asked
    loss_share: float  # what the policy books as lost: less, for those rounds serve tokens, too


@dataclass(frozen=True, slots=True)
class ArmReport:
    """One row of the table."""

    name: str
    tokens_per_s: float
    share_of_oracle: float
    num_switches: int
    probing: Probing | None  # None where nothing is probed
    rounds_by_steps: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class WorkloadReport:
    """All arms on one workload, the oracle and the best static tier among them."""

    workload: str
    num_tokens: int  # of the oracle's replay
    oracle_tokens_per_s: float
    best_static: str
    arms: tuple[ArmReport, ...]

    def arm(self, name: str) -> ArmReport:
        """Returns an arm's row."""
        return next(arm for arm in self.arms if arm.name == name)


def compare(
    workload: Workload,
    costs: RoundCosts,
    tiers: Sequence[Tier],
    policies: Mapping[str, Callable[[], Choices]],
) -> WorkloadReport:
    """Replays policies by name, every static tier, no speculation and the oracle."""
    results: dict[str, ReplayResult] = {}
    probing: dict[str, Probing] = {}
    for name, make in policies.items():
        policy = make()
        result = results[name] = Replay(policy, workload, costs).run()
        if isinstance(policy, GoodputPolicy):
            lost = float(policy.prober.describe()["share_lost"])
            probing[name] = Probing(result.probing_share, lost)
    statics = {f"static-{tier.num_steps}": tier for tier in tiers}
    for name, tier in statics.items():
        results[name] = Replay(StaticPolicy(tier), workload, costs).run()
    results["none"] = Replay(StaticPolicy(PLAIN_TIER), workload, NoSpeculation(costs)).run()
    results["oracle"] = replay_oracle(workload, costs, tiers)
    best_static = max(statics, key=lambda name: results[name].tokens_per_s)
    oracle = max(results["oracle"].tokens_per_s, results[best_static].tokens_per_s)
    rows = (_row(name, result, oracle, probing.get(name)) for name, result in results.items())
    return WorkloadReport(
        workload.name, results["oracle"].num_tokens, oracle, best_static, tuple(rows)
    )


def replay_oracle(workload: Workload, costs: RoundCosts, tiers: Sequence[Tier]) -> ReplayResult:
    """Replays the policy that knows all but luck."""
    oracle = OraclePolicy(workload, costs, tuple(tiers))
    oracle.replay = Replay(oracle, workload, costs)
    return oracle.replay.run()


def _row(name: str, result: ReplayResult, oracle: float, probing: Probing | None) -> ArmReport:
    return ArmReport(
        name,
        result.tokens_per_s,
        result.tokens_per_s / oracle,
        result.num_switches,
        probing,
        dict(sorted(result.rounds_by_steps.items())),
    )
