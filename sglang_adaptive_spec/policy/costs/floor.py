"""What the host takes for a drafting round, whatever its tier: rounds seldom take less.

Where a model is small or a server's CPU slow, drafting rounds take much longer than their seeds,
which hold the GPU's time, and all tiers take about as long. Then rounds of some tiers say what the
others will take, at other batch sizes, too, as more requests are no less work for the host.

A slower GPU makes rounds longer as well, but in proportion to their seeds. So of the rounds served
around a batch size two explanations are compared: the larger of seed and floor, and seeds times one
factor. There is a floor where it leaves less unexplained. It is a low quartile of the rounds far
beyond their seeds: a CPU's pace changes, and of a deep tier the GPU's part may be the longer one.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sglang_adaptive_spec.policy.costs.curves import Floats
from sglang_adaptive_spec.policy.settings import CostSettings


class Served(NamedTuple):
    """What a drafting tier took at a batch size: logs of ms without context."""

    size: int
    idx: int  # of the tier, shallower ones first
    seeded: float
    log: float  # served
    is_beyond: bool  # far beyond its seed


def floor_log(
    seeded_ms: Floats,
    rounds: npt.NDArray[np.int64],
    log: Floats,
    plain_idx: int | None,
    buckets: Sequence[int],
    settings: CostSettings,
) -> Floats:
    """Returns the log of what the floor alone makes of every seed, 0 or more.

    Args:
        seeded_ms: Without context, [num_tiers, num_buckets].
        rounds: Rounds behind every measured correction, the same shape.
        log: Logs of the measured corrections, the same shape.
        plain_idx: Zero steps: another kind of round, which has no part in it.
        buckets: Batch sizes, ascending.
        settings: What is firm, what is far beyond a seed, how many must be.
    """
    found: Floats = np.zeros_like(log)
    is_firm = rounds >= settings.firm_rounds
    if plain_idx is not None:
        is_firm[plain_idx] = False
    if np.count_nonzero(is_firm & (log > settings.floor_beyond)) < settings.floor_places:
        return found
    seeds = np.log(seeded_ms)
    served = [
        Served(
            buckets[at],
            idx,
            seeds.item(idx, at),
            seeds.item(idx, at) + log.item(idx, at),
            log.item(idx, at) > settings.floor_beyond,
        )
        for at, idx in np.argwhere(is_firm.T).tolist()
    ]
    sizes = [each.size for each in served]
    floors: dict[tuple[int, int], list[float] | None] = {}  # by the range of ``served``
    for bucket, size in enumerate(buckets):
        start = bisect_left(sizes, size / settings.floor_reach)
        end = bisect_right(sizes, size * settings.floor_reach)
        if (start, end) not in floors:
            floors[start, end] = _floors(served[:end], start, len(log), settings)
        by_tier = floors[start, end]
        if by_tier is not None:
            found[:, bucket] = np.maximum(by_tier - seeds[:, bucket], 0.0)
    if plain_idx is not None:
        found[plain_idx] = 0.0
    return np.minimum(found, settings.max_correction_log)


def is_host_bound(
    rounds: npt.NDArray[np.int64], log: Floats, plain_idx: int | None, settings: CostSettings
) -> bool:
    """Returns whether drafting rounds take far longer than their seeds, and zero steps do not.

    A slower GPU makes both longer; the arguments are those of `floor_log`.
    """
    is_firm = rounds >= settings.firm_rounds
    if plain_idx is None or not is_firm[plain_idx].any():
        return False
    plain = median(log[plain_idx][is_firm[plain_idx]].tolist())
    is_firm[plain_idx] = False
    drafting = log[is_firm]
    if len(drafting) < settings.floor_places:
        return False
    beyond = median(drafting.tolist())
    return bool(min(beyond, beyond - plain) > settings.floor_beyond)


def _floors(
    served: Sequence[Served], start: int, num_tiers: int, settings: CostSettings
) -> list[float] | None:
    """Returns every tier's floor, a log, if there is one.

    Args:
        served: At sizes that are near, from ``start`` on, and at all smaller ones.
        start: The first one that is near.
        num_tiers: Tiers of the table.
        settings: How many must be far beyond their seeds.
    """
    near = served[start:]
    is_enough = sum(each.is_beyond for each in near) >= settings.floor_places
    floor = _floor(near if is_enough else served, settings)
    if floor is None:
        return None
    by_tier = [floor] * num_tiers
    if not is_enough:  # a few rounds near say it of their own tier and of those that take longer
        for each in near:
            if each.is_beyond:
                deeper = slice(each.idx, num_tiers)
                by_tier[deeper] = [max(known, each.log) for known in by_tier[deeper]]
    return by_tier


def _floor(served: Sequence[Served], settings: CostSettings) -> float | None:
    """Returns the log of the floor of what was served, unless one factor explains it better."""
    beyond = sorted(each.log for each in served if each.is_beyond)
    if len(beyond) < settings.floor_places:
        return None
    floor = beyond[len(beyond) // 4]
    factor = math.fsum(each.log - each.seeded for each in served) / len(served)
    by_floor = math.fsum((each.log - max(each.seeded, floor)) ** 2 for each in served)
    by_factor = math.fsum((each.log - each.seeded - factor) ** 2 for each in served)
    return floor if by_floor < by_factor else None
