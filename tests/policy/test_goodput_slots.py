"""Slots of the goodput policy: what batches may choose, and where there is nothing to choose."""

import pytest

from sglang_adaptive_spec.tiers import PLAIN_TIER, Plan, RoundTime
from tests.policy.rounds import Server, constant, goodput


def test_a_slot_limits_the_tiers_of_its_batches() -> None:
    policy = goodput(slots={1: (3, 5, 7), 16: (1, 2), 64: (0,)})
    server = Server(policy)
    for size in (1, 20, 100, 20, 1):
        server.run(60, constant(0.95, size))
        allowed = {tier.num_steps for tier in policy.ladder.of(size)}
        assert set(server.steps[-59:]) <= allowed | {0}  # zero: the catch-up round
        assert server.steps[-1] in allowed
    bound = policy.ladder.bound
    assert [bound(size) for size in (1, 15, 16, 63, 64, 500)] == [1, 1, 16, 16, 64, 64]


def test_a_round_without_a_choice_does_not_count_for_smaller_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = goodput(slots={1: (0, 3), 257: (0,)})
    taken: list[int] = []
    monkeypatch.setattr(policy.costs, "observe", lambda time: taken.append(time.batch_size))
    for batch_size in (8, 257, 256, 900):
        policy.observe_time(RoundTime(Plan(PLAIN_TIER), batch_size, 100, 5.0))
    assert taken == [8, 256]
