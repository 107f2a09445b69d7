"""What every policy can be asked."""

from collections.abc import Mapping
from typing import Any, Protocol

from sglang_adaptive_spec.ladder import Ladder
from sglang_adaptive_spec.tiers import DecodeBatch, Observation, RoundTime, Tier


class Policy(Protocol):
    """Chooses a tier per decode round; must be a pure function of what it was told.

    One that can wait for its results says how many it takes together next: `results_at_once`.
    """

    @property
    def ladder(self) -> Ladder:
        """What ``choose`` may ever return."""

    def choose(self, batch: DecodeBatch) -> Tier:
        """Returns the tier for the decode batch that is about to launch."""

    def observe(self, observation: Observation) -> None:
        """Learns from a finished round; rounds arrive in launch order, one round late."""

    def observe_time(self, round_time: RoundTime) -> None:
        """Learns what a round took; only uninterrupted rounds are reported."""

    def describe(self) -> Mapping[str, Any]:
        """Returns the policy's state for /server_info: slots with tier and estimate."""


def results_at_once(policy: object) -> int:
    """Returns how many results a policy takes together, as long as the batch stays the same."""
    return int(getattr(policy, "results_at_once", 1))
