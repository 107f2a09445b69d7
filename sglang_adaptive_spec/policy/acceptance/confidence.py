"""What the draft's confidence says of its drafts.

The draft gave its token at depth d the probability c. Given that the drafts before it hold, it
holds with the chance

    h(c) = sigmoid(a[d] + w * logit(c))

a = 0 and w = 1 say that c is that chance. Both are learned from the drafts that were verified, one
discounted Newton step a round: which drafts these are may depend on c, that biases neither. The
pooled hazards (`hazards.py`) would be biased by it: where a row was cut off they are told what h
expects behind it.
"""

from collections.abc import Sequence

import numpy as np

from sglang_adaptive_spec.policy.acceptance.hazards import Floats, sigmoid
from sglang_adaptive_spec.policy.settings import ConfidenceSettings

LEAST = 0.001  # a choice: c nearer to 0 or to 1 says no more


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
        """w, and a by depth."""
        return (self._slope, *self._intercepts.tolist())

    def describe(self) -> dict[str, object]:
        """Returns a and w for /server_info."""
        return {
            "slope": round(self._slope, 4),
            "intercepts": [round(each, 4) for each in self._intercepts.tolist()],
        }

    def hazards(self, confidence: Floats) -> Floats:
        """Returns the chance that each draft holds once those before it did.

        Args:
            confidence: [steps, rows], as all others here.
        """
        return hazards_by(confidence, self.weights)

    def survival(self, confidence: Floats) -> Floats:
        """Returns the chance that the first d drafts hold: [steps, rows]."""
        return np.multiply.accumulate(self.hazards(confidence), 0)

    def held(self, confidence: Floats, held: Sequence[int], seen: Sequence[int]) -> Floats:
        """Returns whether the first d drafts held, and the chance of it where nobody knows.

        Args:
            confidence: Of the drafts.
            held: Drafts per row that are known to hold.
            seen: Drafts per row of which that is known.

        Returns:
            [steps + 1, rows], from d = 0 on.
        """
        hazards, depths = self.hazards(confidence), self._depths[: len(confidence)]
        known = np.where(depths < np.array(held), 1.0, 0.0)
        chances = np.where(depths < np.array(seen), known, hazards)
        found = np.ones((len(confidence) + 1, confidence.shape[1]))
        np.multiply.accumulate(chances, 0, out=found[1:])
        return found

    def learn(self, confidence: Floats, held: Sequence[int], seen: Sequence[int]) -> None:
        """Takes a round; the arguments are those of `held`."""
        steps, settings = len(confidence), self._settings
        depths, num_held = self._depths[:steps], np.array(held)
        has_held = depths < num_held
        is_seen = (depths <= num_held) & (depths < np.array(seen))
        x = _logit(confidence)
        chance = sigmoid(self._intercepts[:steps, None] + self._slope * x)
        missing = np.where(is_seen, has_held - chance, 0.0)
        info = np.where(is_seen, chance * (1.0 - chance), 0.0)
        keep = np.exp(-confidence.shape[1] / settings.memory)
        self._info *= keep
        self._info[0, :steps] += np.add.reduce(info, 1)
        self._info[1, :steps] += np.add.reduce(info * x, 1)
        self._info_of_slope = keep * self._info_of_slope + float(np.add.reduce(info * x * x, None))
        # The matrix has a row and a column for the slope beside a diagonal.
        prior = settings.prior_rounds / 4  # of even odds
        alone, shared = self._info[0, :steps] + prior, self._info[1, :steps]
        share = shared / alone
        of_steps = np.add.reduce(missing, 1)
        of_slope = float(np.add.reduce(missing * x, None)) - float(np.add.reduce(share * of_steps))
        left = self._info_of_slope + prior - float(np.add.reduce(share * shared))
        change = of_slope / max(left, prior)
        self._slope = float(min(max(self._slope + change, 0.0), settings.most_slope))
        self._intercepts[:steps] += (of_steps - shared * change) / alone


def hazards_by(confidence: Floats, weights: Sequence[float]) -> Floats:
    """Returns the chance that each draft holds, by w and a of each depth: [steps, rows]."""
    slope, intercepts = weights[0], np.array(weights[1 : 1 + len(confidence)])
    return sigmoid(intercepts[:, None] + slope * _logit(confidence))


def _logit(confidence: Floats) -> Floats:
    inside = np.minimum(np.maximum(confidence, LEAST), 1.0 - LEAST)
    logits: Floats = np.log(inside / (1.0 - inside))
    return logits
