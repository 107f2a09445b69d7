"""How likely the draft at each position holds, pooled over requests; forgets fast after a change.

Position i = 1.. has the logit ``theta[i]``: the hazard ``h = sigmoid(theta[i] + b)`` of a request
with offset b (`model.py`). Per position, discounted sums over the request-rounds that
reached it: N (reached), A (accepted) and E (N times ``e = logit(mean p) - theta``, where p are the
hazards predicted for exactly those requests). With ``m = theta[i-1] + gap[i]``, ``s = E / N`` and
the request-rounds n that a guess counts as:

    theta[i] = logit((A + n * sigmoid(m + s)) / (N + n)) - s

Deep positions are reached mostly by good requests; s is how good they were, so theta is that of
an average request. A position without evidence follows the one before (gap 0), after a change at
its old distance in logits. Memory: the request-rounds since the last change, within fast_memory
and slow_memory. Change test: two-sided CUSUM (Page 1954) of the log-likelihood ratio of a shift
of all logits; an alarm restarts every sum from the rounds since the shift began.
"""

import math
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sglang_adaptive_spec.policy.settings import AcceptanceSettings
from sglang_adaptive_spec.tiers import Tier

Floats = NDArray[np.float64]

LOGIT_LIMIT = 6.0  # hazards stay within 0.0025 .. 0.9975
NUM_SHIFTS = 4


def sigmoid(logits: Floats) -> Floats:
    """Returns 1 / (1 + exp(-logits)); callers keep logits within a few LOGIT_LIMIT."""
    result: Floats = 1.0 / (1.0 + np.exp(-logits))
    return result


def logit(probability: float) -> float:
    """Returns log(p / (1 - p)) for 0 < p < 1."""
    return math.log(probability / (1.0 - probability))


class ChangeTest:
    """Owns the scores of a shift of all logits: log-likelihood ratios since it may have begun."""

    def __init__(self, settings: AcceptanceSettings) -> None:
        shifts = (settings.small_shift, settings.large_shift)
        self._shifts = np.array([*shifts, *(-shift for shift in shifts)])
        self._threshold = settings.change_threshold
        self.scores = np.zeros(NUM_SHIFTS)

    def add(self, residual: float, info: float) -> int | None:
        """Books a block of rounds; returns the index of the shift that it proves, if any.

        Args:
            residual: accepted drafts beyond those predicted.
            info: sum of p * (1 - p) over the predicted hazards p.
        """
        self.scores += self._shifts * residual - (0.5 * info) * self._shifts * self._shifts
        np.maximum(self.scores, 0.0, out=self.scores)
        first = int(self.scores.argmax())
        return first if self.scores[first] >= self._threshold else None

    def reset(self) -> None:
        """Forgets every suspicion."""
        self.scores[:] = 0.0

    def describe(self, num_changes: int) -> dict[str, Any]:
        """Returns how many changes were found and how near the next is, for /server_info."""
        return {
            "num_changes": num_changes,
            "change_score": round(float(self.scores.max()), 2),
            "change_threshold": self._threshold,
        }


class PooledHazards:
    """Owns the pooled logit of every position of chains; a change of all of them starts it anew."""

    def __init__(self, max_steps: int, settings: AcceptanceSettings) -> None:
        self.max_steps = max_steps
        self._settings = settings
        self.num_changes = 0
        self.memory = settings.fast_memory  # request-rounds
        self.evidence = np.zeros(max_steps)  # N per position
        self._sums = np.zeros((3, max_steps))  # A, N, E: discounted
        self._totals = np.zeros((3, max_steps))  # the same since the last change, undiscounted
        self._marks = np.zeros((NUM_SHIFTS, 3, max_steps))  # totals where a shift may begin
        self._test = ChangeTest(settings)
        self._gaps = [0.0] * max_steps
        self.theta = np.zeros(max_steps)
        deeper = [settings.next_prior_rounds] * (max_steps - 1)
        self._prior_rounds = [settings.first_prior_rounds, *deeper]
        self._refresh()

    def observe(
        self, tier: Tier, reached: Floats, accepted: Floats, predicted: Floats, info: Floats
    ) -> bool:
        """Learns from a block of rounds: sums per position over its request-rounds.

        Args:
            tier: the chain that ran.
            reached: [num_steps] request-rounds whose earlier drafts were all accepted.
            accepted: [num_steps] those whose draft at the position was accepted, too.
            predicted: [num_steps] sum of the predicted hazards p over those that reached it.
            info: [num_steps] sum of p * (1 - p).

        Returns:
            Whether the hazards changed; the offsets that ``predicted`` held are void then.
        """
        num_steps = tier.num_steps
        seen = np.maximum(reached, 1e-9)  # nothing reached: predicted is 0, too, and adds nothing
        mean = np.minimum(np.maximum(predicted / seen, 0.002), 0.998)
        block = np.empty((3, num_steps))
        block[0] = accepted
        block[1] = reached
        block[2] = reached * (np.log(mean / (1.0 - mean)) - self.theta[:num_steps])
        sums = self._sums[:, :num_steps]
        sums *= np.exp(reached * (-1.0 / self.memory))
        sums += block
        self._totals[:, :num_steps] += block
        self.memory = min(self._settings.slow_memory, self.memory + float(reached[0]))
        residual = float(np.add.reduce(accepted) - np.add.reduce(predicted))
        changed = self._test.add(residual, float(np.add.reduce(info)))
        if changed is None:
            self._marks[self._test.scores == 0.0] = self._totals
        else:
            self._restart(self._totals - self._marks[changed])
        self._refresh()
        return changed is not None

    def recentre(self, shift: float) -> None:
        """Moves every logit up by ``shift``; the caller takes it off every request's offset."""
        self._sums[2] -= shift * self._sums[1]
        self._totals[2] -= shift * self._totals[1]
        self._marks[:, 2] -= shift * self._marks[:, 1]
        self._gaps[0] += shift
        self._refresh()

    def shorten_memory(self) -> None:
        """Remembers no more than fast_memory request-rounds: what comes may be of another kind."""
        fast_memory, reached = self._settings.fast_memory, float(self._sums[1, 0])
        if reached > fast_memory:
            self._sums *= fast_memory / reached
        self._totals[:] = 0.0
        self._marks[:] = 0.0
        self._test.reset()
        self.memory = fast_memory
        self._refresh()

    def lift(self, tier: Tier) -> Floats | None:
        """Returns what ``tier`` adds to every logit: nothing, it is a chain."""
        return None

    def logits(self, tier: Tier) -> Floats:
        """Returns the logits of an average request at ``tier``: [num_steps]."""
        return self.theta[: tier.num_steps]

    def gain_variance(self, one: Tier, slope: Floats, other: Tier, other_slope: Floats) -> float:
        """Returns the variance of the tokens of ``one`` less those of ``other``.

        Args:
            one: a chain.
            slope: [one.num_steps] how its tokens rise with its logits.
            other: another chain.
            other_slope: [other.num_steps] the same of its tokens.
        """
        gradient = np.zeros(self.max_steps)
        gradient[: one.num_steps] = slope
        gradient[: other.num_steps] -= other_slope
        return float(gradient**2 @ self.variance())

    def variance(self) -> Floats:
        """Returns the squared standard error of every logit: [max_steps]."""
        hazards = sigmoid(self.theta)
        result: Floats = 1.0 / ((self.evidence + self._prior_rounds) * hazards * (1.0 - hazards))
        return result

    def describe(self) -> dict[str, Any]:
        """Returns memory and change test for /server_info."""
        return {
            "memory_request_rounds": round(self.memory, 1),
            "change_test": self._test.describe(self.num_changes),
            "tree_lifts": None,
        }

    def _restart(self, since: Floats) -> None:
        """Keeps only the rounds since the shift began, and the old profile as the guess."""
        self.num_changes += 1
        settings, variance = self._settings, self.variance().tolist()
        usual = settings.gap_spread**2
        pairs = pairwise(zip(self.theta.tolist(), variance, strict=True))
        self._gaps[1:] = [
            (deep - shallow) * usual / (usual + noise + other_noise)
            for (shallow, noise), (deep, other_noise) in pairs
        ]
        since[2] = 0.0  # the offsets start anew, too: all requests are average ones
        accepted, reached, _ = since[:, 0].tolist()
        # Position 1 is its own guess: the data of the new regime, not the old regime's.
        self._gaps[0] = logit((accepted + 0.5) / (reached + 1.0)) - logit(settings.prior_hazard)
        self._sums[:] = since
        self._totals[:] = 0.0
        self._marks[:] = 0.0
        self._test.reset()
        self.memory = max(settings.fast_memory, min(reached, settings.slow_memory))

    def _refresh(self) -> None:
        previous = logit(self._settings.prior_hazard)
        rows = zip(*self._sums.tolist(), self._gaps, self._prior_rounds, strict=True)
        theta = []
        for accepted, reached, effect, gap, prior in rows:
            shift = effect / reached if reached > 1e-6 else 0.0
            guess = 1.0 / (1.0 + math.exp(-max(-20.0, min(20.0, previous + gap + shift))))
            hazard = (accepted + prior * guess) / (reached + prior)
            hazard = max(1e-6, min(1.0 - 1e-6, hazard))
            previous = max(-LOGIT_LIMIT, min(LOGIT_LIMIT, logit(hazard) - shift))
            theta.append(previous)
        self.theta[:] = theta
        self.evidence = self._sums[1]
