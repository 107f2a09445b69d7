"""The default config finds room for its tiers, and for as many requests as memory holds."""

import json
import math
from typing import Any

import pytest

from sglang_adaptive_spec.config import load_config, parse_config
from sglang_adaptive_spec.host.indices import GraphIndex
from sglang_adaptive_spec.policy.build import build_policy
from sglang_adaptive_spec.policy.tiers import CATCH_UP_ROUNDS, PLAIN_TIER, Tier, chain_tier
from sglang_adaptive_spec.runtime.builder import build_tiers, reserved_gb
from sglang_adaptive_spec.runtime.graphs import graph_batch_sizes, thinned
from sglang_adaptive_spec.runtime.memory import MemoryModel
from sglang_adaptive_spec.runtime.pool import RuntimePool, Slot, TierState
from tests.runtime.fake_host import VOCAB, FakeHost

TEN = chain_tier(10)
CONFIG = load_config(None)


class DefaultLadder(FakeHost):
    """The default config on the host's capture list of an H200; drafting tiers take fewer sizes."""

    def __init__(self, max_batch_size: int, **changes: Any) -> None:
        # The host captures nothing beyond what may run.
        largest = min(max_batch_size, 256)
        super().__init__(
            cost_gb=0.3,
            policy=build_policy(CONFIG, 3),
            captured=[*range(1, 9), *range(10, 33, 2), *range(40, largest + 1, 8)],
            max_batch_size=max_batch_size,
            **changes,
        )

    def graph_batch_sizes(self, tier: Tier) -> tuple[int, ...]:
        captured = self.captured if tier == PLAIN_TIER else thinned(self.captured)
        return tuple(graph_batch_sizes(tier, captured, self.policy.reachable, self.max_batch_size))


def build(
    host: DefaultLadder, context_length: int = 8192, budget_gb: float = math.inf
) -> set[Tier]:
    """Builds from 10 steps on, which took 0.25 GB up to batch 8 (matrix-trees-h200.json)."""
    pool, sizes = RuntimePool([Slot(host, "slot")], TEN), host.graph_batch_sizes(TEN)
    assert sizes == (1, 2, 3, 4, 6, 8)
    pool.add(TierState(TEN, (10,), sizes, 1.0, 0.25))
    index = GraphIndex(["flashinfer"], context_length, 1, CATCH_UP_ROUNDS, 0)
    memory = MemoryModel(0.1, index.gb)
    memory.learn(TEN, sizes, 0.25 + index.gb(TEN, 8))
    build_tiers(pool, host, memory, budget_gb)
    return {state.tier for state in pool.states}


@pytest.mark.parametrize(
    ("context_length", "max_batch_size"),
    # FlashInfer, tests/host/test_request_cap.py; then what a user may set.
    [(8192, 2048), (8192, 256), (40960, 136), (131072, 48), (131072, 128)],
)
def test_every_tier_is_kept(context_length: int, max_batch_size: int) -> None:
    penalties_gb = reserved_gb(0, max_batch_size, VOCAB) - reserved_gb(0, 0, VOCAB)
    host = DefaultLadder(max_batch_size, free_gb=10.0 + penalties_gb, is_cap_ours=True)
    assert build(host, context_length, CONFIG.memory_budget_gb) == set(CONFIG.tiers)
    assert host.max_batch_size == max_batch_size


def test_requests_beyond_the_graphs_cost_no_tier() -> None:
    every_tier = set(CONFIG.tiers)
    sizes_gb = [eighth / 8 for eighth in range(34, 90)]
    enough_gb = next(
        gb
        for gb in sizes_gb
        if build(DefaultLadder(256, free_gb=gb, is_cap_ours=True)) == every_tier
    )
    host = DefaultLadder(2048, free_gb=enough_gb, is_cap_ours=True)
    assert build(host) == every_tier
    assert host.max_batch_size == 256
    host = DefaultLadder(2048, free_gb=enough_gb + reserved_gb(2048, 2048, VOCAB), is_cap_ours=True)
    assert build(host) == every_tier
    assert host.max_batch_size == 2048


def test_as_many_requests_stay_as_there_is_room_for() -> None:
    least_gb, most_gb = (reserved_gb(size, size, VOCAB) for size in (256, 2048))
    host = DefaultLadder(2048, free_gb=4.0 + (least_gb + most_gb) / 2, is_cap_ours=True)
    assert build(host) == set(CONFIG.tiers)
    assert 256 < host.max_batch_size < 2048


def test_a_tier_of_large_batches_alone_goes_with_them() -> None:
    slots = {"1": {"candidate_steps": [1]}, "257": {"candidate_steps": [0]}}
    config = parse_config("test", json.dumps({"policy": "goodput", **slots}).encode())
    policy = build_policy(config, 1)
    host = FakeHost(5.2, 0.1, 1e9, policy, [64, 128, 256], 2048, is_cap_ours=True)
    pool = RuntimePool([Slot(host, "slot")], TEN)
    pool.add(TierState(TEN, (10,), (256,), 1.0, 0.25))  # what the server started at is no tier
    build_tiers(pool, host, MemoryModel(1.5, unit_gb=0.01))
    assert host.built == [chain_tier(1)]
    assert host.max_batch_size == 256


def test_a_number_that_the_user_named_costs_tiers() -> None:
    host = DefaultLadder(2048, free_gb=4.5)
    assert build(host) < set(CONFIG.tiers)
    assert host.max_batch_size == 2048


def test_requests_go_only_where_that_helps() -> None:
    host = DefaultLadder(2048, free_gb=40.0, is_cap_ours=True)
    assert build(host, budget_gb=1.0) < set(CONFIG.tiers)  # the budget alone lacks room
    assert host.max_batch_size == 2048
