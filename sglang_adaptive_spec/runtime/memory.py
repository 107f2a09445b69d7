"""Estimates what a tier's backends and graphs will take, before they are captured.

A captured tier costs about ``fixed + unit * num_graphs * num_forwards``. Where a model drafts, each
graph size has num_steps + 2 forwards: one verify, one draft-extend and the draft's. Both costs are
measured on this very server, from the start-up tier, which is built first. What all tiers share
(host/attention/kv_index.py) is in neither.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sglang_adaptive_spec.tiers import Tier


@dataclass(slots=True)
class MemoryModel:
    """GB per captured forward, learned on this rank."""

    fixed_gb: float  # backends and workspaces of one tier
    num_forwards: Callable[[Tier], int]  # that a tier captures at each batch size
    unit_gb: float = 0.0

    @property
    def has_learned(self) -> bool:
        """Whether a tier with graphs has been measured."""
        return self.unit_gb > 0

    def learn(self, tier: Tier, sizes: Sequence[int], used_gb: float) -> None:
        """Learns the unit cost from a tier that took ``used_gb``; never downwards.

        A tier that took no more than backends do teaches nothing.

        Args:
            tier: what was captured.
            sizes: the batch sizes of its graphs.
            used_gb: what it took.
        """
        units, rest_gb = len(sizes) * self.num_forwards(tier), used_gb - self.fixed_gb
        if units and rest_gb > 0:
            self.unit_gb = max(self.unit_gb, rest_gb / units)

    def estimate_gb(self, tier: Tier, sizes: Sequence[int]) -> float:
        """Returns the GB that building ``tier`` with graphs of ``sizes`` is expected to take."""
        return self.fixed_gb + self.unit_gb * len(sizes) * self.num_forwards(tier)
