"""Which tiers a batch may choose: ranges of batch sizes, by lower bound."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from operator import le
from types import MappingProxyType

from sglang_adaptive_spec.tiers import Tier


class Ladder:
    """Owns the tiers of every range; never changes. A batch below the first bound is in the first.

    What does not fit into memory is withdrawn: `without` gives another ladder.
    """

    def __init__(self, ranges: Mapping[int, Sequence[Tier]]) -> None:
        """Takes the tiers by the range's lower bound.

        Raises:
            ValueError: No range, or one without tiers.
        """
        if not ranges or not all(ranges.values()):
            raise ValueError(f"tiers are {dict(ranges)}; every range needs at least one")
        self._bounds = sorted(ranges)
        self.ranges: Mapping[int, tuple[Tier, ...]] = MappingProxyType(
            {bound: tuple(sorted(ranges[bound])) for bound in self._bounds}
        )
        self.tiers = tuple(sorted({tier for tiers in ranges.values() for tier in tiers}))

    def bound(self, batch_size: int) -> int:
        """Returns the lower bound of the range that ``batch_size`` is in."""
        return self._bounds[max(0, bisect_right(self._bounds, batch_size) - 1)]

    def of(self, batch_size: int) -> tuple[Tier, ...]:
        """Returns what a batch may choose, shallowest first."""
        return self.ranges[self.bound(batch_size)]

    def largest_batches(self, max_batch_size: int) -> dict[Tier, int]:
        """Returns every tier that some batch of at most ``max_batch_size`` may choose.

        With each the largest such batch.
        """
        largest: dict[Tier, int] = {}
        for first, following in pairwise([1, *self._bounds[1:], max_batch_size + 1]):
            if first <= max_batch_size:
                last = min(following - 1, max_batch_size)
                largest |= dict.fromkeys(self.of(first), last)
        return largest

    def within(self, num_tokens: int) -> "Ladder":
        """Returns this ladder without tiers of which a batch would verify more than so many tokens.

        A batch that would do so at every tier keeps its shallowest one; ranges alike become one.
        """
        most = {num_tokens // tier.num_draft_tokens for tier in self.tiers}  # requests, by tier
        bounds = {*self._bounds, *(size + 1 for size in most if size >= self._bounds[0])}

        def fitting(bound: int) -> list[Tier]:
            tiers = self.of(bound)
            fit = [tier for tier in tiers if bound * tier.num_draft_tokens <= num_tokens]
            return fit or [tiers[0]]

        ranges = {bound: fitting(bound) for bound in sorted(bounds)}
        alike = {bound for one, bound in pairwise(ranges) if ranges[one] == ranges[bound]}
        return Ladder({bound: tiers for bound, tiers in ranges.items() if bound not in alike})

    def without(self, tiers: Iterable[Tier]) -> "Ladder":
        """Returns this ladder with ``tiers`` withdrawn.

        A range left empty gets the deepest remaining tier below its own shallowest one, so that it
        never drafts deeper than it allows; if there is none, the shallowest remaining tier.

        Raises:
            ValueError: No tier would be left.
        """
        withdrawn = set(tiers)
        remaining = [tier for tier in self.tiers if tier not in withdrawn]
        if not remaining:
            raise ValueError("every tier was withdrawn; at least one must remain")
        return Ladder(
            {
                bound: [tier for tier in allowed if tier not in withdrawn]
                or [clip(allowed[0], remaining)]
                for bound, allowed in self.ranges.items()
            }
        )


def no_deeper(tiers: tuple[Tier, ...], most_steps: int | None) -> tuple[Tier, ...]:
    """Returns those of ``tiers`` that draft no deeper, or the shallowest; all without a limit."""
    if most_steps is None:
        return tiers
    return tuple(tier for tier in tiers if tier.num_steps <= most_steps) or tiers[:1]


def clip(tier: Tier, allowed: Iterable[Tier]) -> Tier:
    """Returns the deepest allowed tier no deeper nor wider than ``tier``, else the shallowest."""
    allowed = sorted(allowed)
    below = [other for other in allowed if all(map(le, other, tier))]
    return below[-1] if below else allowed[0]
