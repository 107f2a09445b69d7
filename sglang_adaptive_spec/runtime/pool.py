"""The runtime states of all tiers and the one place that swaps them.

A tier's state is a tuple of references, one per place: the attributes of the host's worker, draft
worker and model runner that a tier owns. Activating a tier assigns them all; a missing tier is
noticed before anything is assigned.
"""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sglang_adaptive_spec.tiers import Tier


class Place(NamedTuple):
    """An attribute of a host object that changes with the tier."""

    owner: object
    name: str


def read_places(places: Iterable[Place]) -> tuple[object, ...]:
    """Returns what the host's objects hold now, in the order of ``places``."""
    return tuple(getattr(*each) for each in places)


def write_places(places: Iterable[Place], values: Iterable[object]) -> None:
    """Gives the host's objects what `read_places` returned."""
    for (owner, name), value in zip(places, values, strict=True):
        setattr(owner, name, value)


@contextlib.contextmanager
def restored(places: Sequence[Place]) -> Iterator[None]:
    """Puts back at its end what the host's objects held before the block."""
    values = read_places(places)
    try:
        yield
    finally:
        write_places(places, values)


@dataclass(frozen=True, slots=True)
class TierState:
    """What one tier owns, and what building it took."""

    tier: Tier
    values: tuple[object, ...]  # aligned with the pool's places
    graph_batch_sizes: tuple[int, ...]
    build_s: float
    build_gb: float


class RuntimePool:
    """Holds one `TierState` per tier and knows the tier in force."""

    def __init__(self, places: Sequence[Place], startup: Tier) -> None:
        self._places = tuple(places)
        self._states: dict[Tier, TierState] = {}
        self.current = startup

    def read(self) -> tuple[object, ...]:
        """Returns what the host's objects hold now: the values of a tier just built."""
        return read_places(self._places)

    def add(self, state: TierState) -> None:
        """Keeps a built tier."""
        assert len(state.values) == len(self._places), "a state has one value per place"
        self._states[state.tier] = state

    @property
    def states(self) -> tuple[TierState, ...]:
        """Every tier built, shallowest first."""
        return tuple(self._states[tier] for tier in sorted(self._states))

    def activate(self, tier: Tier) -> None:
        """Puts ``tier`` in force.

        Raises:
            KeyError: The tier was never built; nothing has been changed.
        """
        write_places(self._places, self._states[tier].values)
        self.current = tier
