"""Which tiers a batch may choose: ranges of batch sizes, by lower bound."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from operator import le

from sglang_adaptive_spec.tiers import Tier


class Slots:
    """Owns the tiers of every slot; a batch below the first bound belongs to the first slot."""

    def __init__(self, tiers: Mapping[int, Sequence[Tier]]) -> None:
        """Takes the tiers by the slot's lower bound.

        Raises:
            ValueError: No slot, or one without tiers.
        """
        if not tiers or not all(tiers.values()):
            raise ValueError(f"candidates are {dict(tiers)}; every slot needs at least one tier")
        self.tiers = {bound: tuple(sorted(tiers[bound])) for bound in sorted(tiers)}
        self._bounds = list(self.tiers)

    def bound(self, batch_size: int) -> int:
        """Returns the lower bound of the slot that serves ``batch_size``."""
        return self._bounds[max(0, bisect_right(self._bounds, batch_size) - 1)]

    def of(self, batch_size: int) -> tuple[Tier, ...]:
        """Returns the tiers of the slot that serves ``batch_size``, shallowest first."""
        return self.tiers[self.bound(batch_size)]

    def without(self, tiers: Iterable[Tier]) -> "Slots":
        """Returns these slots with ``tiers`` withdrawn.

        A slot left empty gets the deepest remaining tier below its own shallowest one, so that it
        never drafts deeper than it allows; if there is none, the shallowest remaining tier.

        Raises:
            ValueError: No tier would be left.
        """
        withdrawn = set(tiers)
        remaining = {tier for kept in self.tiers.values() for tier in kept} - withdrawn
        if not remaining:
            raise ValueError("every candidate tier was withdrawn; at least one must remain")
        kept = {
            bound: [tier for tier in allowed if tier not in withdrawn]
            for bound, allowed in self.tiers.items()
        }
        return Slots(
            {
                bound: kept[bound] or [clip(allowed[0], remaining)]
                for bound, allowed in self.tiers.items()
            }
        )


def clip(tier: Tier, allowed: Iterable[Tier]) -> Tier:
    """Returns the deepest allowed tier no deeper nor wider than ``tier``, else the shallowest."""
    allowed = sorted(allowed)
    below = [other for other in allowed if all(map(le, other, tier))]
    return below[-1] if below else allowed[0]
