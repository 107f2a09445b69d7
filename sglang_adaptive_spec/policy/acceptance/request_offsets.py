"""What tells requests apart: one offset in logits per request against the pool.

Per request, discounted per round: n (positions reached), a (accepted), q and v (the pool's h and
h * (1 - h) summed over those). The offset is the shrunk hazard against the pool's, in logits:

    k = n / (tau^2 * v);  b = logit((a + k * q / n) / (n + k)) - logit(q / n)

To first order it is the Newton step (a - q) / (v + 1 / tau^2), but it cannot overshoot. tau^2, the
spread between requests, is estimated from the scores: E[(a - q)^2] = v + tau^2 * v^2. In a uniform
batch it goes to zero and all evidence is shared. A mean offset moves into the pool (`_recentre`).
"""

import math
from collections.abc import Hashable, Sequence
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from sglang_adaptive_spec.policy.acceptance.hazards import Floats
from sglang_adaptive_spec.policy.settings import DEFAULTS, AcceptanceSettings

Rows = NDArray[np.intp]

OFFSET_LIMIT = 4.0  # logits
MEAN_FLOOR = 1e-4  # keeps a mean hazard off 0 and 1 after rounding
INITIAL_ROWS = 256
STALE_AFTER_BLOCKS = 64  # a request not seen for so long may lose its row
POOL_ROW = 0  # offset 0: requests without a row of their own


class RequestOffsets:
    """Owns one row of evidence and one offset per request; rows are recycled lazily."""

    def __init__(self, settings: AcceptanceSettings = DEFAULTS.acceptance) -> None:
        self._settings = settings
        self.spread2 = settings.prior_spread**2  # tau^2
        self.offset = np.zeros(INITIAL_ROWS)  # b
        self.variance = np.full(INITIAL_ROWS, self.spread2)  # squared standard error of b
        self._stats = np.zeros((5, INITIAL_ROWS))  # n, q, v, v at squared discount, a
        self._last_block = np.zeros(INITIAL_ROWS, np.int64)
        self._row_of: dict[Hashable, int] = {}
        self._free = list(range(INITIAL_ROWS - 1, POOL_ROW, -1))
        self._block = 0
        self._spread_sums = (0.0, 0.0)

    def __len__(self) -> int:
        return len(self._row_of)

    def rows(self, requests: Sequence[Hashable]) -> Rows:
        """Returns the row of every request, `POOL_ROW` for those never observed."""
        found = map(self._row_of.get, requests, repeat(POOL_ROW))
        return np.fromiter(found, np.intp, len(requests))

    def rows_for_update(self, requests: Sequence[Hashable]) -> Rows:
        """Returns the row of every request; gives one to those never observed."""
        rows = self.rows(requests)
        if not rows.all():
            self._last_block[rows] = self._block  # none of the batch's own rows is given away
            for idx in np.flatnonzero(rows == POOL_ROW).tolist():
                request = requests[idx]
                rows[idx] = self._row_of.get(request) or self._take_row(request)
        return rows

    def update(self, groups: Sequence[tuple[Rows, int]], block: Floats) -> None:
        """Adds a block to the rows' evidence and refits their offsets.

        Args:
            groups: rows and number of rounds of each batch in the block, oldest first.
            block: [5, rows of all groups] what to add: n, q, v, v, a.
        """
        self._block += 1
        start = 0
        for rows, num_rounds in groups:
            self._last_block[rows] = self._block
            keep = math.exp(-num_rounds / self._settings.request_memory_rounds)
            stats = self._stats.take(rows, axis=1)
            stats *= keep
            stats[3] *= keep
            stats += block[:, start : start + len(rows)]
            self._stats[:, rows] = stats
            start += len(rows)
            self._fit_spread(stats, keep)
            self._fit(rows, stats)

    def forget(self) -> None:
        """Takes every request back to the pool: what told them apart was before a change."""
        self._stats[:] = 0.0
        self.offset[:] = 0.0
        self._spread_sums = (0.0, 0.0)

    def recentre(self, rows: Rows) -> float:
        """Takes the mean offset of ``rows`` off every request; returns it for the pool."""
        # New requests know nothing and do not dilute the mean. One that left before the spread was
        # last fitted may have a variance beyond it: it has no weight, not a negative one.
        weight = np.maximum(1.0 - self.variance.take(rows) / self.spread2, 0.0)
        shift = float(self.offset.take(rows) @ weight) / max(float(np.add.reduce(weight)), 1.0)
        if abs(shift) < self._settings.recentre_at:
            return 0.0
        used = np.flatnonzero(self._stats[0] > 0.0)
        reached, expected, info, info2, accepted = self._stats[:, used]
        mean = np.clip(expected / reached, MEAN_FLOOR, 1.0 - MEAN_FLOOR)
        mean = 1.0 / (1.0 + (1.0 - mean) / mean * math.exp(-shift))
        moved = reached * mean * (1.0 - mean)
        self._stats[:, used] = (reached, reached * mean, moved, moved * info2 / info, accepted)
        self.offset[used] -= shift
        return shift

    def _fit_spread(self, stats: Floats, keep: float) -> None:
        settings, score = self._settings, stats[4] - stats[1]
        info = stats[2]
        excess, weight = self._spread_sums
        excess = excess * keep + float(score @ score) - float(np.add.reduce(stats[3]))
        weight = weight * keep + float(info @ info)
        self._spread_sums = (excess, weight)
        prior = settings.prior_spread_weight
        moment = (excess + settings.prior_spread**2 * prior) / (weight + prior)
        self.spread2 = min(max(moment, settings.min_spread**2), settings.max_spread**2)
        self.variance[POOL_ROW] = self.spread2

    def _fit(self, rows: Rows, stats: Floats) -> None:
        reached, expected, info, _, accepted = stats
        precision = info + 1.0 / self.spread2
        # The mean of both with weights n and k, which lies in (0, 1) as both do.
        if not reached.all():  # a table had no draft: nothing is known, and any mean will do
            expected = np.where(reached > 0.0, expected, 0.5)
            accepted = np.where(reached > 0.0, accepted, 0.5)
            reached = np.where(reached > 0.0, reached, 1.0)
        mean = expected / reached
        hazard = mean + (accepted - expected) / reached * (info / precision)
        offset = np.log(hazard * (1.0 - mean) / ((1.0 - hazard) * mean))
        self.offset[rows] = np.minimum(np.maximum(offset, -OFFSET_LIMIT), OFFSET_LIMIT)
        self.variance[rows] = 1.0 / precision

    def _take_row(self, request: Hashable) -> int:
        if not self._free:
            self._recycle()
        row = self._free.pop()
        self._stats[:, row] = 0.0
        self.offset[row] = 0.0
        self._row_of[request] = row
        self._last_block[row] = self._block
        return row

    def _recycle(self) -> None:
        stale = self._last_block < self._block - STALE_AFTER_BLOCKS
        gone = [request for request, row in self._row_of.items() if stale[row]]
        self._free = [self._row_of.pop(request) for request in gone]
        if self._free:
            self._stats[:, self._free] = 0.0
            return
        size = len(self.offset)
        self.offset = np.concatenate((self.offset, np.zeros(size)))
        self.variance = np.concatenate((self.variance, np.full(size, self.spread2)))
        self._stats = np.concatenate((self._stats, np.zeros((5, size))), axis=1)
        self._last_block = np.concatenate((self._last_block, np.zeros(size, np.int64)))
        self._free = list(range(2 * size - 1, size - 1, -1))
