"""Estimates what a tier's backends and graphs will take, before they are captured.

A captured tier costs about ``fixed + unit * num_graphs * (num_steps + 2)``: per graph size one
verify, one draft-extend and num_steps draft forwards. Both constants are measured on this very
server, from the start-up tier, which is built first.
"""

from dataclasses import dataclass

from sglang_adaptive_spec.policy.tiers import Tier


def graph_units(tier: Tier, num_graphs: int) -> int:
    """Returns the forwards captured for ``tier`` at ``num_graphs`` batch sizes."""
    return num_graphs * (tier.num_steps + 2)


@dataclass(slots=True)
class MemoryModel:
    """GB per captured forward, learned on this rank."""

    fixed_gb: float  # backends and workspaces of one tier
    unit_gb: float = 0.0

    @property
    def has_learned(self) -> bool:
        """Whether a tier with graphs has been measured."""
        return self.unit_gb > 0

    def learn(self, tier: Tier, num_graphs: int, used_gb: float) -> None:
        """Learns the unit cost from a tier that took ``used_gb``; never downwards."""
        units = graph_units(tier, num_graphs)
        if units:
            self.unit_gb = max(self.unit_gb, (used_gb - self.fixed_gb) / units)

    def estimate_gb(self, tier: Tier, num_graphs: int) -> float:
        """Returns the GB that building ``tier`` is expected to take."""
        return self.fixed_gb + self.unit_gb * graph_units(tier, num_graphs)
