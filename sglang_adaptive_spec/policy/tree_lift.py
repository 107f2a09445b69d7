"""How much likelier a tree holds a position than the chain: one lift per tree and depth, in logits.

A tree of depth d keeps several candidates where the chain keeps one, so the hazard at depth i is
``h = sigmoid(theta[i] + b + lift[i])`` with the chain's theta and the request's offset b
(`policy/acceptance.py`). With the discounted request-rounds N that reached the depth at this tree,
A that held it, and s, the mean logit that the chain would have had for them:

    lift[i] = logit((A + n * sigmoid(guess + s)) / (N + n)) - s

The guess stands for n request-rounds: ``LIFT_PER_DOUBLING * log2(nodes per depth)``. Lifts depend
on the pair of models more than on the text, so a change of the acceptance leaves them alone.
"""

import math

import numpy as np

from sglang_adaptive_spec.policy.hazards import (
    LOGIT_LIMIT,
    NEXT_PRIOR_ROUNDS,
    SLOW_MEMORY,
    Floats,
    sigmoid,
)
from sglang_adaptive_spec.policy.tiers import Tier

# Logits that a doubling of the candidates adds, before any evidence. Static trees of the SmolLM2
# pair on four kinds of text: 0.3 to 0.5 (docs/policy.md).
LIFT_PER_DOUBLING = 0.4
MEAN_FLOOR = 1e-4  # keeps a mean hazard off 0 and 1


def guessed_lift(tier: Tier) -> float:
    """Returns the lift of a tree that nobody has observed; a chain has none."""
    if tier.topk == 1:
        return 0.0
    nodes = min(tier.topk, tier.num_drafts / tier.num_steps)
    return LIFT_PER_DOUBLING * math.log2(max(nodes, 1.0))


class TreeLift:
    """Owns what one tree adds to the chain's logits, by depth."""

    def __init__(self, tier: Tier) -> None:
        self._guess = guessed_lift(tier)
        self._sums = np.zeros((3, tier.num_steps))  # A, N, N * s: discounted
        self.logits = np.full(tier.num_steps, self._guess)

    @property
    def evidence(self) -> Floats:
        """Discounted request-rounds that reached each depth: [num_steps]."""
        reached: Floats = self._sums[1]
        return reached

    def observe(self, reached: Floats, accepted: Floats, chain_hazards: Floats) -> None:
        """Learns from a block of rounds at this tree.

        Args:
            reached: [num_steps] request-rounds that reached each depth.
            accepted: [num_steps] those that held it.
            chain_hazards: [num_steps] sum of the chain's hazards over those that reached it.
        """
        seen = np.maximum(reached, 1e-9)
        mean = np.clip(chain_hazards / seen, MEAN_FLOOR, 1.0 - MEAN_FLOOR)
        self._sums *= np.exp(reached * (-1.0 / SLOW_MEMORY))
        self._sums += (accepted, reached, reached * np.log(mean / (1.0 - mean)))
        held, rounds, weighted = self._sums
        level = weighted / np.maximum(rounds, 1e-9)
        prior = NEXT_PRIOR_ROUNDS
        hazard = (held + prior * sigmoid(self._guess + level)) / (rounds + prior)
        hazard = np.clip(hazard, MEAN_FLOOR, 1.0 - MEAN_FLOOR)
        lift = np.log(hazard / (1.0 - hazard)) - level
        self.logits = np.clip(lift, -LOGIT_LIMIT, LOGIT_LIMIT)

    def variance(self, hazards: Floats) -> Floats:
        """Returns the squared standard error of every lift, given the hazards there."""
        info = hazards * (1.0 - hazards)
        result: Floats = 1.0 / ((self.evidence + NEXT_PRIOR_ROUNDS) * np.maximum(info, 1e-3))
        return result
