"""Activation is all or nothing, by reference."""

import pytest

from sglang_adaptive_spec.runtime.pool import Place, RuntimePool, TierState
from sglang_adaptive_spec.tiers import chain_tier

ONE, THREE = chain_tier(1), chain_tier(3)


class Owner:
    def __init__(self) -> None:
        self.backend: object = "start-up backend"
        self.num_steps = 3


def pool_of(first: Owner, second: Owner) -> RuntimePool:
    slots = [
        Place(first, "backend"),
        Place(first, "num_steps"),
        Place(second, "backend"),
    ]
    return RuntimePool(slots, THREE)


def state(tier: object, *values: object) -> TierState:
    return TierState(tier, values, (1, 2), 0.5, 0.25)  # type: ignore[arg-type]


def test_activate_puts_every_value_in_place_by_reference() -> None:
    first, second = Owner(), Owner()
    pool = pool_of(first, second)
    backend = object()
    pool.add(state(THREE, *pool.read_places()))
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


def test_a_missing_tier_changes_nothing() -> None:
    first, second = Owner(), Owner()
    pool = pool_of(first, second)
    before = pool.read_places()
    with pytest.raises(KeyError):
        pool.activate(ONE)
    assert pool.read_places() == before
    assert pool.current == THREE


def test_states_come_shallowest_first() -> None:
    pool = pool_of(Owner(), Owner())
    pool.add(state(THREE, 1, 2, 3))
    pool.add(state(ONE, 1, 2, 3))
    assert [kept.tier for kept in pool.states] == [ONE, THREE]


def test_a_state_of_the_wrong_length_is_our_own_mistake() -> None:
    pool = pool_of(Owner(), Owner())
    with pytest.raises(AssertionError):
        pool.add(state(ONE, "one value of three"))
