"""What a tier is expected to take: learned from a measured one, the index of KV slots apart."""

import pytest

from sglang_adaptive_spec.policy.tiers import Tier, chain_tier
from sglang_adaptive_spec.runtime.memory import MemoryModel

SEVEN = chain_tier(7)


def test_the_model_learns_upwards_only_and_scales_with_depth_and_graphs() -> None:
    memory = MemoryModel(fixed_gb=1.0)
    ten, twenty = range(1, 11), range(1, 21)
    memory.learn(SEVEN, ten, 10.0)
    assert memory.estimate_gb(SEVEN, ten) == pytest.approx(10.0)
    memory.learn(chain_tier(1), ten, 1.0)  # cheap: not a reason to expect less
    assert memory.estimate_gb(SEVEN, ten) == pytest.approx(10.0)
    assert memory.estimate_gb(SEVEN, twenty) > memory.estimate_gb(SEVEN, ten)
    assert memory.estimate_gb(SEVEN, ten) > memory.estimate_gb(chain_tier(3), ten)


def test_without_graphs_only_the_backends_count() -> None:
    memory = MemoryModel(fixed_gb=0.5)
    memory.learn(SEVEN, (), 3.0)
    assert memory.estimate_gb(SEVEN, ()) == 0.5


def context_gb(tier: Tier, batch_size: int) -> float:
    """An index of 0.01 GB a token and request."""
    return 0.01 * batch_size * tier.num_draft_tokens


def test_the_index_is_no_part_of_what_a_graph_takes() -> None:
    """A start-up tier of small batches tells nothing about it, and need not."""
    memory = MemoryModel(fixed_gb=0.1, index_gb=context_gb)
    few, many = (1, 2, 4, 8), (1, 2, 4, 8, 128)
    memory.learn(SEVEN, few, 0.1 + context_gb(SEVEN, 8) + 0.36)
    assert memory.unit_gb == pytest.approx(0.36 / (4 * 9))
    assert memory.estimate_gb(SEVEN, many) == pytest.approx(0.1 + context_gb(SEVEN, 128) + 0.45)


def test_a_tier_that_took_less_than_backends_do_teaches_nothing() -> None:
    memory = MemoryModel(fixed_gb=0.5, index_gb=context_gb)
    memory.learn(SEVEN, (1, 2, 4, 8), 0.4)
    assert not memory.has_learned
    assert memory.estimate_gb(SEVEN, (8,)) == 0.5 + context_gb(SEVEN, 8)


def test_an_index_larger_than_what_was_measured_is_not_believed() -> None:
    memory = MemoryModel(fixed_gb=0.1, index_gb=context_gb)
    memory.learn(SEVEN, (1, 2, 4, 8), 0.1 + context_gb(SEVEN, 8))
    assert memory.has_learned
    assert memory.estimate_gb(SEVEN, (1, 2, 4, 8)) == pytest.approx(0.1 + context_gb(SEVEN, 8))
