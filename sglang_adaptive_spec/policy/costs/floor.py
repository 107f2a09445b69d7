"""What the host takes for a drafting round, whatever its tier: no round takes less.

Where a model is small or a server's CPU slow, drafting rounds take much longer than their seeds,
which hold the GPU's time, and all tiers take about as long. Then rounds of some tiers say what the
others will take, at other batch sizes, too, as more requests are no less work for the host. The
floor of a batch size is a low quartile of what those rounds took: a CPU's pace changes, and of a
deep tier the GPU's part may be the longer one.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sglang_adaptive_spec.policy.costs.curves import Floats
from sglang_adaptive_spec.policy.settings import CostSettings


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
    tells = (rounds >= settings.firm_rounds) & (log > math.log(settings.small_drift))
    if plain_idx is not None:
        tells[plain_idx] = False
    at, idx = np.nonzero(tells.T)  # by batch size
    if len(at) < settings.floor_places:
        return found
    sizes = [buckets[bucket] for bucket in at.tolist()]
    served_ms = (seeded_ms[idx, at] * np.exp(log[idx, at])).tolist()
    floor_ms = np.zeros(len(buckets))
    for bucket, size in enumerate(buckets):
        end = bisect_right(sizes, size * settings.floor_reach)
        if end < settings.floor_places:
            continue
        start = bisect_left(sizes, size / settings.floor_reach)
        near = sorted(served_ms[start if start < end else 0 : end])
        floor_ms[bucket] = near[len(near) // 4]
    np.log(np.maximum(floor_ms / seeded_ms, 1.0), out=found)
    if plain_idx is not None:
        found[plain_idx] = 0.0
    return np.minimum(found, settings.max_correction_log)
