"""Ranks that share the first one's round times decide alike, whatever their own clocks say."""

import json
from collections.abc import Sequence

import numpy as np
import pytest

from sglang_adaptive_spec.ladder import Ladder
from sglang_adaptive_spec.loop.controller import AdaptiveController
from sglang_adaptive_spec.loop.round import Round
from sglang_adaptive_spec.loop.sharing import SHARE_ROUNDS, SharedTimes
from sglang_adaptive_spec.loop.timing import RING_SIZE, Clock, RoundTimer
from sglang_adaptive_spec.policy.acceptance.model import AcceptanceModel
from sglang_adaptive_spec.policy.costs.table import CostTable
from sglang_adaptive_spec.policy.goodput import GoodputPolicy
from sglang_adaptive_spec.tiers import DecodeBatch, RoundTime, chain_tier
from tests.controller_fakes import FakePool
from tests.policy.rounds import MAX_STEPS, TIERS, constant, draw, round_ms

NUM_ROUNDS = 10_000
PHASE_ROUNDS = 700  # then the text, and what shares the GPU, change
CLOCK_SKEWS = (1.0, 1.3)  # of the time that a batch bears


class FakeClock:
    """Places marks at a time that the test moves on."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self._marks_ms = [0.0] * RING_SIZE

    def mark(self, idx: int) -> None:
        self._marks_ms[idx] = self.now_ms

    def elapsed_ms(self, begin_idx: int, end_idx: int) -> float:
        return self._marks_ms[end_idx] - self._marks_ms[begin_idx]


class SkewedTimer(RoundTimer):
    """Finds a round's time longer with every step of its tier, and never the same twice."""

    def __init__(self, device: str, clock: Clock | None = None) -> None:
        super().__init__(device, clock)
        self._rng = np.random.default_rng(1)

    def poll(self, done: Round) -> Round | None:
        found = super().poll(done)
        if found is not None and found.period is not None:
            factor = 1.2**found.tier.num_steps * float(self._rng.uniform(0.8, 1.2))
            found.period = found.period._replace(ms=found.period.ms * factor)
        return found


TIMERS = (RoundTimer, SkewedTimer)  # of the ranks


class Ranks:
    """Two ranks of one server: the same batches and drafts, timers of their own."""

    def __init__(self, is_sharing: bool) -> None:
        self.policies = [self._policy(not is_sharing) for _ in TIMERS]
        self.clocks = [FakeClock() for _ in TIMERS]
        self.controllers = [
            AdaptiveController(policy, FakePool(), chain_tier(7), clock=timer("cpu", clock))
            for policy, timer, clock in zip(self.policies, TIMERS, self.clocks, strict=True)
        ]
        self.logs: list[list[str]] = [[] for _ in TIMERS]
        self.sent: list[Sequence[RoundTime]] = []
        if is_sharing:
            for rank, policy in enumerate(self.policies):
                broadcast = self._receive if rank else self._send
                self.controllers[rank].shared_times = SharedTimes(policy.learn_time, broadcast)
        self.rng = np.random.default_rng(5)

    def _policy(self, learns_own_times: bool) -> GoodputPolicy:
        costs = CostTable.empty(TIERS)
        for tier in TIERS:
            for size in (1, 8, 64):
                costs.seed(tier, size, 0, round_ms(tier.num_steps, size))
        costs.fit()
        acceptance = AcceptanceModel(MAX_STEPS)
        return GoodputPolicy(Ladder({1: TIERS}), costs, acceptance, chain_tier(3), learns_own_times)

    def _send(self, times: Sequence[RoundTime]) -> Sequence[RoundTime]:
        """The first rank comes first."""
        self.sent.append(tuple(times))
        return self.sent[-1]

    def _receive(self, times: Sequence[RoundTime]) -> Sequence[RoundTime]:
        assert len(times) == len(self.sent[-1])  # the other timed as many, and nobody learns them
        return self.sent[-1]

    def run(self, num_rounds: int) -> None:
        for number in range(num_rounds):
            phase = number // PHASE_ROUNDS
            size = (4, 8, 16)[phase % 3]
            requests = tuple(f"{phase}-{row}" for row in range(size))
            hazards = constant((0.3, 0.9, 0.6, 0.02)[phase % 4], size)
            counts = draw(self.rng, hazards, MAX_STEPS)
            slower = 1.6 if phase % 5 == 4 else 1.0
            noise = 1 + 0.05 * float(self.rng.standard_normal())
            for rank in range(len(TIMERS)):
                batch = DecodeBatch(size, requests, now_s=number * CLOCK_SKEWS[rank])
                num_steps = self._decide(rank, batch)
                self.clocks[rank].now_ms += round_ms(num_steps, size) * slower * noise
                held = [min(count, num_steps) for count in counts]
                self.controllers[rank].observe(held, size)

    def _decide(self, rank: int, batch: DecodeBatch) -> int:
        tier = self.controllers[rank].before_decode(batch).tier
        decision = self.policies[rank].decision
        described = None if decision is None else decision.describe()
        self.logs[rank].append(json.dumps([tier, described]))
        return tier.num_steps


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
    assert sum(map(len, sharing.sent)) > 500
    # Rounds faster than alone make a table forget all, here last in round 9,503.
    assert sum(map(sum, tables[0]["num_corrected"])) > 100


def test_one_message_goes_every_few_rounds(sharing: Ranks) -> None:
    assert len(sharing.sent) == NUM_ROUNDS // SHARE_ROUNDS
    assert 0 < max(map(len, sharing.sent)) <= SHARE_ROUNDS + RING_SIZE


def test_ranks_that_believe_their_own_timers_part() -> None:
    """So the test above can fail."""
    ranks = Ranks(is_sharing=False)
    ranks.run(2000)
    tiers = [[json.loads(line)[0] for line in log] for log in ranks.logs]
    num_different = sum(one != other for one, other in zip(*tiers, strict=True))
    assert num_different > 200, "tiers, not only what is expected of them"
