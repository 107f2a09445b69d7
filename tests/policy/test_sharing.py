"""Ranks that share the first one's round times decide alike, whatever their own clocks say."""

import json

import numpy as np
import pytest

from sglang_adaptive_spec.policy.acceptance import AcceptanceModel
from sglang_adaptive_spec.policy.costs import CostTable
from sglang_adaptive_spec.policy.goodput import GoodputPolicy
from sglang_adaptive_spec.policy.sharing import SHARE_ROUNDS, SharedTimes
from sglang_adaptive_spec.policy.tiers import DecodeBatch, Observation, RoundTime, chain_tier
from tests.policy.rounds import MAX_STEPS, TIERS, constant, draw, round_ms

NUM_ROUNDS = 10_000
PHASE_ROUNDS = 700  # then the text, and what shares the GPU, change
CLOCK_SKEWS = (1.0, 1.3)  # of the ranks' clocks


class Ranks:
    """Two ranks of one server: the same batches and drafts, clocks of their own."""

    def __init__(self, is_sharing: bool) -> None:
        self.policies = [self._policy() for _ in CLOCK_SKEWS]
        self.logs: list[list[str]] = [[] for _ in CLOCK_SKEWS]
        self.sent: list[tuple[RoundTime, ...]] = []
        self.shared = [SharedTimes(policy.learn_time, self._broadcast) for policy in self.policies]
        self.is_sharing = is_sharing
        if is_sharing:
            for policy, shared in zip(self.policies, self.shared, strict=True):
                policy.shared_times = shared
        self.rng = np.random.default_rng(5)

    def _policy(self) -> GoodputPolicy:
        costs = CostTable.empty(TIERS)
        for tier in TIERS:
            for size in (1, 8, 64):
                costs.seed(tier, size, 0, round_ms(tier.num_steps, size))
        costs.fit()
        return GoodputPolicy({1: TIERS}, costs, AcceptanceModel(MAX_STEPS), chain_tier(3))

    def _broadcast(self, times: list[RoundTime]) -> tuple[RoundTime, ...]:
        """The first rank comes first; the other gets what that one sent."""
        if self.is_first:
            self.sent.append(tuple(times))
        return self.sent[-1]

    def run(self, num_rounds: int) -> None:
        for number in range(num_rounds):
            phase = number // PHASE_ROUNDS
            size = (4, 8, 16)[phase % 3]
            requests = tuple(f"{phase}-{row}" for row in range(size))
            hazards = constant((0.3, 0.9, 0.6, 0.02)[phase % 4], size)
            slower = 1.6 if phase % 5 == 4 else 1.0
            chosen = [
                self._choose(rank, DecodeBatch(size, requests, now_s=number * skew))
                for rank, skew in enumerate(CLOCK_SKEWS)
            ]
            counts = draw(self.rng, hazards, MAX_STEPS)
            for rank, tier in enumerate(chosen):
                held = [min(count, tier.num_steps) for count in counts]
                self.policies[rank].observe(Observation(tier, size, requests, held))
                ms = round_ms(tier.num_steps, size) * slower * CLOCK_SKEWS[rank]
                ms *= 1 + 0.05 * float(self.rng.standard_normal())
                if rank == 0 or not self.is_sharing:
                    self.policies[rank].observe_time(RoundTime(tier, size, 0, ms))

    def _choose(self, rank: int, batch: DecodeBatch) -> object:
        self.is_first = rank == 0
        if self.is_sharing:
            self.shared[rank].tick()
        tier = self.policies[rank].choose(batch)
        decision = self.policies[rank].decision
        described = None if decision is None else decision.describe()
        self.logs[rank].append(json.dumps([tier, described]))
        return tier


@pytest.fixture(scope="module")
def sharing() -> Ranks:
    ranks = Ranks(is_sharing=True)
    ranks.run(NUM_ROUNDS)
    return ranks


def test_ten_thousand_decisions_are_equal_byte_by_byte(sharing: Ranks) -> None:
    first, second = sharing.logs
    assert len(first) == NUM_ROUNDS
    assert "\n".join(first).encode() == "\n".join(second).encode()
    assert len({line.split("]")[0] for line in first}) >= 4  # depths: it had to decide


def test_what_the_first_rank_measured_is_known_to_both(sharing: Ranks) -> None:
    tables = [policy.costs.to_dict() for policy in sharing.policies]
    assert tables[0] == tables[1]
    assert sum(map(sum, tables[0]["num_corrected"])) > 500


def test_one_message_goes_every_few_rounds(sharing: Ranks) -> None:
    assert len(sharing.sent) == NUM_ROUNDS // SHARE_ROUNDS
    assert max(map(len, sharing.sent)) <= SHARE_ROUNDS


def test_ranks_that_believe_their_own_clocks_part() -> None:
    """So the test above can fail."""
    ranks = Ranks(is_sharing=False)
    ranks.run(2000)
    assert ranks.logs[0] != ranks.logs[1]
