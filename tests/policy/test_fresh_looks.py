"""Looks at drafting for batches of new requests: made while they may pay."""

import random
from collections.abc import Sequence
from typing import Any

import pytest

from sglang_adaptive_spec.policy.fresh_looks import FreshLooks
from sglang_adaptive_spec.policy.settings import DEFAULTS

SETTINGS = DEFAULTS.cadence


def batches(looks: FreshLooks, gains: list[float]) -> list[bool]:
    """Lets batches come that a look would bring so many tokens; returns which were looked at."""
    looked = []
    for gain in gains:
        looked.append(looks.begin(True, (f"request {len(looked)}",)))
        looks.book(8, 8 - gain)
    return looked


def test_looks_that_never_pay_are_made_once_in_a_few_batches() -> None:
    looked = batches(FreshLooks(SETTINGS), [-5.0] * 80)
    assert all(looked[: SETTINGS.min_fresh_looks])
    assert sum(looked[8:]) == 72 // SETTINGS.fresh_look_distance


@pytest.mark.parametrize("share", [0.3, 0.5])
def test_where_they_pay_for_some_requests_they_are_made_for_most(share: float) -> None:
    rng = random.Random(1)
    gains = [40.0 if rng.random() < share else -6.0 for _ in range(300)]
    assert sum(batches(FreshLooks(SETTINGS), gains)) > 0.9 * len(gains)


def test_one_look_that_pays_well_is_enough_to_make_them_again() -> None:
    looks = FreshLooks(SETTINGS)
    batches(looks, [-5.0] * 40)
    looked = batches(looks, [60.0] * 20)
    first = looked.index(True)
    assert first < SETTINGS.fresh_look_distance
    assert all(looked[first:])


def test_batches_that_drafted_already_are_neither_looked_at_nor_booked() -> None:
    looks = FreshLooks(SETTINGS)
    for _ in range(20):
        assert not looks.begin(False, ("a request",))
        assert not looks.is_under_way
        looks.book(1, 100.0)
    assert all(batches(looks, [-5.0] * SETTINGS.min_fresh_looks))


@pytest.mark.parametrize(
    "requests",
    [range(SETTINGS.fresh_look_batch + 1), ("c", "d")],
    ids=["it has grown", "all of its requests are gone"],
)
def test_a_batch_that_is_another_one_by_now_is_booked_no_further(requests: Sequence[Any]) -> None:
    looks = FreshLooks(SETTINGS)
    assert looks.begin(True, ("a", 1))
    looks.book(8, 10.0)
    looks.note_batch(("a", "c"))
    assert looks.is_under_way
    looks.note_batch(requests)
    assert not looks.is_under_way
    looks.book(8, 5000.0)
    assert looks.describe()["mean_gain"] == -2.0
