"""How likely drafts hold in chains and trees: one Gaussian belief about both, by position.

A tree keeps several candidates where the chain keeps one, so its draft i holds with
``sigmoid(theta[i] + lift[i] + b)``: the chain's logit theta, the tree's own lift and the request's
offset b (`model.py`). theta is the text's and moves with it, alike at all positions and
in chains and trees; a lift is the models' and hardly moves.

A round of a tree shows theta + lift, a round of a chain shows theta. What a residual says about
each follows from how uncertain each is, and remains open to correction: a tree that ran alone
leaves theta and lift unsure of each other, and one look at the chain settles both. That is what a
joint covariance keeps, so this is a Kalman filter over [theta, lifts of every tree], linearised
where the block of rounds is most likely (an iterated extended filter; West, Harrison and Migon
1985 filter binomial counts in the same way).

Ladders of chains alone have `hazards.py`, which is faster and counts its evidence.
"""

import math
from collections.abc import Iterable
from itertools import accumulate
from typing import Any

import numpy as np

from sglang_adaptive_spec.policy.acceptance.hazards import (
    LOGIT_LIMIT,
    ChangeTest,
    Floats,
    logit,
    sigmoid,
)
from sglang_adaptive_spec.policy.settings import DEFAULTS, Settings
from sglang_adaptive_spec.tiers import Tier

# Newton's method from a flat place overshoots: steps are cut to MAX_STEP logits. One or two do in
# 19 of 20 blocks, four at most.
MAX_ITERATIONS, MAX_STEP, CONVERGED = 8, 2.0, 0.05
MEAN_FLOOR = 0.002  # keeps mean hazards off 0 and 1


def guessed_lift(tier: Tier, per_doubling: float = DEFAULTS.trees.lift_per_doubling) -> float:
    """Returns the lift of a tree that nobody has observed; a chain has none."""
    if tier.topk == 1:
        return 0.0
    nodes = min(tier.topk, tier.num_drafts / tier.num_steps)
    return per_doubling * math.log2(max(nodes, 1.0))


class TreeHazards:
    """Owns the belief about every logit of a ladder with trees, and the test for a change."""

    def __init__(self, max_steps: int, trees: Iterable[Tier], settings: Settings) -> None:
        self.max_steps = max_steps
        self._settings, self._memory = settings.trees, settings.acceptance
        own = self._settings
        self.num_changes = 0
        self.evidence = np.zeros(max_steps)  # request-rounds that reached a position, discounted
        trees = sorted(trees)
        ends = list(accumulate((tier.num_steps for tier in trees), initial=max_steps))
        self._lifts = {
            tier: slice(end, end + tier.num_steps) for tier, end in zip(trees, ends, strict=False)
        }
        self._mean = np.zeros(ends[-1])
        self.theta = self._mean[:max_steps]
        self.theta[:] = logit(self._memory.prior_hazard)
        self._text, self._lift = np.zeros((2, ends[-1], ends[-1]))
        depths = np.arange(max_steps)
        self._text[:max_steps, :max_steps] = 1.0 + own.text_gap * np.minimum.outer(depths, depths)
        for tier, part in self._lifts.items():
            self._mean[part] = guessed_lift(tier, own.lift_per_doubling)
            self._lift[part, part] = 0.5 + 0.5 * np.eye(tier.num_steps)
        self._covariance = own.text_prior * self._text + own.lift_prior * self._lift
        self._prior = self._covariance.diagonal().copy()
        self._drift = own.text_drift * self._text + own.lift_drift * self._lift
        self._test = ChangeTest(self._memory)

    def lift(self, tier: Tier) -> Floats | None:
        """Returns what ``tier`` adds to the chain's logits: [num_steps], None for a chain."""
        part = self._lifts.get(tier)
        return None if part is None else self._mean[part]

    def logits(self, tier: Tier) -> Floats:
        """Returns the logits of an average request at ``tier``: [num_steps]."""
        theta, lift = self.theta[: tier.num_steps], self.lift(tier)
        return theta if lift is None else theta + lift

    def observe(
        self, tier: Tier, reached: Floats, accepted: Floats, predicted: Floats, info: Floats
    ) -> bool:
        """Learns from a block of rounds: sums per position over its request-rounds.

        Args:
            tier: the chain or tree that ran.
            reached: [num_steps] request-rounds whose earlier drafts were all accepted.
            accepted: [num_steps] those whose draft at the position was accepted, too.
            predicted: [num_steps] sum of the predicted hazards p over those that reached it.
            info: [num_steps] sum of p * (1 - p).

        Returns:
            Whether the hazards changed; the offsets that ``predicted`` held are void then.
        """
        self._forget(reached[0] * self._drift)
        # The likelihood ratio of what was not foreseen: what the belief leaves open is no change.
        _, observed = self._shared(tier)
        ones = np.ones(tier.num_steps)
        weight = np.linalg.solve(np.eye(tier.num_steps) + observed * info, ones)
        changed = self._test.add(float(weight @ (accepted - predicted)), float(weight @ info))
        has_changed = changed is not None
        if has_changed:
            self.num_changes += 1
            self._test.reset()
            own = self._settings
            self._forget(own.text_change * self._text + own.lift_change * self._lift)
            self.evidence[:] = 0.0
            hazards = sigmoid(self.logits(tier))
            predicted, info = reached * hazards, reached * hazards * (1.0 - hazards)
        self._update(tier, reached, accepted, predicted, info)
        evidence = self.evidence[: tier.num_steps]
        evidence *= np.exp(reached * (-1.0 / self._memory.slow_memory))
        evidence += reached
        return has_changed

    def recentre(self, shift: float) -> None:
        """Moves every logit up by ``shift``; the caller takes it off every request's offset."""
        self.theta += shift

    def shorten_memory(self) -> None:
        """Lets what comes count more: it may be of another kind."""
        self._test.reset()
        self._forget(self._settings.text_fresh * self._text)
        self.evidence *= min(1.0, self._memory.fast_memory / max(self.evidence[0], 1e-9))

    def gain_variance(self, one: Tier, slope: Floats, other: Tier, other_slope: Floats) -> float:
        """Returns the variance of the tokens of ``one`` less those of ``other``.

        Args:
            one: a tier.
            slope: [one.num_steps] how its tokens rise with its logits.
            other: another tier.
            other_slope: [other.num_steps] the same of its tokens.
        """
        gradient = np.zeros(len(self._mean))
        for tier, part in ((one, slope), (other, -other_slope)):
            gradient[: tier.num_steps] += part
            if tier in self._lifts:
                gradient[self._lifts[tier]] += part
        return max(float(gradient @ self._covariance @ gradient), 0.0)

    def describe(self) -> dict[str, Any]:
        """Returns the lifts, how unsure they are, and the change test for /server_info."""
        errors = np.sqrt(np.diagonal(self._covariance))
        return {
            "memory_request_rounds": None,  # what is forgotten is in the covariance
            "change_test": self._test.describe(self.num_changes),
            "tree_lifts": {
                tier.label: {
                    "logits": self._mean[part].round(3).tolist(),
                    "errors": errors[part].round(3).tolist(),
                }
                for tier, part in self._lifts.items()
            },
        }

    def _shared(self, tier: Tier) -> tuple[Floats, Floats]:
        """Returns the covariance of all logits with those a tier shows, and of these alone."""
        shared = self._covariance[:, : tier.num_steps]
        part = self._lifts.get(tier)
        if part is None:
            return shared, shared[: tier.num_steps]
        shared = shared + self._covariance[:, part]
        return shared, shared[: tier.num_steps] + shared[part]

    def _forget(self, variance: Floats) -> None:
        """Adds to the covariance, never past what was unknown before any evidence."""
        known = 1.0 - self._covariance.diagonal() / self._prior
        room = np.sqrt(np.minimum(np.maximum(known, 0.0), 1.0))
        self._covariance += variance * np.outer(room, room)

    def _update(
        self, tier: Tier, reached: Floats, accepted: Floats, predicted: Floats, info: Floats
    ) -> None:
        """Moves the belief to where prior and block are most likely together."""
        shared, observed = self._shared(tier)
        mean = predicted / np.maximum(reached, 1e-9)
        mean = np.minimum(np.maximum(mean, MEAN_FLOOR), 1.0 - MEAN_FLOOR)
        start = np.log(mean / (1.0 - mean))
        # Requests that differ tell less than as many at their mean.
        alike = info / np.maximum(reached * mean * (1.0 - mean), 1e-9)
        identity = np.eye(tier.num_steps)
        weight = np.zeros(tier.num_steps)
        for _ in range(MAX_ITERATIONS):
            moved = observed @ weight  # of the logits observed
            hazard = sigmoid(start + moved)
            weights = alike * reached * hazard * (1.0 - hazard)
            score = accepted - reached * hazard + weights * moved
            step = np.linalg.solve(identity + weights[:, None] * observed, score) - weight
            length = float(np.abs(observed @ step).max())
            weight += step * min(1.0, MAX_STEP / max(length, 1e-9))
            if length < CONVERGED:
                break
        self._mean += shared @ weight
        np.clip(self._mean, -LOGIT_LIMIT, LOGIT_LIMIT, out=self._mean)
        gain = np.linalg.solve(identity + weights[:, None] * observed, weights[:, None] * shared.T)
        covariance = self._covariance - shared @ gain
        self._covariance = 0.5 * (covariance + covariance.T)
