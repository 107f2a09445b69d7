"""A recorded trace as a workload: the same requests, lengths and luck under any other policy.

What a request would have accepted at an output position:
- a recorded round began there: what it accepted;
- else: what another recorded round of this request, at most `NEAR_ROUNDS` away, accepted, drawn
  by (seed, request, position). Taking the round that covers the position instead would favour
  rounds that accepted many drafts, because they cover more positions.
A round that accepted all its drafts is censored: it is extended draft by draft with the hazards of
its phase, estimated as ``h[d] = (accepted[d] + PRIOR * pooled[d]) / (reached[d] + PRIOR)`` from the
rounds that reached position d; where nobody did, the last known hazard holds.

Where a table drafts, a round says how many drafts it had and a request accepts no more. Of a round
that the table was not asked for, in a stay at zero steps, the nearest one of this request says it.

Load, context and phases follow the tokens produced, not the time: every policy has the same work.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sglang_adaptive_spec.simulate.workload import (
    Clock,
    Floats,
    Ints,
    Live,
    Request,
    position_keys,
    request_keys,
    uniform,
)
from sglang_adaptive_spec.trace.format import Trace, TraceRound

NEAR_ROUNDS = 4  # to either side; wide enough to mix luck, narrow enough to follow the text
PHASE_REQUEST_ROUNDS = 2000  # per phase at least; the standard error of a hazard is then <= 1.2 %
PRIOR = 20.0  # request-rounds that the whole trace counts for in a phase's hazard
UNKNOWN_HAZARD = 0.5  # of a first draft, in a trace that holds zero-step rounds only
END_SHARE = 0.98  # of the tokens: then only the last requests are left, fewer than were recorded


@dataclass(slots=True)
class _Rows:
    """The rounds of one request."""

    positions: list[int]  # output tokens before the round
    known: list[int]  # drafts known to be accepted
    is_censored: list[bool]  # perhaps more were
    phases: list[int]
    found: list[int | None]  # drafts in a row that a table had, if it was asked
    num_tokens: int = 0


class RecordedWorkload:
    """A trace's requests in the order they came, at the load they came with."""

    def __init__(self, trace: Trace, max_steps: int, seed: int = 1) -> None:
        self.name = trace.header.name
        self.max_steps = max(max_steps, trace.header.max_steps)
        self._seed = seed
        rounds = trace.rounds
        tokens = [one.num_tokens for one in rounds]
        self._starts = np.concatenate([[0], np.cumsum(tokens)[:-1]])  # [rounds] tokens before each
        self._num_tokens = sum(tokens)
        self._sizes = [len(one.requests) for one in rounds]
        self._context = [one.context_tokens / len(one.requests) for one in rounds]
        self._phases = _phases(self._sizes)
        self._hazards = _hazards(rounds, self._phases, self.max_steps)
        self._per_request = 1 + np.cumprod(self._hazards, axis=1).cumsum(axis=1)
        self._requests = _rows(rounds, self._phases)
        self._offsets = np.cumsum([0, *(rows.num_tokens for rows in self._requests)])
        self.has_table = any(one.found is not None for one in rounds)
        # [2, tokens of all requests] at every output position: drafts that would be accepted, and
        # those that a table has.
        self._outcomes, self._found = np.concatenate(
            [self._outcomes_of(idx, rows) for idx, rows in enumerate(self._requests)], axis=1
        )

    def is_over(self, clock: Clock) -> bool:
        """Says whether nearly all tokens are produced."""
        return clock.num_tokens >= END_SHARE * self._num_tokens

    def concurrency(self, clock: Clock) -> int:
        """Returns the batch size recorded after as many tokens."""
        return self._sizes[self._round_at(clock)]

    def request(self, idx: int) -> Request | None:
        """Returns the request that came as number ``idx``."""
        if idx >= len(self._requests):
            return None
        return Request(prompt_tokens=0, num_tokens=self._requests[idx].num_tokens)

    def phase(self, clock: Clock) -> int:
        """Returns the phase after as many tokens."""
        return self._phases[self._round_at(clock)]

    def slowdown(self, clock: Clock, num_steps: int) -> float:
        """Returns 1: the cost table says how long a round takes."""
        return 1.0

    def context_tokens(self, clock: Clock, live: Live) -> int:
        """Returns the recorded context per request, times the requests."""
        return round(self._context[self._round_at(clock)] * live.size)

    def num_correct_drafts(self, phase: int, live: Live, num_steps: int) -> Ints:
        """Returns the accepted drafts per row."""
        outcomes = self._outcomes[self._offsets[live.idx] + live.positions]
        return np.asarray(np.minimum(outcomes, num_steps))

    def confidences(self, _phase: int, _live: Live, _num_steps: int) -> None:
        """Says that no trace holds them."""

    def found(self, live: Live) -> Ints:
        """Returns the drafts that the table has, per row."""
        return np.asarray(self._found[self._offsets[live.idx] + live.positions])

    def expected_tokens(self, phase: int, live: Live) -> Floats:
        """Returns what the phase's hazards expect, of the drafts that a table has."""
        if not self.has_table:
            return live.size * np.concatenate([[1.0], self._per_request[phase]])
        num_there = (np.arange(self.max_steps) < self.found(live)[:, None]).sum(axis=0)
        gains = np.cumprod(self._hazards[phase]) * num_there
        return np.asarray(live.size + np.concatenate([[0.0], gains.cumsum()]))

    def _round_at(self, clock: Clock) -> int:
        return int(np.searchsorted(self._starts, clock.num_tokens, "right")) - 1

    def _outcomes_of(self, idx: int, rows: _Rows) -> Ints:
        """Returns accepted drafts and those of a table at a request's output positions: [2, n]."""
        keys = request_keys(self._seed, np.array([idx]))
        starts = np.array(rows.positions)
        positions = np.arange(rows.num_tokens)
        covering = np.searchsorted(starts, positions, "right") - 1
        luck = uniform(position_keys(keys, positions))
        near = covering + np.floor(luck * (2 * NEAR_ROUNDS + 1)).astype(np.int64) - NEAR_ROUNDS
        # Folded back at the ends, so that the first and the last round are not drawn more often.
        near = np.abs(near)
        last = len(starts) - 1
        near = np.where(near > last, np.maximum(2 * last - near, 0), near)
        chosen = np.where(starts[covering] == positions, covering, near)
        outcomes = np.stack([self._extended(keys, rows), self._filled(rows)])
        outcomes[0] = outcomes.min(axis=0)
        return np.asarray(outcomes[:, np.minimum(chosen, last)])

    def _filled(self, rows: _Rows) -> Ints:
        """Returns what a table had for a request per round; where a head drafts, all."""
        if not self.has_table:
            return np.full(len(rows.found), self.max_steps)
        asked = [idx for idx, drafts in enumerate(rows.found) if drafts is not None]
        if not asked:
            return np.zeros(len(rows.found), np.int64)
        found = np.array([drafts for drafts in rows.found if drafts is not None])
        halfway = (np.array(asked[1:]) + asked[:-1]) / 2
        return np.asarray(found[np.searchsorted(halfway, np.arange(len(rows.found)))])

    def _extended(self, keys: np.ndarray[tuple[int], np.dtype[np.uint64]], rows: _Rows) -> Ints:
        """Returns a request's accepted drafts per round, as if all had run at the deepest tier."""
        known = np.array(rows.known)
        depths = np.arange(self.max_steps)
        # Another stream than the one that draws rounds: odd numbers far from any position.
        draws = np.array(rows.positions)[:, None] * self.max_steps + depths + 2**40
        holds = uniform(position_keys(keys[:, None], draws)) < self._hazards[rows.phases]
        holds &= np.array(rows.is_censored)[:, None]
        holds |= depths < known[:, None]
        return np.asarray(np.logical_and.accumulate(holds, axis=1).sum(axis=1))


def _phases(sizes: Sequence[int]) -> list[int]:
    """Returns the phase of every round: `PHASE_REQUEST_ROUNDS` each, the last one longer."""
    before = np.cumsum([0, *sizes[:-1]])
    num_phases = max(1, sum(sizes) // PHASE_REQUEST_ROUNDS)
    phases: list[int] = np.minimum(before // PHASE_REQUEST_ROUNDS, num_phases - 1).tolist()
    return phases


def _bounds(one: TraceRound) -> tuple[list[int], list[bool]]:
    """Returns per row the drafts known to be accepted, and whether more may have been."""
    counts = one.num_correct_drafts
    verified = one.kept or one.found or [one.num_steps] * len(counts)
    firsts = one.first_draft_correct or [None] * len(counts)  # behind those
    rows = list(zip(counts, verified, firsts, strict=True))
    known = [count + (first is True) for count, _, first in rows]
    return known, [count >= most and first is not False for count, most, first in rows]


def _hazards(rounds: Sequence[TraceRound], phases: Sequence[int], max_steps: int) -> Floats:
    """Returns the smoothed hazards: [phases, max_steps]."""
    reached = np.zeros((phases[-1] + 1, max_steps))
    accepted = np.zeros_like(reached)
    for phase, one in zip(phases, rounds, strict=True):
        known, is_censored = _bounds(one)
        depth = np.array(known)
        accepted[phase] += (np.arange(max_steps) < depth[:, None]).sum(axis=0)
        failed = depth[~np.array(is_censored)]
        np.add.at(reached[phase], failed, 1)  # the position that did not hold
    reached += accepted
    pooled = np.empty(max_steps)
    last = UNKNOWN_HAZARD
    for position in range(max_steps):
        if reached[:, position].sum() > 0:
            last = accepted[:, position].sum() / reached[:, position].sum()
        pooled[position] = last
    return (accepted + PRIOR * pooled) / (reached + PRIOR)


def _rows(rounds: Sequence[TraceRound], phases: Sequence[int]) -> list[_Rows]:
    """Returns the requests in order of appearance, with their rounds."""
    requests: dict[int, _Rows] = {}
    for phase, one in zip(phases, rounds, strict=True):
        known, is_censored = _bounds(one)
        for row, key in enumerate(one.requests):
            rows = requests.setdefault(key, _Rows([], [], [], [], []))
            rows.positions.append(rows.num_tokens)
            rows.known.append(known[row])
            rows.is_censored.append(is_censored[row])
            rows.phases.append(phase)
            # More may be accepted where a draft of token 0 passed for padding.
            found = None if one.found is None else max(one.found[row], one.num_correct_drafts[row])
            rows.found.append(found)
            rows.num_tokens += one.num_correct_drafts[row] + one.num_decodes
    return list(requests.values())
