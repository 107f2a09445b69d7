"""Curves of round time over batch size, fitted to measured points.

A tier's round takes ``base_ms(batch_size) + slope_ms(batch_size) * context_tokens``; both curves
are tabulated at the batch-size buckets (the captured CUDA-graph sizes a batch pads to). Between
measured sizes they are linear, below the smallest constant; above the largest, base goes on as it
rose last and slope stays. More requests never take less time and context is never free of charge:
base and slope are made non-decreasing (pool adjacent violators) and non-negative.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sglang_adaptive_spec.policy.settings import CostSettings
from sglang_adaptive_spec.tiers import Tier

Floats = npt.NDArray[np.float64]

NO_WEIGHT = 1e-30  # of a size whose rounds say nothing about others yet; not 0, a divisor
MIN_MS = 1e-6  # keeps ratios finite


Point = tuple[int, int, float]  # one measured round: batch size, context tokens, ms


class Curve(NamedTuple):
    """Round time of one tier at every batch-size bucket."""

    base: Floats  # [num_buckets] ms
    slope: Floats  # [num_buckets] ms per context token
    rise: float  # ms per request above the largest bucket

    def ms(self, bucket: int, context_tokens: int, num_above: int) -> float:
        """Returns the time at a bucket's index, ``num_above`` requests beyond the last one."""
        ms = self.base.item(bucket) + self.slope.item(bucket) * context_tokens
        return float(ms + num_above * self.rise)


def isotonic(values: Floats, weights: Floats) -> Floats:
    """Returns the non-decreasing sequence closest to ``values`` in weighted squares."""
    if (values[1:] >= values[:-1]).all():
        return values
    means: list[float] = []
    masses: list[float] = []
    counts: list[int] = []
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        mean, mass, count = value, weight, 1
        while means and means[-1] > mean:
            before = masses.pop()
            mean = (means.pop() * before + mean * mass) / (before + mass)
            mass += before
            count += counts.pop()
        means.append(mean)
        masses.append(mass)
        counts.append(count)
    return np.repeat(means, counts)


def fit_curve(points: Sequence[Point], buckets: Sequence[int]) -> Curve:
    """Returns the curve through ``points`` (at least one), tabulated at ``buckets``."""
    by_size: dict[int, list[Point]] = {}
    for point in points:
        by_size.setdefault(point[0], []).append(point)
    sizes = np.array(sorted(by_size), dtype=np.float64)
    groups = [by_size[size] for size in sorted(by_size)]
    slope = _slopes(sizes, groups)
    base = np.array(
        [
            np.mean([ms - at_size * tokens for _, tokens, ms in group])
            for at_size, group in zip(slope.tolist(), groups, strict=True)
        ]
    )
    base = np.maximum(isotonic(base, np.array([float(len(group)) for group in groups])), 0.0)
    rise = float((base[-1] - base[-2]) / (sizes[-1] - sizes[-2])) if len(sizes) > 1 else 0.0
    at = np.array(buckets, dtype=np.float64)
    above = np.maximum(at - sizes[-1], 0.0) * rise
    return Curve(np.interp(at, sizes, base) + above, np.interp(at, sizes, slope), rise)


def _slopes(sizes: Floats, groups: Sequence[Sequence[Point]]) -> Floats:
    """Returns ms per context token at every size; a size with one context length borrows."""
    known, slopes, weights = [], [], []
    for size, group in zip(sizes.tolist(), groups, strict=True):
        tokens = np.array([point[1] for point in group], dtype=np.float64)
        tokens -= tokens.mean()
        spread = float(tokens @ tokens)
        if spread > 0:
            known.append(size)
            slopes.append(float(tokens @ np.array([point[2] for point in group])) / spread)
            weights.append(spread)  # the inverse variance of the slope
    if not known:
        return np.zeros(len(sizes))
    fitted = np.maximum(isotonic(np.array(slopes), np.array(weights)), 0.0)
    return np.interp(sizes, known, fitted)


def step_factor(tier: Tier, step_share: float) -> float:
    """Returns the default cost of ``tier`` in zero-step rounds."""
    return 1 + step_share * tier.num_steps


def extrapolate(tier: Tier, known: Mapping[Tier, Curve], step_share: float) -> Curve:
    """Returns a curve for ``tier`` from those of others (at least one).

    Two or more step counts: a line ``a + b * num_steps`` through them, b >= 0, nothing below
    zero. One: in proportion to `step_factor`.
    """
    steps = np.array([other.num_steps for other in known], dtype=np.float64)
    table = np.array([np.concatenate((*curve[:2], [curve.rise])) for curve in known.values()])
    centred = steps - steps.mean()
    if centred.any():
        per_step = np.maximum(centred @ table / (centred @ centred), 0.0)
        row = np.maximum(table.mean(axis=0) + per_step * (tier.num_steps - steps.mean()), 0.0)
    else:
        row = table.mean(axis=0) * step_factor(tier, step_share)
        row /= step_factor(next(iter(known)), step_share)
    base, slope = np.split(row[:-1], 2)
    ones = np.ones_like(base)
    return Curve(isotonic(base, ones), isotonic(slope, ones), float(row[-1]))


def difference(upper: Curve, lower: Curve) -> Curve:
    """Returns what ``upper`` takes beyond ``lower``, nowhere below zero, in order of batch size."""
    ones = np.ones_like(upper.base)
    base = isotonic(np.maximum(upper.base - lower.base, 0.0), ones)
    slope = isotonic(np.maximum(upper.slope - lower.slope, 0.0), ones)
    return Curve(base, slope, max(upper.rise - lower.rise, 0.0))


def corrected(
    curves: Sequence[Curve],
    rounds: npt.NDArray[np.int64],
    factor: Floats,
    settings: CostSettings,
) -> Floats:
    """Returns the base of every curve times its correction, order restored. A size with few
    rounds is left out: it stands for itself.

    Args:
        curves: One per tier.
        rounds: Rounds behind every correction, [num_tiers, num_buckets].
        factor: The corrections, [num_tiers, num_buckets].
        settings: When a correction says something about other sizes, and how much.

    Returns:
        [num_buckets, num_tiers].
    """
    # The same weights for all tiers, so that restoring the order moves them alike.
    settled = settings.settle_rounds
    num_settled = np.where(rounds >= settled, rounds, 0).sum(axis=0)
    weights = 1.0 + settings.seen_weight * num_settled
    is_loose = (rounds > 0) & (rounds < settled)  # stands for its own size and no other
    base = []
    for curve, own_factor, loose in zip(curves, factor, is_loose, strict=True):
        own = curve.base * own_factor
        ordered = isotonic(own, np.where(loose, NO_WEIGHT, weights))
        base.append(np.where(loose, own, ordered))
    return np.array(base).T.copy()
