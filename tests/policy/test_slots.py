"""Which tiers a batch may choose, and what a slot falls back to."""

import pytest

from sglang_adaptive_spec.ladder import Slots, clip
from sglang_adaptive_spec.tiers import PLAIN_TIER, Tier, chain_tier

TREE = Tier(3, 4, 16)


def test_a_batch_below_the_first_bound_belongs_to_the_first_slot() -> None:
    slots = Slots({8: [chain_tier(1)], 2: [chain_tier(5), chain_tier(3)]})
    assert [slots.bound(size) for size in (1, 2, 7, 8, 100)] == [2, 2, 2, 8, 8]
    assert slots.of(3) == (chain_tier(3), chain_tier(5))


def test_a_tier_is_clipped_to_one_neither_deeper_nor_wider() -> None:
    assert clip(TREE, [PLAIN_TIER, chain_tier(2), chain_tier(5)]) == chain_tier(2)
    assert clip(chain_tier(3), [chain_tier(1), Tier(2, 8, 60)]) == chain_tier(1)
    assert clip(chain_tier(5), [chain_tier(1), TREE]) == chain_tier(1)
    assert clip(Tier(5, 8, 60), [chain_tier(3), TREE]) == TREE
    assert clip(PLAIN_TIER, [TREE, chain_tier(1)]) == chain_tier(1)  # nothing is below


def test_a_slot_left_empty_falls_to_a_shallower_tier_that_remains() -> None:
    slots = Slots({1: [chain_tier(3)], 4: [chain_tier(1)], 8: [PLAIN_TIER]})
    kept = slots.without([chain_tier(3), PLAIN_TIER])
    assert kept.tiers == {1: (chain_tier(1),), 4: (chain_tier(1),), 8: (chain_tier(1),)}


def test_slots_without_tiers_are_refused() -> None:
    with pytest.raises(ValueError, match="every slot needs"):
        Slots({1: []})
    with pytest.raises(ValueError, match="at least one must remain"):
        Slots({1: [PLAIN_TIER]}).without([PLAIN_TIER])
