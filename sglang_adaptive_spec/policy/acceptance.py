"""How many tokens a batch will get from each depth: pooled hazards and one offset per request.

Request r's chance that draft i holds, given the earlier ones did: ``h = sigmoid(theta[i] + b[r])``
(theta: `policy/hazards.py`). ``S_r(d) = h(1) * .. * h(d)`` never rises with depth, and

    expected_tokens[d] = sum over the batch of 1 + S_r(1) + .. + S_r(d)

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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sglang_adaptive_spec.policy.hazards import Floats, PooledHazards, sigmoid

Rows = NDArray[np.intp]

# Rounds a request's own evidence lasts: the text of one request changes, too. 64 leave a standard
# error of about 0.2 logits on an offset (h 0.7, two positions reached a round).
REQUEST_MEMORY_ROUNDS = 64.0
# Spread of the offsets before it is known, and its bounds. 1.5: half the requests at 0.3 and half
# at 0.9 lie 1.5 logits from their mean. The lower bound keeps k finite.
PRIOR_SPREAD = 1.0
PRIOR_SPREAD_WEIGHT = 8.0  # in sums of v^2: what eight requests tell in about five rounds
MIN_SPREAD, MAX_SPREAD = 0.05, 2.0
RECENTRE_AT = 0.05  # logits; smaller mean offsets are left where they are
OFFSET_LIMIT = 4.0  # logits
MEAN_FLOOR = 1e-4  # keeps a mean hazard off 0 and 1 after rounding
# Rounds collected before they are worked through, unless a prediction is asked for earlier: the
# fixed cost of numpy calls, not the batch, is what a round would pay (benchmarks/overhead.py).
BLOCK_ROUNDS = 16
INITIAL_ROWS = 256
STALE_AFTER_BLOCKS = 64  # a request not seen for so long may lose its row
POOL_ROW = 0  # offset 0: requests without a row of their own


class RequestOffsets:
    """Owns one row of evidence and one offset per request; rows are recycled lazily."""

    def __init__(self) -> None:
        self.offset = np.zeros(INITIAL_ROWS)  # b
        self.variance = np.full(INITIAL_ROWS, PRIOR_SPREAD**2)  # squared standard error of b
        self.spread2 = PRIOR_SPREAD**2  # tau^2
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
            keep = math.exp(-num_rounds / REQUEST_MEMORY_ROUNDS)
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
        if abs(shift) < RECENTRE_AT:
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
        score = stats[4] - stats[1]
        info = stats[2]
        excess, weight = self._spread_sums
        excess = excess * keep + float(score @ score) - float(np.add.reduce(stats[3]))
        weight = weight * keep + float(info @ info)
        self._spread_sums = (excess, weight)
        moment = (excess + PRIOR_SPREAD**2 * PRIOR_SPREAD_WEIGHT) / (weight + PRIOR_SPREAD_WEIGHT)
        self.spread2 = min(max(moment, MIN_SPREAD**2), MAX_SPREAD**2)
        self.variance[POOL_ROW] = self.spread2

    def _fit(self, rows: Rows, stats: Floats) -> None:
        reached, expected, info, _, accepted = stats
        precision = info + 1.0 / self.spread2
        # The mean of both with weights n and k, which lies in (0, 1) as both do.
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


class AcceptanceModel:
    """Learns from accepted drafts per request; predicts tokens per depth for any batch."""

    def __init__(self, max_steps: int) -> None:
        if max_steps < 1:
            raise ValueError(f"max_steps is {max_steps}; a model needs at least one draft position")
        self.max_steps = max_steps
        self.pool = PooledHazards(max_steps)
        self.offsets = RequestOffsets()
        self._depths = np.arange(max_steps + 1)
        # A block: rounds at one depth that wait to be worked through, by batch.
        self._block: list[tuple[Rows, list[Sequence[int]]]] = []
        self._block_steps = 0
        self._num_rounds = 0
        self._requests: tuple[Hashable, ...] = ()  # of the newest round
        self._rows = np.zeros(0, np.intp)
        # The last answer: hazards and survival [max_steps, requests] and the expected tokens.
        self._answer_key: tuple[Hashable, ...] | None = None
        self._answer_rows = self._rows
        self._hazards = np.zeros((max_steps, 0))
        self._survival = np.zeros((max_steps, 0))
        self._expected = np.zeros(max_steps + 1)

    @property
    def num_changes(self) -> int:
        """Changes of the pooled hazards found so far."""
        return self.pool.num_changes

    def observe(
        self, requests: Sequence[Hashable], num_correct: Sequence[int], num_steps: int
    ) -> None:
        """Learns what a round of ``num_steps`` drafts accepted per request."""
        if num_steps < 1 or not requests:
            return
        if num_steps != self._block_steps or self._num_rounds >= BLOCK_ROUNDS:
            self.flush()
            self._block_steps = num_steps
        requests = tuple(requests)
        if requests != self._requests:
            self._requests = requests
            self._rows = self.offsets.rows_for_update(requests)
        if not self._block or self._block[-1][0] is not self._rows:
            self._block.append((self._rows, []))
        self._block[-1][1].append(num_correct)
        self._num_rounds += 1

    def observe_first(self, requests: Sequence[Hashable], correct: Sequence[bool | None]) -> None:
        """Learns position 1 from a zero-step round; None entries are unknown."""
        known = [idx for idx, value in enumerate(correct) if value is not None]
        self.observe(
            [requests[idx] for idx in known], [int(bool(correct[idx])) for idx in known], 1
        )

    def expected_tokens(self, requests: Sequence[Hashable]) -> Floats:
        """Returns the tokens of a round at every depth: [max_steps + 1], index = num_steps."""
        self._predict(requests)
        return self._expected

    def gain_noise(self, requests: Sequence[Hashable], shallow: int, deep: int) -> float:
        """Returns the standard error of expected_tokens[deep] - expected_tokens[shallow]."""
        self._predict(requests)
        shallow, deep = min(shallow, deep), max(shallow, deep)
        if shallow == deep or not requests:
            return 0.0
        # tail[i, r]: sum of S_r(j) over j in (shallow, deep], j >= i: all that draft i carries.
        tail = self._survival[:deep].copy()
        tail[:shallow] = 0.0
        tail = np.add.accumulate(tail[::-1], 0)[::-1]
        slope = tail * (1.0 - self._hazards[:deep])  # by theta[i]; summed over i: by b[r]
        by_position = slope @ np.ones(len(requests))
        by_request = np.add.reduce(slope, 0)
        variance = by_position**2 @ self.pool.variance()[:deep]
        variance += by_request**2 @ self.offsets.variance.take(self._answer_rows)
        return math.sqrt(variance)

    def shorten_memory(self) -> None:
        """Lets a batch of new requests outweigh what earlier ones showed."""
        self.flush()
        self._answer_key = None
        self.pool.shorten_memory()

    def age(self, position: int) -> float:
        """Returns the discounted request-rounds that reached a position; 0 is never."""
        self.flush()
        return float(self.pool.evidence[position - 1])

    def survival(self) -> list[float]:
        """Returns the chance of a pooled request that the first d drafts hold, d = 1 .. ."""
        self.flush()
        pooled: list[float] = np.cumprod(sigmoid(self.pool.theta)).tolist()
        return pooled

    def describe(self) -> dict[str, Any]:
        """Returns pooled survival, evidence, offsets and change test for /server_info."""
        survival = self.survival()
        return {
            "survival": [round(value, 4) for value in survival],
            "evidence_request_rounds": [round(value, 1) for value in self.pool.evidence.tolist()],
            "offsets": {
                "num_requests": len(self.offsets),
                "spread": round(self.offsets.spread2**0.5, 3),
            },
            "change_test": self.pool.describe(),
        }

    def flush(self) -> None:
        """Works through the rounds collected so far."""
        if not self._block:
            return
        depths = self._depths[: self._block_steps + 1, None]
        held = [_held(np.array(counts), depths) for _, counts in self._block]
        groups = [(rows, len(counts)) for rows, counts in self._block]
        self._block = []
        self._num_rounds = 0
        self._answer_key = None
        if len(groups) == 1:
            self._learn(groups, groups[0][0], held[0])
        else:
            rows = np.concatenate([rows for rows, _ in groups])
            self._learn(groups, rows, np.concatenate(held, axis=1))

    def _learn(self, groups: Sequence[tuple[Rows, int]], rows: Rows, held: Floats) -> None:
        """Updates pool and offsets.

        Args:
            groups: rows and number of rounds of each batch in the block.
            rows: the rows of all groups, one after the other.
            held: [num_steps + 1, len(rows)] rounds whose first d drafts held, by depth d.
        """
        reached, accepted = held[:-1], held[1:]
        num_steps = len(reached)
        theta = self.pool.theta[:num_steps, None]
        hazards = sigmoid(theta + self.offsets.offset.take(rows))
        predicted = reached * hazards
        ones = np.ones(len(rows))
        expected = predicted @ ones
        predicted *= hazards
        info = expected - predicted @ ones
        if self.pool.observe(reached @ ones, accepted @ ones, expected, info):
            self.offsets.forget()
        # Against the pool as it is now: what moved the pool must not move the offsets as well.
        weights = np.empty((4, num_steps))  # of n, q, v, v
        weights[0] = 1.0
        weights[1] = pooled = sigmoid(self.pool.theta[:num_steps])
        weights[2:] = pooled * (1.0 - pooled)
        block = np.empty((5, len(rows)))
        np.matmul(weights, reached, out=block[:4])
        np.add.reduce(accepted, 0, out=block[4])
        self.offsets.update(groups, block)
        if shift := self.offsets.recentre(rows):
            self.pool.recentre(shift)

    def _predict(self, requests: Sequence[Hashable]) -> None:
        self.flush()
        requests = tuple(requests)
        if requests == self._answer_key:
            return
        rows = self._rows if requests == self._requests else self.offsets.rows(requests)
        self._answer_rows = rows
        self._hazards = sigmoid(self.pool.theta[:, None] + self.offsets.offset.take(rows))
        self._survival = np.multiply.accumulate(self._hazards, 0)
        expected = np.empty(self.max_steps + 1)
        expected[0] = len(requests)
        expected[1:] = self._survival @ np.ones(len(requests))
        self._expected = np.add.accumulate(expected)
        self._answer_key = requests


def _held(counts: NDArray[np.int_], depths: NDArray[np.int_]) -> Floats:
    """Returns how many rounds of ``counts`` [rounds, requests] held at least each depth."""
    if len(counts) == 1:
        return (counts >= depths).astype(np.float64)
    held: Floats = (counts[:, None] >= depths).sum(axis=0, dtype=np.float64)
    return held
