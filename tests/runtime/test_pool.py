"""Activation is all or nothing, by reference."""

import contextlib

import pytest

from sglang_adaptive_spec.runtime.pool import Place, RuntimePool, TierState, read_places, restored
from sglang_adaptive_spec.tiers import chain_tier

ONE, THREE = chain_tier(1), chain_tier(3)


class Owner:
    def __init__(self) -> None:
        self.backend: object = "start-up backend"
        self.num_steps = 3


def places_of(first: Owner, second: Owner) -> list[Place]:
    return [Place(first, "backend"), Place(first, "num_steps"), Place(second, "backend")]


def state(tier: object, *values: object) -> TierState:
    return TierState(tier, values, (1, 2), 0.5, 0.25)  # type: ignore[arg-type]


def test_activate_puts_every_value_in_place_by_reference() -> None:
    first, second = Owner(), Owner()
    places = places_of(first, second)
    pool = RuntimePool(places, THREE)
    backend = object()
    pool.add(state(THREE, *read_places(places)))
    pool.add(state(ONE, backend, 1, None))
    pool.activate(ONE)
    assert first.backend is backend
    assert (first.num_steps, second.backend, pool.current) == (1, None, ONE)
    pool.activate(THREE)
    assert (first.backend, first.num_steps, second.backend) == (
        "start-up backend",
        3,
        "start-up backend",
    )


def test_what_a_build_replaced_is_put_back_also_if_it_fails() -> None:
    first, second = Owner(), Owner()
    places = places_of(first, second)
    pool, before = RuntimePool(places, THREE), read_places(places)
    with restored(places):
        first.backend, second.backend = "a tier's", "a tier's"
        assert pool.read() == ("a tier's", 3, "a tier's")
    assert pool.read() == before
    with contextlib.suppress(MemoryError), restored(places):
        first.num_steps = 1
        raise MemoryError
    assert pool.read() == before


def test_a_missing_tier_changes_nothing() -> None:
    first, second = Owner(), Owner()
    places = places_of(first, second)
    pool = RuntimePool(places, THREE)
    before = read_places(places)
    with pytest.raises(KeyError):
        pool.activate(ONE)
    assert read_places(places) == before
    assert pool.current == THREE


def test_states_come_shallowest_first() -> None:
    pool = RuntimePool(places_of(Owner(), Owner()), THREE)
    pool.add(state(THREE, 1, 2, 3))
    pool.add(state(ONE, 1, 2, 3))
    assert [kept.tier for kept in pool.states] == [ONE, THREE]


def test_a_state_of_the_wrong_length_is_our_own_mistake() -> None:
    pool = RuntimePool(places_of(Owner(), Owner()), THREE)
    with pytest.raises(AssertionError):
        pool.add(state(ONE, "one value of three"))
