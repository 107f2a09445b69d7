"""What a tier is expected to take: learned from a measured one."""

import pytest

from sglang_adaptive_spec.runtime.memory import MemoryModel
from sglang_adaptive_spec.tiers import chain_tier
from tests.runtime.fake_host import of_a_draft

SEVEN = chain_tier(7)


def test_the_model_learns_upwards_only_and_scales_with_depth_and_graphs() -> None:
    memory = MemoryModel(1.0, of_a_draft)
    ten, twenty = range(1, 11), range(1, 21)
    memory.learn(SEVEN, ten, 10.0)
    assert memory.estimate_gb(SEVEN, ten) == pytest.approx(10.0)
    memory.learn(chain_tier(1), ten, 1.0)  # cheap: not a reason to expect less
    assert memory.estimate_gb(SEVEN, ten) == pytest.approx(10.0)
    assert memory.estimate_gb(SEVEN, twenty) > memory.estimate_gb(SEVEN, ten)
    assert memory.estimate_gb(SEVEN, ten) > memory.estimate_gb(chain_tier(3), ten)


def test_without_graphs_only_the_backends_count() -> None:
    memory = MemoryModel(0.5, of_a_draft)
    memory.learn(SEVEN, (), 3.0)
    assert memory.estimate_gb(SEVEN, ()) == 0.5


def test_a_tier_that_took_less_than_backends_do_teaches_nothing() -> None:
    memory = MemoryModel(0.5, of_a_draft)
    memory.learn(SEVEN, (1, 2, 4, 8), 0.4)
    assert not memory.has_learned
    assert memory.estimate_gb(SEVEN, (8,)) == 0.5


def test_the_largest_batch_of_a_tier_costs_what_any_batch_does() -> None:
    """What finds the KV slots is shared: a start-up tier of small batches tells all there is."""
    memory = MemoryModel(0.1, of_a_draft)
    memory.learn(SEVEN, (1, 2, 4, 8), 0.1 + 0.36)
    assert memory.unit_gb == pytest.approx(0.36 / (4 * 9))
    assert memory.estimate_gb(SEVEN, (1, 2, 4, 256)) == pytest.approx(0.46)
    assert memory.estimate_gb(SEVEN, (1, 2, 4, 8, 256)) == pytest.approx(0.1 + 0.45)


def test_a_tier_without_a_draft_costs_a_forward_whatever_its_width() -> None:
    memory = MemoryModel(0.1, num_forwards=lambda _tier: 1)
    memory.learn(SEVEN, (1, 2, 4, 8), 0.5)
    assert memory.estimate_gb(chain_tier(1), (1, 2, 4, 8)) == pytest.approx(0.5)
    assert memory.estimate_gb(chain_tier(1), (8,)) == pytest.approx(0.2)
