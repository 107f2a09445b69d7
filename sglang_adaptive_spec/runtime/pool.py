"""The runtime states of all tiers and the one place that swaps them.

A tier's state is a tuple of references, one per place: the attributes of the host's worker, draft
worker and model runner that a tier owns. Activating a tier assigns them all; a missing tier is
noticed before anything is assigned.
"""

from collections.abc import Iterable, Sequence
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
        values = self._states[tier].values
        for (owner, name), value in zip(self._places, values, strict=True):
            setattr(owner, name, value)
        self.current = tier
