"""Which batch sizes are measured at start-up, and in which order."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st


@pytest.fixture(scope="module")
def seeding(plugins_loaded: None) -> Any:
    from sglang_adaptive_spec.host import seeding

    return seeding


def test_the_ends_come_first_then_the_widest_gap(seeding: Any) -> None:
    sizes = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128]
    assert seeding.spaced(sizes, 3) == [1, 128, 12]
    assert sorted(seeding.spaced(sizes, 8))[:2] == [1, 2]


@given(sizes=st.sets(st.integers(1, 512)), count=st.integers(2, 10))
def test_both_ends_are_measured_and_nothing_twice(
    seeding: Any, sizes: set[int], count: int
) -> None:
    chosen = seeding.spaced(sorted(sizes), count)
    assert len(chosen) == len(set(chosen)) == min(count, len(sizes))
    assert set(chosen) <= sizes
    assert not sizes or {min(sizes), max(sizes)} <= set(chosen)
