"""What the draft's confidence says of its drafts.

The draft gave its token at depth d the probability c. Given that the drafts before it hold, it
holds with the chance

    h(c) = sigmoid(a[d] + w * logit(c))

a = 0 and w = 1 say that c is that chance. Both are learned from the drafts that were verified, one
discounted Newton step a round: which drafts these are may depend on c, that biases neither. (Rounds
cut by what requests accepted before teach neither: that says more than c.) The pooled hazards
(`hazards.py`) would be biased by it: where a row was cut off they are told what h expects behind
it.
"""

import math
from collections.abc import Sequence

import numpy as np

from sglang_adaptive_spec.policy.acceptance.hazards import Floats, sigmoid
from sglang_adaptive_spec.policy.settings import ConfidenceSettings

LEAST = 0.001  # a choice: c nearer to 0 or to 1 says no more
# Choice: rounds from one whose c are told to the next, where no lengths come of them.
ASKED_EVERY = 4


class ConfidenceModel:
    """Owns a and w."""

    def __init__(self, max_steps: int, settings: ConfidenceSettings) -> None:
        self._settings = settings
        self._depths = np.arange(max_steps)[:, None]
        self._intercepts = np.zeros(max_steps)
        self._slope = 1.0
        # Information so far, discounted: of each intercept, of each with the slope, of the slope.
        self._info = np.zeros((2, max_steps))
        self._info_of_slope = 0.0

    @property
    def weights(self) -> tuple[float, ...]:
        """w, and a by depth; a depth of which nothing was seen has that of the one before."""
        found = [self._slope]
        for own, info in zip(self._intercepts.tolist(), self._info[0].tolist(), strict=True):
            found.append(own if info > 0.0 or len(found) == 1 else found[-1])
        return tuple(found)

    @property
    def is_told(self) -> bool:
        """Whether any round was learned."""
        return bool(self._info[0].any())

    def describe(self) -> dict[str, object]:
        """Returns a and w for /server_info."""
        return {
            "slope": round(self._slope, 4),
            "intercepts": [round(each, 4) for each in self.weights[1:]],
        }

    def hazards(self, confidence: Floats) -> Floats:
        """Returns the chance that each draft holds once those before it did.

        Args:
            confidence: [steps, rows], as all others here.
        """
        return hazards_by(confidence, self.weights)

    def held(self, hazards: Floats, held: Sequence[int], seen: Sequence[int]) -> Floats:
        """Returns whether the first d drafts held, and the chance of it where nobody knows.

        Args:
            hazards: Of the drafts.
            held: Drafts per row that are known to hold.
            seen: Drafts per row of which that is known.

        Returns:
            [steps + 1, rows], from d = 0 on.
        """
        depths = self._depths[: len(hazards)]
        chances = np.where(depths < np.array(seen), depths < np.array(held), hazards)
        found = np.ones((len(hazards) + 1, hazards.shape[1]))
        np.multiply.accumulate(chances, 0, out=found[1:])
        return found

    def learn(
        self, confidence: Floats, hazards: Floats, held: Sequence[int], seen: Sequence[int]
    ) -> None:
        """Takes a round; ``hazards`` are those of ``confidence``, the rest is as in `held`."""
        steps, settings = len(confidence), self._settings
        depths, num_held = self._depths[:steps], np.array(held)
        is_seen = depths < np.minimum(num_held + 1, np.array(seen))
        x = _logit(confidence)
        missing = ((depths < num_held) - hazards) * is_seen
        info = hazards * (1.0 - hazards) * is_seen
        keep = math.exp(-confidence.shape[1] / settings.memory)
        self._info *= keep
        self._info[0, :steps] += np.add.reduce(info, 1)
        info *= x
        self._info[1, :steps] += np.add.reduce(info, 1)
        info *= x
        self._info_of_slope = keep * self._info_of_slope + float(np.add.reduce(info, None))
        # The matrix has a row and a column for the slope beside a diagonal.
        prior = settings.prior_rounds / 4  # of even odds
        alone, shared = self._info[0, :steps] + prior, self._info[1, :steps]
        share = shared / alone
        of_steps = np.add.reduce(missing, 1)
        missing *= x
        of_slope = float(np.add.reduce(missing, None)) - float(np.add.reduce(share * of_steps))
        left = self._info_of_slope + prior - float(np.add.reduce(share * shared))
        slope = self._slope + of_slope / max(left, prior)
        change = min(max(slope, 0.0), settings.most_slope) - self._slope
        self._slope += change
        self._intercepts[:steps] += (of_steps - shared * change) / alone


def hazards_by(confidence: Floats, weights: Sequence[float]) -> Floats:
    """Returns the chance that each draft holds, by w and a of each depth: [steps, rows]."""
    slope, intercepts = weights[0], np.array(weights[1 : 1 + len(confidence)])
    return sigmoid(intercepts[:, None] + slope * _logit(confidence))


def _logit(confidence: Floats) -> Floats:
    inside = np.minimum(np.maximum(confidence, LEAST), 1.0 - LEAST)
    logits: Floats = np.log(inside / (1.0 - inside))
    return logits
