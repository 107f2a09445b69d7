"""The default config finds room for its tiers, and for as many requests as memory holds."""

import json
import math
from typing import Any

import pytest

from sglang_adaptive_spec.config.schema import load_config, parse_config
from sglang_adaptive_spec.host.attention.kv_index_size import Extent, IndexShape
from sglang_adaptive_spec.host.sizes import OF_A_DRAFT
from sglang_adaptive_spec.runtime.builder import build_tiers, reserved_gb
from sglang_adaptive_spec.runtime.graphs import graph_batch_sizes, thinned
from sglang_adaptive_spec.runtime.memory import MemoryModel
from sglang_adaptive_spec.runtime.pool import Place, RuntimePool, TierState
from sglang_adaptive_spec.tiers import PLAIN_TIER, Tier, chain_tier
from tests.runtime.fake_host import VOCAB, FakeHost

TEN = chain_tier(10)
CONFIG = load_config(None)
MOST = 4096  # running requests that SGLang serves without speculation


class DefaultLadder(FakeHost):
    """The default config on the host's capture list of an H200; drafting tiers take fewer sizes."""

    def __init__(self, max_batch_size: int, **changes: Any) -> None:
        # The host captures nothing beyond what may run.
        largest = min(max_batch_size, 256)
        super().__init__(
            cost_gb=0.3,
            ladder=CONFIG.ladder,
            captured=[*range(1, 9), *range(10, 33, 2), *range(40, largest + 1, 8)],
            max_batch_size=max_batch_size,
            **changes,
        )

    def graph_batch_sizes(self, tier: Tier) -> tuple[int, ...]:
        captured = self.captured if tier == PLAIN_TIER else thinned(self.captured)
        return tuple(graph_batch_sizes(tier, captured, self.ladder, self.max_batch_size))


def index_gb(host: DefaultLadder, context_length: int) -> float:
    """What FlashInfer keeps for all tiers; it is there before the first tier is planned."""
    largest = {tier: max(host.graph_batch_sizes(tier), default=0) for tier in CONFIG.tiers}
    shape = IndexShape(["flashinfer"], context_length, page_size=1, num_pools=1, row_bytes=0)
    return shape.gb(Extent.of(largest, OF_A_DRAFT))


def build(host: DefaultLadder, budget_gb: float = math.inf) -> set[Tier]:
    """Builds from 10 steps on, which took 0.25 GB up to batch 8 (matrix-trees-h200.json)."""
    pool, sizes = RuntimePool([Place(host, "slot")], TEN), host.graph_batch_sizes(TEN)
    assert sizes == (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
    pool.add(TierState(TEN, (10,), sizes, 1.0, 0.25))
    memory = MemoryModel(0.1, OF_A_DRAFT.num_forwards)
    memory.learn(TEN, sizes, 0.25)
    build_tiers(pool, host, memory, budget_gb)
    return {state.tier for state in pool.states}


@pytest.mark.parametrize("context_length", [8192, 40960, 131072])
@pytest.mark.parametrize(("max_batch_size", "is_ours"), [(48, True), (256, False), (MOST, True)])
def test_every_tier_is_kept(context_length: int, max_batch_size: int, is_ours: bool) -> None:
    host = DefaultLadder(max_batch_size, free_gb=10.0, is_cap_ours=is_ours)
    host.left_gb -= index_gb(host, context_length)
    assert build(host, CONFIG.memory_budget_gb) == set(CONFIG.tiers)
    assert host.max_batch_size == max_batch_size


def test_the_index_of_a_long_context_is_less_than_a_gigabyte() -> None:
    """A tier had one of its own before, up to 2.5 GB: 15 tokens in 256 catch-ups of 131,072."""
    assert index_gb(DefaultLadder(MOST, free_gb=0.0), 131072) == pytest.approx(1.06, abs=0.01)


def test_requests_beyond_the_graphs_cost_no_tier() -> None:
    every_tier = set(CONFIG.tiers)
    sizes_gb = [eighth / 8 for eighth in range(34, 90)]
    enough_gb = next(
        gb
        for gb in sizes_gb
        if build(DefaultLadder(256, free_gb=gb, is_cap_ours=True)) == every_tier
    )
    host = DefaultLadder(MOST, free_gb=enough_gb, is_cap_ours=True)
    assert build(host) == every_tier
    assert host.max_batch_size == 256 * 8  # as many rows as the verify of 256 with seven steps
    more_gb = reserved_gb(MOST, 0, VOCAB) - reserved_gb(256 * 8, 0, VOCAB)
    host = DefaultLadder(MOST, free_gb=enough_gb + more_gb, is_cap_ours=True)
    assert build(host) == every_tier
    assert host.max_batch_size == MOST


def test_penalties_have_room_for_as_many_requests_as_graphs_hold() -> None:
    """Beyond, they may run out of memory, as without speculation."""
    room_gb = 2.0 + reserved_gb(MOST, 256, VOCAB)
    host = DefaultLadder(MOST, free_gb=room_gb, is_cap_ours=True)
    assert build(host) == set(CONFIG.tiers)
    assert host.max_batch_size == MOST
    without_gb = 2.0 + reserved_gb(MOST, 0, VOCAB)
    host = DefaultLadder(MOST, free_gb=without_gb, is_cap_ours=True)
    build(host)
    assert host.max_batch_size < MOST
    host = DefaultLadder(MOST, free_gb=without_gb)  # the user's number: nothing for penalties
    assert build(host) == set(CONFIG.tiers)


def test_as_many_requests_stay_as_there_is_room_for() -> None:
    least_gb, most_gb = (reserved_gb(size, 256, VOCAB) for size in (256 * 8, MOST))
    host = DefaultLadder(MOST, free_gb=2.0 + (least_gb + most_gb) / 2, is_cap_ours=True)
    assert build(host) == set(CONFIG.tiers)
    assert 256 * 8 < host.max_batch_size < MOST


def test_a_tier_of_large_batches_alone_goes_with_them() -> None:
    slots = {"1": {"candidate_steps": [0]}, "257": {"candidate_steps": [1]}}
    config = parse_config("test", json.dumps({"policy": "goodput", **slots}).encode())
    vocab_size = 8 * VOCAB
    free_gb = 3.5 + reserved_gb(256, 256, vocab_size)
    host = FakeHost(free_gb, 0.1, 1e9, config.ladder, [64, 128, 256], 2048, True, vocab_size)
    pool = RuntimePool([Place(host, "slot")], TEN)
    pool.add(TierState(TEN, (10,), (256,), 1.0, 0.25))  # what the server started at is no tier
    build_tiers(pool, host, MemoryModel(1.5, OF_A_DRAFT.num_forwards, unit_gb=0.01))
    assert host.built == [PLAIN_TIER]
    assert host.max_batch_size == 256


def test_a_number_that_the_user_named_costs_tiers() -> None:
    host = DefaultLadder(2048, free_gb=4.0)
    assert build(host) < set(CONFIG.tiers)
    assert host.max_batch_size == 2048


def test_requests_go_only_where_that_helps() -> None:
    host = DefaultLadder(MOST, free_gb=40.0, is_cap_ours=True)
    assert build(host, budget_gb=1.0) < set(CONFIG.tiers)  # the budget alone lacks room
    assert host.max_batch_size == MOST
