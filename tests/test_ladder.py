"""Which tiers a batch may choose, and what a range falls back to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_adaptive_spec.ladder import Ladder, clip
from sglang_adaptive_spec.tiers import PLAIN_TIER, Tier, chain_tier

TREE = Tier(3, 4, 16)


def test_a_batch_below_the_first_bound_belongs_to_the_first_range() -> None:
    ladder = Ladder({8: [chain_tier(1)], 2: [chain_tier(5), chain_tier(3)]})
    assert [ladder.bound(size) for size in (1, 2, 7, 8, 100)] == [2, 2, 2, 8, 8]
    assert ladder.of(3) == (chain_tier(3), chain_tier(5))


def test_a_tier_is_clipped_to_one_neither_deeper_nor_wider() -> None:
    assert clip(TREE, [PLAIN_TIER, chain_tier(2), chain_tier(5)]) == chain_tier(2)
    assert clip(chain_tier(3), [chain_tier(1), Tier(2, 8, 60)]) == chain_tier(1)
    assert clip(chain_tier(5), [chain_tier(1), TREE]) == chain_tier(1)
    assert clip(Tier(5, 8, 60), [chain_tier(3), TREE]) == TREE
    assert clip(PLAIN_TIER, [TREE, chain_tier(1)]) == chain_tier(1)  # nothing is below


def test_a_range_left_empty_falls_to_a_shallower_tier_that_remains() -> None:
    ladder = Ladder({1: [chain_tier(3)], 4: [chain_tier(1)], 8: [PLAIN_TIER]})
    kept = ladder.without([chain_tier(3), PLAIN_TIER])
    assert kept.ranges == {1: (chain_tier(1),), 4: (chain_tier(1),), 8: (chain_tier(1),)}


def test_withdrawing_leaves_the_ladder_itself_as_it_is() -> None:
    ladder = Ladder({1: [chain_tier(3), chain_tier(5), chain_tier(7)], 16: [chain_tier(5)]})
    kept = ladder.without([chain_tier(5)])
    assert kept.ranges == {1: (chain_tier(3), chain_tier(7)), 16: (chain_tier(3),)}
    assert ladder.of(16) == (chain_tier(5),)
    with pytest.raises(TypeError):
        ladder.ranges[16] = ()  # type: ignore[index]


@given(
    st.dictionaries(
        st.integers(1, 40), st.sets(st.sampled_from([0, 1, 3]), min_size=1), min_size=1
    ),
    st.integers(0, 50),
)
def test_the_largest_batches_are_those_found_by_looking_at_each(
    steps: dict[int, set[int]], max_batch_size: int
) -> None:
    ladder = Ladder({bound: list(map(chain_tier, of)) for bound, of in steps.items()})
    by_batch = {tier: size for size in range(1, max_batch_size + 1) for tier in ladder.of(size)}
    assert ladder.largest_batches(max_batch_size) == by_batch


def test_ranges_without_tiers_are_refused() -> None:
    with pytest.raises(ValueError, match="every range needs"):
        Ladder({1: []})
    with pytest.raises(ValueError, match="at least one must remain"):
        Ladder({1: [PLAIN_TIER]}).without([PLAIN_TIER])


def test_a_ladder_within_some_tokens_cuts_its_ranges_where_tiers_stop_fitting() -> None:
    one, three, seven = chain_tier(1), chain_tier(3), chain_tier(7)
    ladder = Ladder({1: [PLAIN_TIER, one, three, seven], 40: [PLAIN_TIER, one, three]})
    cut = ladder.within(128)
    assert dict(cut.ranges) == {
        1: (PLAIN_TIER, one, three, seven),
        17: (PLAIN_TIER, one, three),
        33: (PLAIN_TIER, one),
        65: (PLAIN_TIER,),  # from 129 on not even they fit, and there is nothing shallower
    }
    for size in range(1, 129):
        assert all(size * tier.num_draft_tokens <= 128 for tier in cut.of(size))
    assert all(ladder.within(10**6).of(size) == ladder.of(size) for size in range(1, 999))
