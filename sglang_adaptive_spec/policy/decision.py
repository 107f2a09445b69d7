"""One decision of the goodput policy, with all it was made of."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sglang_adaptive_spec.tiers import PLAIN_TIER, Plan, Tier


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision with what it was made of."""

    round_idx: int
    batch_size: int
    tiers: tuple[Tier, ...]
    tokens: NDArray[np.float64]  # [tiers] expected per round
    round_ms: NDArray[np.float64]  # [tiers]
    best: Tier
    home: Tier  # in force after the decision
    reason: str
    # [tiers] that prefills are expected to take before the next round.
    between_ms: NDArray[np.float64] | float = 0.0
    packed: tuple[float, float] | None = None  # tokens and ms of the packed round in force
    counted_steps: int | None = None  # `tokens` leave out what is deeper for some request

    @property
    def period_ms(self) -> NDArray[np.float64]:
        """Expected from one round to the next: [tiers]."""
        return self.round_ms + self.between_ms

    def expected(self, plan: Plan, batch_size: int) -> tuple[float, float] | None:
        """Returns the tokens and ms of a round's decode; None if such a one was not weighed.

        Nor where drafts were left out that the round accepts all the same.
        """
        if batch_size != self.batch_size or plan.tier not in self.tiers:
            return None
        if plan.verify_lens is not None:
            return self.packed
        if self.counted_steps is not None and plan.tier.num_steps > self.counted_steps:
            return None
        idx = self.tiers.index(plan.tier)
        return float(self.tokens[idx]), float(self.round_ms[idx])

    def in_decodes(self, tier: Tier, ms: NDArray[np.float64]) -> float | None:
        """Returns how many zero-step rounds take as long as one of ``tier``.

        None if either was not weighed.

        Args:
            tier: Of the round.
            ms: [tiers] `round_ms`, or `period_ms`.
        """
        if not {PLAIN_TIER, tier} <= set(self.tiers):
            return None
        return float(ms[self.tiers.index(tier)] / ms[self.tiers.index(PLAIN_TIER)])

    def rates(self) -> list[float]:
        """Returns the expected tokens per ms of every tier."""
        return [float(rate) for rate in self.tokens / self.period_ms]

    def describe(self) -> dict[str, Any]:
        """Returns the decision for /server_info, rates in tokens per ms."""
        rates = self.rates()
        order = sorted(range(len(rates)), key=lambda idx: -rates[idx])
        runner_up = self.tiers[order[1]].label if len(order) > 1 else None
        return {
            "round": self.round_idx,
            "batch_size": self.batch_size,
            "tier": self.home.label,
            "best": self.best.label,
            "runner_up": runner_up,
            "reason": self.reason,
            "tokens_per_ms": _by_steps(self.tiers, rates),
            "expected_tokens": _by_steps(self.tiers, self.tokens),
            "round_ms": _by_steps(self.tiers, self.round_ms),
            "between_ms": _by_steps(self.tiers, self.period_ms - self.round_ms),
        }


def _by_steps(tiers: Sequence[Tier], values: Iterable[float]) -> dict[str, float]:
    pairs = zip(tiers, values, strict=True)
    return {tier.label: round(float(value), 5) for tier, value in pairs}
