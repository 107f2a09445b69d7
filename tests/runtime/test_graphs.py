"""Which graphs a tier needs: no batch within the captured sizes may ever run eager."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_adaptive_spec.config.schema import load_config
from sglang_adaptive_spec.ladder import Ladder
from sglang_adaptive_spec.runtime.graphs import graph_batch_sizes
from sglang_adaptive_spec.tiers import chain_tier

# What sglang 0.5.21 captures up to batch 128 on an H200, and a sparse list.
DENSE = [*range(1, 9), *range(10, 33, 2), *range(40, 65, 4), *range(72, 129, 8)]
SPARSE = [1, 2, 4, 8, 16, 32, 64, 128]


def eager_pairs(ladder: Ladder, captured: list[int], max_batch_size: int) -> list[str]:
    """Every (batch, tier) that would run eager although a graph of that size was captured."""
    graphs = {
        tier: graph_batch_sizes(tier, captured, ladder, max_batch_size)
        for tier in ladder.largest_batches(max_batch_size)
    }
    return [
        f"batch {batch} at {tier.num_steps} steps"
        for batch in range(1, min(max(captured), max_batch_size) + 1)
        for tier in ladder.of(batch)
        if min(size for size in captured if size >= batch) not in graphs[tier]
    ]


@pytest.mark.parametrize("preset", ["conservative", "aggressive", "host-default"])
@pytest.mark.parametrize("captured", [DENSE, SPARSE], ids=["dense", "sparse"])
@pytest.mark.parametrize("max_batch_size", [5, 48, 100, 128, 300])
def test_no_batch_of_a_preset_runs_eager_up_to_the_largest_captured_size(
    preset: str, captured: list[int], max_batch_size: int
) -> None:
    assert eager_pairs(load_config(preset).ladder, captured, max_batch_size) == []


def test_every_tier_batch_and_graph_of_the_host_default_is_as_listed() -> None:
    ladder = load_config("host-default").ladder
    listed = {
        steps: graph_batch_sizes(chain_tier(steps), SPARSE, ladder, 128)
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
    ladder = load_config("host-default").ladder
    zero = chain_tier(0)
    assert graph_batch_sizes(zero, DENSE, ladder, 7) == []
    assert zero not in ladder.largest_batches(7)


def test_the_graph_that_only_the_largest_batch_pads_to_is_kept() -> None:
    ladder = Ladder({1: [chain_tier(3)], 9: [chain_tier(1)]})
    assert graph_batch_sizes(chain_tier(1), [8, 16], ladder, 9) == [16]


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
    ladder = Ladder({bound: list(map(chain_tier, steps)) for bound, steps in bounds.items()})
    for batch in range(1, min(max(captured), max_batch_size) + 1):
        size = min(size for size in captured if size >= batch)
        for tier in ladder.of(batch):
            needed = graph_batch_sizes(tier, sorted(captured), ladder, max_batch_size)
            assert size in needed
