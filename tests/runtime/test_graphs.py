"""Which graphs a tier needs: no batch within the captured sizes may ever run eager."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_adaptive_spec.config.schema import load_config
from sglang_adaptive_spec.policy.ema import EmaPolicy
from sglang_adaptive_spec.runtime.graphs import graph_batch_sizes, reachable_tiers
from sglang_adaptive_spec.tiers import Tier, chain_tier

# What sglang 0.5.21 captures up to batch 128 on an H200, and a sparse list.
DENSE = [*range(1, 9), *range(10, 33, 2), *range(40, 65, 4), *range(72, 129, 8)]
SPARSE = [1, 2, 4, 8, 16, 32, 64, 128]


def eager_pairs(policy: EmaPolicy, captured: list[int], max_batch_size: int) -> list[str]:
    """Every (batch, tier) that would run eager although a graph of that size was captured."""
    tiers = reachable_tiers(policy.reachable, max_batch_size)
    graphs = {
        tier: graph_batch_sizes(tier, captured, policy.reachable, max_batch_size) for tier in tiers
    }
    return [
        f"batch {batch} at {tier.num_steps} steps"
        for batch in range(1, min(max(captured), max_batch_size) + 1)
        for tier in policy.reachable(batch)
        if min(size for size in captured if size >= batch) not in graphs[tier]
    ]


@pytest.mark.parametrize("preset", ["conservative", "aggressive", "host-default"])
@pytest.mark.parametrize("captured", [DENSE, SPARSE], ids=["dense", "sparse"])
@pytest.mark.parametrize("max_batch_size", [5, 48, 100, 128, 300])
def test_no_batch_of_a_preset_runs_eager_up_to_the_largest_captured_size(
    preset: str, captured: list[int], max_batch_size: int
) -> None:
    policy = EmaPolicy(load_config(preset), 1)
    assert eager_pairs(policy, captured, max_batch_size) == []


def test_every_tier_batch_and_graph_of_the_host_default_is_as_listed() -> None:
    policy = EmaPolicy(load_config("host-default"), 1)
    listed = {
        steps: graph_batch_sizes(chain_tier(steps), SPARSE, policy.reachable, 128)
        for steps in (0, 1, 3, 5, 7)
    }
    assert listed == {
        # Batch 5..7 pads to 8 and batch 33..63 to 64, so those graphs belong to two slots.
        0: [8, 16, 32, 64, 128],
        1: [1, 2, 4, 8, 16, 32, 64],
        3: [1, 2, 4, 8, 16, 32],
        5: [1, 2, 4, 8],
        7: [1, 2, 4, 8],
    }


def test_a_tier_beyond_the_largest_batch_needs_no_graph_and_is_not_reachable() -> None:
    policy = EmaPolicy(load_config("host-default"), 1)
    zero = chain_tier(0)
    assert graph_batch_sizes(zero, DENSE, policy.reachable, 7) == []
    assert zero not in reachable_tiers(policy.reachable, 7)


def test_the_graph_that_only_the_largest_batch_pads_to_is_kept() -> None:
    def reachable(batch_size: int) -> list[Tier]:
        return [chain_tier(1)] if batch_size == 9 else [chain_tier(3)]

    assert graph_batch_sizes(chain_tier(1), [8, 16], reachable, 9) == [16]


@given(
    captured=st.sets(st.integers(1, 160), min_size=1),
    bounds=st.dictionaries(
        st.integers(1, 160), st.sets(st.sampled_from([0, 1, 2, 3, 5, 7]), min_size=1), min_size=1
    ),
    max_batch_size=st.integers(1, 200),
)
def test_no_eager_pair_for_any_list_and_any_slots(
    captured: set[int], bounds: dict[int, set[int]], max_batch_size: int
) -> None:
    def reachable(batch_size: int) -> list[Tier]:
        below = [bound for bound in bounds if bound <= batch_size]
        return [chain_tier(step) for step in bounds[max(below) if below else min(bounds)]]

    for batch in range(1, min(max(captured), max_batch_size) + 1):
        size = min(size for size in captured if size >= batch)
        for tier in reachable(batch):
            needed = graph_batch_sizes(tier, sorted(captured), reachable, max_batch_size)
            assert size in needed
