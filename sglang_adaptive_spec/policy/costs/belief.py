"""What served rounds of some tiers say about the others at a batch size: one Gaussian a bucket.

The correction c[t] of a tier is the log of served over seeded time. Before a round is served

    c ~ N(0, surprise^2 * (seed covariance + OWN^2 * I + COMMON^2 * 11'))

OWN is what serving adds to one tier, COMMON what it adds to all drafting tiers alike; zero steps
have no part in that, their round is another one. Rounds served are measurements of their tier's c;
the others follow as far as the covariance ties them. surprise grows where corrections, settled or
below zero, turn out larger than the covariance allows, such as in the table of another machine.
Measurements are taken one after the other, element by element: BLAS rounds differently on another
kind of CPU.

Round times have a heavy tail on one side: much makes a round slower, nothing but its tier makes it
faster. So fewer than firm_rounds raise their tier's belief by most_rise at most. Where they
would have raised it further, they say nothing of other tiers, the belief stays as unsure as it was,
and its tier is looked at again.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sglang_adaptive_spec.policy.costs.curves import Floats
from sglang_adaptive_spec.policy.settings import CostSettings


class Belief(NamedTuple):
    """Logs of all corrections."""

    mean: Floats  # [num_tiers, num_buckets]
    spread: Floats  # [num_tiers, num_buckets] standard errors


def prior(seed_covariance: Floats, plain_idx: int | None, settings: CostSettings) -> Floats:
    """Returns the covariance of the corrections before any round: [num_buckets, T, T].

    Args:
        seed_covariance: Of the logs of the seeds' errors, [num_buckets, T, T].
        plain_idx: Zero steps.
        settings: The spreads.
    """
    num_tiers = seed_covariance.shape[-1]
    is_drafting = np.ones(num_tiers)
    if plain_idx is not None:
        is_drafting[plain_idx] = 0.0
    shared: Floats = settings.common_spread**2 * np.outer(is_drafting, is_drafting)
    own = settings.own_spread**2 * np.eye(num_tiers)
    covariance: Floats = seed_covariance + own + shared
    return covariance


def believe(
    rounds: npt.NDArray[np.int64],
    log: Floats,
    spread: Floats,
    covariance: Floats,
    settings: CostSettings,
) -> Belief:
    """Returns what is believed of every correction.

    Args:
        rounds: Rounds behind every measured correction, [num_tiers, num_buckets].
        log: Logs of the measured corrections, [num_tiers, num_buckets].
        spread: Their standard errors, [num_tiers, num_buckets].
        covariance: The `prior`.
        settings: What counts as settled, firm and surprising.
    """
    variances = np.diagonal(covariance, axis1=1, axis2=2).T  # [T, K]
    is_seen = rounds > 0
    is_telling = (rounds >= settings.settle_rounds) | (is_seen & (log < 0))
    surprises, usual = (log**2 / variances)[is_telling], settings.surprise_pairs
    scale = (usual + surprises.sum()) / (usual + len(surprises))
    scale = max(float(scale), 1.0)
    mean, variance = np.zeros_like(log), scale * variances
    buckets = np.flatnonzero(is_seen.any(axis=0))
    if len(buckets):
        left = scale * covariance[buckets]  # [B, T, T] covariance
        moved = np.zeros((len(buckets), len(log)))
        for idx in np.flatnonzero(is_seen.any(axis=1)):
            counts = rounds[idx, buckets]
            noise = np.where(counts > 0, spread[idx, buckets] ** 2, np.inf)
            gain = left[:, :, idx] / (left[:, idx, idx] + noise)[:, None]  # [B, T], 0 if not seen
            steps = gain * (log[idx, buckets] - moved[:, idx])[:, None]
            is_tail = (counts < settings.firm_rounds) & (steps[:, idx] > settings.most_rise)
            steps[is_tail], gain[is_tail] = 0.0, 0.0
            steps[is_tail, idx] = settings.most_rise
            moved += steps
            left -= gain[:, :, None] * left[:, idx, None, :]
        mean[:, buckets] = moved.T
        variance[:, buckets] = np.diagonal(left, axis1=1, axis2=2).T
    return Belief(mean, np.sqrt(np.maximum(variance, 0.0)))
