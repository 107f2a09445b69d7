"""The benchmark `transition` without a GPU: its phases, with the round times of an H200.

The phases are low, high, low, high, as many tokens in each, and the loop empties between them
(benchmarks/studies/transition). What the policy loses there, it loses by learning late: the oracle
pays the same rounds.
"""

from dataclasses import dataclass

import pytest

from benchmarks.stats.provenance import RESULTS
from benchmarks.studies.simulator.server_costs import ServerCosts
from benchmarks.studies.simulator.summary import COSTS, fresh_policy
from sglang_adaptive_spec.simulate.regret import replay_oracle
from sglang_adaptive_spec.simulate.replay import Replay
from sglang_adaptive_spec.simulate.synthetic import Phase, SyntheticWorkload
from sglang_adaptive_spec.simulate.workload import Clock, Request

LOW, HIGH = 0.3, 0.95
NUM_PHASES, WAVES, NUM_TOKENS = 4, 2, 192
SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class PhasesOfRequests(SyntheticWorkload):
    """A closed loop whose next phase begins when the last request of the one before is done."""

    slots: int = 1

    @property
    def tokens_per_phase(self) -> int:
        return self.slots * WAVES * NUM_TOKENS

    def is_over(self, clock: Clock) -> bool:
        return clock.num_tokens >= NUM_PHASES * self.tokens_per_phase

    def request(self, idx: int) -> Request | None:  # type: ignore[override]
        return Request(self.prompt_tokens, NUM_TOKENS, idx // (self.slots * WAVES) % 2)


class EmptyingReplay(Replay):
    """Admits no request of the next phase before this one is over."""

    def _admit(self) -> bool:
        workload = self._workload
        assert isinstance(workload, PhasesOfRequests)
        phase = self._next_request // (workload.slots * WAVES)
        if self.live.size and self.clock.num_tokens < phase * workload.tokens_per_phase:
            return False
        return super()._admit()


def phases(slots: int, seed: int) -> PhasesOfRequests:
    load, hazards = ((0.0, slots),), (Phase(0.0, (LOW, HIGH)),)
    return PhasesOfRequests("phases", 1e9, load, hazards, seed=seed, slots=slots)


@pytest.mark.parametrize(("slots", "least"), [(2, 0.95), (16, 0.97), (64, 0.98)])
def test_the_policy_is_near_the_oracle(
    slots: int, least: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sglang_adaptive_spec.simulate.regret.Replay", EmptyingReplay)
    costs = ServerCosts(RESULTS / COSTS)
    shares = []
    for seed in SEEDS:
        workload = phases(slots, seed)
        served = EmptyingReplay(fresh_policy(costs, seed), workload, costs, seed=seed).run()
        oracle = replay_oracle(workload, costs, costs.tiers)
        by_steps = served.rounds_by_steps.items()
        shallow = sum(num for steps, num in by_steps if steps <= 2)
        deep = sum(num for steps, num in by_steps if steps >= 5)
        assert min(shallow, deep) > 50  # both kinds of phases took place
        shares.append(served.tokens_per_s / oracle.tokens_per_s)
    assert sum(shares) / len(shares) > least
