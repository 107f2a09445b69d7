"""What start-up measured, as curves: seeds made smooth, each as far as it is uncertain.

The log of a round's time bends little from one step count or batch size to the next. For the points
of one context length, y with standard error s, the smoothed x minimises

    sum (x - y)^2 / s^2  +  sum (x[middle] - line through its neighbours)^2 / bend^2

over neighbours in batch size and in the steps of chains. A bend grows with the distances; however
near two batch sizes are, the time may leap between them. Exact seeds stay as they are, noisy ones
come near the line. What is left open, and how the points hang together, is a covariance. The bends
are taken one after the other, element by element: BLAS rounds differently on another kind of CPU.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple, TypeAlias

import numpy as np

from sglang_adaptive_spec.policy.costs.belief import prior
from sglang_adaptive_spec.policy.costs.curves import (
    MIN_MS,
    Curve,
    Floats,
    Point,
    difference,
    extrapolate,
    fit_curve,
)
from sglang_adaptive_spec.policy.costs.state import CostState
from sglang_adaptive_spec.policy.settings import CostSettings
from sglang_adaptive_spec.tiers import PLAIN_TIER, RoundTime, Tier

Place: TypeAlias = tuple[int, int]  # index of a tier, batch size
# By place: log of the ms and its standard error, of the points of one rank of context lengths.
Surface: TypeAlias = dict[Place, tuple[float, float]]


class Smoothed(NamedTuple):
    """Seeds and what is not known of them."""

    points: list[list[Point]]  # by tier
    covariance: Floats  # of the log errors at the shortest context, [places, places]
    places: list[Place]  # in the covariance's order


class Seeds:
    """The curves of all tiers at the buckets; they do not change.

    A tier without a seed is guessed from the others. Without any a zero-step round takes 1 ms.
    """

    def __init__(self, state: CostState, settings: CostSettings) -> None:
        self.tiers = tiers = tuple(Tier(*fields) for fields in state.tiers)
        self.buckets = buckets = state.buckets
        self.plain_idx = tiers.index(PLAIN_TIER) if PLAIN_TIER in tiers else None
        smoothed = smooth(tiers, state.seeds, state.seed_spreads, settings)
        unknown = covariance_at(smoothed, len(tiers), buckets)
        by_tier = zip(tiers, smoothed.points, strict=True)
        own = {tier: fit_curve(points, buckets) for tier, points in by_tier if points}
        if not own:
            own[PLAIN_TIER] = Curve(np.ones(len(buckets)), np.zeros(len(buckets)), 0.0)
        self.covariance = prior(unknown, self.plain_idx, settings)  # of corrections not yet served
        self.curves = [
            own.get(tier) or extrapolate(tier, own, settings.step_share) for tier in tiers
        ]
        self.base: Floats = np.maximum([curve.base for curve in self.curves], MIN_MS)  # [T, K]
        self.slope: Floats = np.array([curve.slope for curve in self.curves]).T.copy()  # [K, T]
        logs = np.log(buckets)
        self.distance: Floats = abs(logs - logs[:, None])  # [K, K] of sizes, a log
        self.rise = np.array([curve.rise for curve in self.curves])
        # A catch-up that was not seeded is counted in zero-step rounds.
        self._extra = self.curves[self.plain_idx or 0]
        if state.catch_up_seeds:
            self._extra = difference(fit_curve(state.catch_up_seeds, buckets), self._extra)

    def bucket(self, batch_size: int) -> int:
        """Returns the index of the bucket a batch pads to; the last one if it exceeds all."""
        return min(bisect_left(self.buckets, batch_size), len(self.buckets) - 1)

    def num_above(self, batch_size: int) -> int:
        """Returns by how many requests a batch exceeds the last bucket."""
        return max(batch_size - self.buckets[-1], 0)

    def extra_ms(self, batch_size: int, context_tokens: int) -> float:
        """Returns what a catch-up takes beyond a zero-step round."""
        bucket, num_above = self.bucket(batch_size), self.num_above(batch_size)
        return self._extra.ms(bucket, context_tokens, num_above)

    def correction_log(self, idx: int, bucket: int, round_time: RoundTime, drift: float) -> float:
        """Returns the log of the correction that explains a round."""
        curve = self.curves[idx]
        base = curve.base.item(bucket)
        num_above = self.num_above(round_time.batch_size)
        rest = curve.ms(bucket, round_time.context_tokens, num_above) - base
        return math.log(max(round_time.ms / drift - rest, MIN_MS) / max(base, MIN_MS))


def smooth(
    tiers: Sequence[Tier],
    seeds: Sequence[Sequence[Point]],
    spreads: Sequence[Sequence[float]],
    settings: CostSettings,
) -> Smoothed:
    """Returns the seeds of all tiers, repeated points combined, with their covariance.

    Args:
        tiers: One for each entry of the others.
        seeds: The points of every tier.
        spreads: The relative standard error of every point; 0 if it is not known.
        settings: How far logs bend.
    """
    surfaces, raw = _surfaces(seeds, _pooled(spreads))
    points: list[list[Point]] = [[] for _ in tiers]
    covariances = []
    for surface, at in zip(surfaces, raw, strict=True):
        places = sorted(surface)
        mean, covariance = _smoothed(tiers, surface, places, settings)
        covariances.append((covariance, places))
        for (idx, size), log in zip(places, mean.tolist(), strict=True):
            factor = math.exp(log - surface[idx, size][0])  # exactly 1 where nothing was smoothed
            context_tokens, ms = at[idx, size]
            points[idx].append((size, context_tokens, factor * ms))
    return Smoothed(points, *(covariances[0] if covariances else (np.zeros((0, 0)), [])))


def covariance_at(smoothed: Smoothed, num_tiers: int, buckets: Sequence[int]) -> Floats:
    """Returns the covariance of the seeds' errors at buckets: [num_buckets, T, T].

    A bucket takes that of the measured size nearest to it, tier by tier.
    """
    sizes: dict[int, list[tuple[int, int]]] = {}  # by tier: size and row
    for row, (idx, size) in enumerate(smoothed.places):
        sizes.setdefault(idx, []).append((size, row))
    found = np.zeros((len(buckets), num_tiers, num_tiers))
    tiers = sorted(sizes)
    for bucket, size in enumerate(buckets):
        rows = [min(sizes[idx], key=lambda at: abs(math.log(at[0] / size)))[1] for idx in tiers]
        found[np.ix_([bucket], tiers, tiers)] = smoothed.covariance[np.ix_(rows, rows)]
    return found


def out_of_order(
    tiers: Sequence[Tier],
    seeds: Sequence[Sequence[Point]],
    spreads: Sequence[Sequence[float]],
    settings: CostSettings,
) -> list[tuple[Tier, int]]:
    """Returns tiers and batch sizes whose seeds contradict a neighbour's; measure them again.

    More steps take more time, and so do more requests. Both of such a pair are named.
    """
    found: set[Place] = set()
    surfaces, _ = _surfaces(seeds, spreads)
    for surface in surfaces:
        for lower, upper in _neighbours(tiers, surface, settings):
            (below, below_spread), (above, above_spread) = surface[lower], surface[upper]
            noise = 2 * math.hypot(below_spread, above_spread)
            if below - above > max(noise, settings.order_margin):
                found.update((lower, upper))
    return [(tiers[idx], size) for idx, size in sorted(found)]


def _pooled(spreads: Sequence[Sequence[float]]) -> list[list[float]]:
    """Returns spreads drawn to their mean square: each comes from a few rounds."""
    variances = [spread**2 for of_tier in spreads for spread in of_tier if spread > 0]
    common = sum(variances) / len(variances) if variances else 0.0
    return [
        [math.sqrt((one**2 + common) / 2) if one > 0 else 0.0 for one in of_tier]
        for of_tier in spreads
    ]


def _surfaces(
    seeds: Sequence[Sequence[Point]], spreads: Sequence[Sequence[float]]
) -> tuple[list[Surface], list[dict[Place, tuple[int, float]]]]:
    """Returns the points by rank of their context length at their place, and as they were given."""
    at: dict[Place, dict[int, list[tuple[float, float]]]] = {}
    for idx, (points, of_tier) in enumerate(zip(seeds, spreads, strict=True)):
        for (size, context, ms), spread in zip(points, of_tier, strict=True):
            at.setdefault((idx, size), {}).setdefault(context, []).append((ms, spread))
    num_ranks = max(map(len, at.values()), default=0)
    surfaces: list[Surface] = [{} for _ in range(num_ranks)]
    raw: list[dict[Place, tuple[int, float]]] = [{} for _ in range(num_ranks)]
    for place, by_context in at.items():
        for rank, context in enumerate(sorted(by_context)):
            times = by_context[context]
            spread = median(spread for _, spread in times) / math.sqrt(len(times))
            ms = median(ms for ms, _ in times)
            surfaces[rank][place] = (math.log(ms), spread)
            raw[rank][place] = (context, ms)
    return surfaces, raw


def _smoothed(
    tiers: Sequence[Tier], surface: Surface, places: Sequence[Place], settings: CostSettings
) -> tuple[Floats, Floats]:
    """Returns the smoothed logs and their covariance, in the order of ``places``."""
    logs = np.array([surface[place][0] for place in places])
    covariance = np.diag([surface[place][1] ** 2 for place in places])
    row = {place: idx for idx, place in enumerate(places)}
    for around, share, bend in _triples(tiers, surface, settings):
        rows = [row[place] for place in around]
        cross = _bend(covariance, rows, share)  # [places]
        gain = cross / (_bend(cross, rows, share) + bend**2)
        logs -= gain * _bend(logs, rows, share)
        covariance -= gain[:, None] * cross
    return logs, covariance


def _bend(of: Floats, rows: Sequence[int], share: float) -> Floats:
    """Returns the middle less the line; ``share`` of the line's value there is the right one's."""
    left, middle, right = of[rows]
    found: Floats = middle - (1 - share) * left - share * right
    return found


def _lines(
    tiers: Sequence[Tier], places: Mapping[Place, object], settings: CostSettings
) -> list[tuple[list[tuple[Place, float]], float, float]]:
    """Returns rows of neighbouring places with their positions; how much they bend, and leap."""
    lines = []
    for idx in sorted({idx for idx, _ in places}):
        sizes = sorted(size for of, size in places if of == idx)
        line = [((idx, size), math.log2(size)) for size in sizes]
        lines.append((line, settings.bend_per_octave2, settings.leap))
    for size in sorted({size for _, size in places}):
        chains = [
            (tiers[idx].num_steps, idx)
            for idx, at in places
            if at == size and tiers[idx].topk == 1 and tiers[idx] != PLAIN_TIER
        ]
        line = [((idx, size), float(steps)) for steps, idx in sorted(chains)]
        lines.append((line, settings.bend_per_step2, 0.0))
    return lines


def _neighbours(
    tiers: Sequence[Tier], surface: Surface, settings: CostSettings
) -> list[tuple[Place, Place]]:
    pairs = [pairwise(line) for line, _, _ in _lines(tiers, surface, settings)]
    return [(lower, upper) for line in pairs for (lower, _), (upper, _) in line]


def _triples(
    tiers: Sequence[Tier], surface: Surface, settings: CostSettings
) -> list[tuple[tuple[Place, Place, Place], float, float]]:
    """Returns three neighbours each, the right one's share of their line, and the bend."""
    found = []
    for line, unit, leap in _lines(tiers, surface, settings):
        for (left, at_left), (middle, at), (right, at_right) in zip(
            line, line[1:], line[2:], strict=False
        ):
            before, after = at - at_left, at_right - at
            bend = max(unit * before * after, leap)
            found.append(((left, middle, right), before / (before + after), bend))
    return found
