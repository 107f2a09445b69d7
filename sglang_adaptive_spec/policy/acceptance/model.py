"""How many tokens a batch will get from each tier: pooled hazards and one offset per request.

Request r's chance that draft i holds, given the earlier ones did: ``h = sigmoid(theta[i] + b[r])``
(theta: `hazards.py`). ``S_r(d) = h(1) * .. * h(d)`` never rises with depth, and

    expected_tokens[d] = sum over the batch of 1 + S_r(1) + .. + S_r(d)

Offsets: `request_offsets.py`; a tree adds a lift to every logit (`tree_hazards.py`). A table has a
draft only now and then (`FoundShares`): then h is the chance that one which was found holds.
"""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sglang_adaptive_spec.policy.acceptance.found import FoundShares
from sglang_adaptive_spec.policy.acceptance.hazards import Floats, PooledHazards, sigmoid
from sglang_adaptive_spec.policy.acceptance.request_offsets import RequestOffsets, Rows
from sglang_adaptive_spec.policy.acceptance.tree_hazards import TreeHazards
from sglang_adaptive_spec.policy.settings import DEFAULTS, Settings
from sglang_adaptive_spec.tiers import NO_LIMITS, PLAIN_TIER, Tier, chain_tier

# Rounds collected before they are worked through, unless a prediction is asked for earlier: the
# fixed cost of numpy calls, not the batch, is what a round would pay (studies/overhead.py).
BLOCK_ROUNDS = 16
FIRST = chain_tier(1)  # what a zero-step round tells is what one step would have been


class Result(NamedTuple):
    """What a round told of its drafts."""

    num_correct: Sequence[int] = ()  # per row
    found: Sequence[int] | None = None  # drafts per row that were there, if not all
    held: Floats | None = None  # [steps + 1, rows] instead: chances that the first d hold


class AcceptanceModel:
    """Learns from accepted drafts per request; predicts tokens per tier for any batch."""

    def __init__(
        self, max_steps: int, trees: Iterable[Tier] = (), settings: Settings = DEFAULTS
    ) -> None:
        """Takes the deepest tier's steps and every tree that will be observed or asked about."""
        if max_steps < 1:
            raise ValueError(f"max_steps is {max_steps}; a model needs at least one draft position")
        self.max_steps = max_steps
        self.trees = frozenset(trees)
        if any(tier.num_steps > max_steps for tier in self.trees):
            raise ValueError(f"max_steps is {max_steps}; a tree of {sorted(self.trees)} is deeper")
        self._settings = settings.acceptance
        self.pool = (
            TreeHazards(max_steps, self.trees, settings)
            if self.trees
            else PooledHazards(max_steps, self._settings)
        )
        self.offsets = RequestOffsets(self._settings)
        self.found = FoundShares(max_steps, self._settings)
        self._depths = np.arange(max_steps + 1)
        # A block: rounds at one tier that wait to be worked through, by batch.
        self._block: list[tuple[Rows, list[Result]]] = []
        self._block_tier = PLAIN_TIER
        self._has_all = True  # every draft of its rounds was there
        self._num_rounds = 0
        self._requests: tuple[Hashable, ...] = ()  # of the newest round
        self._rows = np.zeros(0, np.intp)
        # The last answer: hazards and survival [max_steps, requests] and the expected tokens.
        self._answer_key: tuple[Hashable, ...] | None = None
        self._answer_rows = self._rows
        self._hazards = np.zeros((max_steps, 0))
        self._alone = self._hazards  # where every draft is there
        self._survival = np.zeros((max_steps, 0))
        self._expected = np.zeros(max_steps + 1)
        self._limits = NO_LIMITS
        self._counts: Floats | None = None  # [max_steps, requests] 0 beyond a limit, else 1

    def check(self, tiers: Iterable[Tier]) -> None:
        """Makes sure that every one of ``tiers`` can be asked about.

        Raises:
            ValueError: One that is deeper than the model, or a tree that it lacks.
        """
        for tier in tiers:
            if tier.num_steps > self.max_steps:
                raise ValueError(
                    f"candidate {tier} is deeper than {self.max_steps} steps, "
                    "which is what the acceptance model predicts"
                )
            if tier.topk > 1 and tier not in self.trees:
                raise ValueError(f"candidate {tier} is a tree that the acceptance model lacks")

    @property
    def num_changes(self) -> int:
        """Changes of the pooled hazards found so far."""
        return self.pool.num_changes

    def limit(self, limits: Mapping[Hashable, int]) -> None:
        """Counts no more than so many drafts of these requests from now on, and all of others.

        What is learned stays the same: acceptance is what it is.
        """
        if limits is not self._limits:
            self._limits, self._answer_key = limits, None

    def observe(
        self,
        requests: Sequence[Hashable],
        num_correct: Sequence[int],
        tier: Tier,
        found: Sequence[int] | None = None,
    ) -> None:
        """Learns what a round of ``tier`` accepted per request, of the drafts found for it."""
        if tier.topk > 1 and tier not in self.trees:
            return  # the start-up shape, after a policy failed: its lift is nobody's
        self._add(requests, tier, Result(num_correct, found))

    def observe_held(self, requests: Sequence[Hashable], held: Floats, tier: Tier) -> None:
        """Learns from a chain of whose drafts some have but a chance to hold.

        Args:
            requests: The batch.
            held: [num_steps + 1, requests] that the first d drafts hold.
            tier: The chain.
        """
        self._add(requests, tier, Result(held=held))

    def _add(self, requests: Sequence[Hashable], tier: Tier, result: Result) -> None:
        if tier.num_steps < 1 or not requests:
            return
        if tier != self._block_tier or (result.found is None) != self._has_all:
            self.flush()
            self._block_tier, self._has_all = tier, result.found is None
        requests = tuple(requests)
        if requests != self._requests:
            self._requests = requests
            self._rows = self.offsets.rows_for_update(requests)
        if not self._block or self._block[-1][0] is not self._rows:
            self._block.append((self._rows, []))
        self._block[-1][1].append(result)
        self._num_rounds += 1
        if self._num_rounds == BLOCK_ROUNDS:
            self.flush()

    def observe_first(self, requests: Sequence[Hashable], correct: Sequence[bool | None]) -> None:
        """Learns position 1 from a zero-step round; None entries are unknown."""
        known = [idx for idx, value in enumerate(correct) if value is not None]
        self.observe(
            [requests[idx] for idx in known], [int(bool(correct[idx])) for idx in known], FIRST
        )

    def count_found(self, found: Sequence[int]) -> None:
        """Learns how many drafts in a row a table has per request."""
        self.found.add(found)
        self._answer_key = None

    def tokens_given(
        self, requests: Sequence[Hashable], tiers: Sequence[Tier], found: Sequence[int]
    ) -> Floats:
        """Returns the tokens of a round at every one of ``tiers``, chains, of the drafts found."""
        self._predict(requests)
        is_there = self._depths[:-1, None] < np.array(found)
        by_depth = (self._counted(self._alone) * is_there).sum(axis=1)
        tokens = np.concatenate(([0.0], np.add.accumulate(by_depth))) + len(requests)
        return tokens[[tier.num_steps for tier in tiers]]

    def survival_of(self, requests: Sequence[Hashable]) -> Floats:
        """Returns per request the chance that its first d drafts hold: [max_steps, requests].

        0 where they do not count.
        """
        self._predict(requests)
        return self._survival

    def expected_tokens(self, requests: Sequence[Hashable], tiers: Sequence[Tier]) -> Floats:
        """Returns the tokens of a round at every one of ``tiers``: [num_tiers]."""
        self._predict(requests)
        tokens = [
            self._expected[tier.num_steps] if tier.topk == 1 else self._tree_tokens(tier)
            for tier in tiers
        ]
        return np.array(tokens)

    def most_tokens(self, requests: Sequence[Hashable], tier: Tier, depth: int) -> float:
        """Returns the tokens of a round in the most favourable case that is not ruled out.

        Args:
            requests: the batch.
            tier: a tier of the kind in force.
            depth: positions that are observed; beyond, the optimistic hazard is taken.
        """
        self._predict(requests)
        hazards = self._hazards_at(tier)
        hazards[depth:] = self._settings.optimistic_hazard
        return float(len(requests) + self._counted(hazards).sum())

    def upper_tokens(self, requests: Sequence[Hashable], tier: Tier, home: Tier) -> float:
        """Returns the tokens of a round so far above the estimate that more is ruled out."""
        tokens = float(self.expected_tokens(requests, [tier])[0])
        return tokens + self._settings.optimistic_z * self.gain_noise(requests, tier, home)

    def ceiling(self, requests: Sequence[Hashable], tier: Tier) -> float:
        """Returns the tokens of a round whose every draft holds with the optimistic hazard."""
        hazard = self._settings.optimistic_hazard
        steps = tier.num_steps
        if not self._limits:
            return len(requests) * (1.0 - hazard ** (steps + 1)) / (1.0 - hazard)
        counted = [min(self._limits.get(request, steps), steps) for request in requests]
        return sum(1.0 - hazard ** (each + 1) for each in counted) / (1.0 - hazard)

    def reaching(self, requests: Sequence[Hashable], tier: Tier, depth: int) -> float:
        """Returns how many requests' first ``depth`` drafts hold in a round of ``tier``."""
        self._predict(requests)
        if depth == 0:
            return float(len(requests))
        return float(np.multiply.reduce(self._hazards_at(tier)[:depth], 0).sum())

    def gain_noise(self, requests: Sequence[Hashable], one: Tier, other: Tier) -> float:
        """Returns the standard error of the difference between the tokens of two tiers."""
        self._predict(requests)
        if one == other or not requests:
            return 0.0
        return self._noise(one, self._slope(one), other, self._slope(other))

    def noise_beyond(self, requests: Sequence[Hashable], tier: Tier, depth: int) -> float:
        """Returns the standard error of what ``tier`` accepts deeper than ``depth``."""
        self._predict(requests)
        if tier.num_steps <= depth or not requests:
            return 0.0
        slope = self._slope(tier, depth)
        return self._noise(tier, slope, PLAIN_TIER, slope[:0])

    def shorten_memory(self) -> None:
        """Lets a batch of new requests outweigh what earlier ones showed."""
        self.flush()
        self._answer_key = None
        self.pool.shorten_memory()
        self.found.shorten_memory()

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
            "found": self.found.describe(),
            **self.pool.describe(),
        }

    def flush(self) -> None:
        """Works through the rounds collected so far."""
        if not self._block:
            return
        tier = self._block_tier
        depths = self._depths[: tier.num_steps + 1, None]
        held, reached = [], []
        for _, results in self._block:
            of_batch = _held_in(results, depths)
            held.append(of_batch)
            if self._has_all:
                reached.append(of_batch[:-1])
            else:
                counts = np.array([result.num_correct for result in results])
                found = np.array([result.found for result in results])
                reached.append(_reached(counts, found, depths))
        groups = [(rows, len(results)) for rows, results in self._block]
        self._block = []
        self._num_rounds = 0
        self._answer_key = None
        if len(groups) == 1:
            self._learn(tier, groups, groups[0][0], reached[0], held[0][1:])
        else:
            rows = np.concatenate([rows for rows, _ in groups])
            accepted = np.concatenate(held, axis=1)[1:]
            self._learn(tier, groups, rows, np.concatenate(reached, axis=1), accepted)

    def _learn(
        self,
        tier: Tier,
        groups: Sequence[tuple[Rows, int]],
        rows: Rows,
        reached: Floats,
        accepted: Floats,
    ) -> None:
        """Updates pool and offsets.

        Args:
            tier: what all rounds of the block ran at.
            groups: rows and number of rounds of each batch in the block.
            rows: the rows of all groups, one after the other.
            reached: [num_steps, len(rows)] rounds that had a draft at a position and whose earlier
                ones held.
            accepted: [num_steps, len(rows)] those whose draft held, too.
        """
        num_steps = len(reached)
        ones = np.ones(len(rows))
        offset = self.offsets.offset.take(rows)
        hazards = sigmoid(self.pool.logits(tier)[:, None] + offset)
        predicted = reached * hazards
        expected = predicted @ ones
        predicted *= hazards
        info = expected - predicted @ ones
        if self.pool.observe(tier, reached @ ones, accepted @ ones, expected, info):
            self.offsets.forget()
            self.found.shorten_memory()
        # Against the pool as it is now: what moved the pool must not move the offsets as well.
        weights = np.empty((4, num_steps))  # of n, q, v, v
        weights[0] = 1.0
        weights[1] = pooled = sigmoid(self.pool.logits(tier))
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
        self._alone = sigmoid(self.pool.theta[:, None] + self.offsets.offset.take(rows))
        self._hazards = self.found.times(self._alone)
        self._counts = self._within_limits(requests) if self._limits else None
        self._survival = self._counted(self._hazards)
        expected = np.empty(self.max_steps + 1)
        expected[0] = len(requests)
        expected[1:] = self._survival @ np.ones(len(requests))
        self._expected = np.add.accumulate(expected)
        self._answer_key = requests

    def _within_limits(self, requests: Sequence[Hashable]) -> Floats:
        """Returns 1 where a draft of a request counts, else 0: [max_steps, requests]."""
        limits = [self._limits.get(request, self.max_steps) for request in requests]
        within: Floats = (self._depths[:-1, None] < np.array(limits, np.int64)).astype(np.float64)
        return within

    def _counted(self, hazards: Floats) -> Floats:
        """Returns the chance that the first d drafts hold, as far as they count; one's own copy."""
        survival = np.multiply.accumulate(hazards, 0)
        if self._counts is not None:
            survival *= self._counts[: len(survival)]
        return survival

    def _hazards_at(self, tier: Tier) -> Floats:
        """Returns the hazards of the last batch asked about: [num_steps, requests]."""
        hazards = self._hazards[: tier.num_steps]
        lift = self.pool.lift(tier)
        if lift is None:
            return hazards.copy()
        odds = hazards / (1.0 - hazards) * np.exp(lift)[:, None]
        raised: Floats = odds / (1.0 + odds)
        return raised

    def _tree_tokens(self, tier: Tier) -> float:
        return float(self._expected[0] + self._counted(self._hazards_at(tier)).sum())

    def _slope(self, tier: Tier, depth: int = 0) -> Floats:
        """Returns how a tier's tokens rise with every request's logits: [num_steps, requests].

        Only the tokens of positions deeper than ``depth`` count.
        """
        hazards = self._hazards_at(tier)
        # tail[i, r]: sum of S_r(j) over j >= i: all that draft i carries.
        tail = self._counted(hazards)
        tail[:depth] = 0.0
        tail = np.add.accumulate(tail[::-1], 0)[::-1]
        alone = self._alone[: tier.num_steps] if self.pool.lift(tier) is None else hazards
        slope: Floats = tail * (1.0 - alone)
        return slope

    def _noise(self, one: Tier, slope: Floats, other: Tier, other_slope: Floats) -> float:
        """Returns the standard error of a difference of tokens from slopes by logits."""
        ones = np.ones(slope.shape[1])
        variance = self.pool.gain_variance(one, slope @ ones, other, other_slope @ ones)
        by_request = np.add.reduce(slope, 0) - np.add.reduce(other_slope, 0)
        variance += by_request**2 @ self.offsets.variance.take(self._answer_rows)
        return math.sqrt(max(variance, 0.0))


def _reached(counts: NDArray[np.int_], found: NDArray[np.int_], depths: NDArray[np.int_]) -> Floats:
    """Returns how many rounds had a draft at a position and held all before: [num_steps, requests].

    Args:
        counts: [rounds, requests] drafts accepted.
        found: [rounds, requests] drafts that were there.
        depths: [num_steps + 1, 1].
    """
    is_there = found[:, None] > depths[:-1]
    reached: Floats = (is_there & (counts[:, None] >= depths[:-1])).sum(axis=0, dtype=np.float64)
    return reached


def _held_in(results: Sequence[Result], depths: NDArray[np.int_]) -> Floats:
    """Returns how many rounds of one batch held at least each depth: [len(depths), requests]."""
    counts = [result.num_correct for result in results if result.held is None]
    chances = [result.held for result in results if result.held is not None]
    if not chances:
        return _held(np.array(counts), depths)
    expected: Floats = np.add.reduce(chances, 0)
    return expected + _held(np.array(counts), depths) if counts else expected


def _held(counts: NDArray[np.int_], depths: NDArray[np.int_]) -> Floats:
    """Returns how many rounds of ``counts`` [rounds, requests] held at least each depth."""
    if len(counts) == 1:
        return (counts >= depths).astype(np.float64)
    held: Floats = (counts[:, None] >= depths).sum(axis=0, dtype=np.float64)
    return held
