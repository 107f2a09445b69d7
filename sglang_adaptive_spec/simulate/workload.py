"""Traffic that a policy is replayed on: who is live, how far along, and what drafts would hold.

A `Workload` answers for every request and output position how many drafts would be accepted,
whatever depth a policy runs there. Luck is tied to (seed, request, output position), never to the
order of calls, so every policy meets the same luck at the same place and differences between
policies are paired.
"""

from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]
Keys: TypeAlias = NDArray[np.uint64]

# SplitMix64 (Steele, Lea, Flood 2014): increment and the two multipliers of its finaliser.
INCREMENT = np.uint64(0x9E3779B97F4A7C15)
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
MIX_2 = np.uint64(0x94D049BB133111EB)


@dataclass(frozen=True, slots=True)
class Clock:
    """How far a replay is; a workload's events are tied to one of the two."""

    now_s: float
    num_tokens: int  # produced so far, by all requests


@dataclass(frozen=True, slots=True)
class Request:
    """One request, the same for every policy."""

    prompt_tokens: int
    num_tokens: int  # output tokens after which it finishes
    kind: int = 0  # an index into a phase's kinds of acceptance


class Live:
    """The live requests, one row each."""

    def __init__(self) -> None:
        self.idx: Ints = np.zeros(0, np.int64)  # [bs] which request of the workload
        self.positions: Ints = np.zeros(0, np.int64)  # [bs] output tokens so far
        self.num_tokens: Ints = np.zeros(0, np.int64)  # [bs] at which it finishes
        self.prompt_tokens: Ints = np.zeros(0, np.int64)  # [bs]
        self.kinds: Ints = np.zeros(0, np.int64)  # [bs]
        self.requests: tuple[int, ...] = ()  # ``idx`` as a policy gets it

    @property
    def size(self) -> int:
        """The batch size."""
        return len(self.requests)

    def join(self, idx: int, request: Request) -> None:
        """Adds a row at output position 0."""
        self.idx = np.append(self.idx, idx)
        self.positions = np.append(self.positions, 0)
        self.num_tokens = np.append(self.num_tokens, request.num_tokens)
        self.prompt_tokens = np.append(self.prompt_tokens, request.prompt_tokens)
        self.kinds = np.append(self.kinds, request.kind)
        self.requests = (*self.requests, idx)

    def advance(self, num_tokens: Ints) -> int:
        """Moves every row on, removes those that finish, and returns the tokens delivered."""
        before = int(self.positions.sum())
        self.positions = np.minimum(self.positions + num_tokens, self.num_tokens)
        delivered = int(self.positions.sum()) - before
        is_live = self.positions < self.num_tokens
        if not is_live.all():
            self.idx, self.positions = self.idx[is_live], self.positions[is_live]
            self.num_tokens = self.num_tokens[is_live]
            self.prompt_tokens = self.prompt_tokens[is_live]
            self.kinds = self.kinds[is_live]
            self.requests = tuple(self.idx.tolist())
        return delivered


class Workload(Protocol):
    """Traffic; a pure function of its arguments, so that it can be replayed any number of times."""

    @property
    def name(self) -> str:
        """The trace's name."""

    @property
    def max_steps(self) -> int:
        """The deepest tier whose expectation it knows."""

    def is_over(self, clock: Clock) -> bool:
        """Says whether the replay ends here."""

    def concurrency(self, clock: Clock) -> int:
        """Returns how many requests the clients keep open; at least 1."""

    def request(self, idx: int) -> Request | None:
        """Returns the request that joins as number ``idx``; None after the last."""

    def phase(self, clock: Clock) -> int:
        """Returns the index of the phase, within which acceptance does not change."""

    def slowdown(self, clock: Clock, num_steps: int) -> float:
        """Returns by what factor rounds of a depth take longer than the true costs say."""

    def context_tokens(self, clock: Clock, live: Live) -> int:
        """Returns the context of the batch, summed over its requests."""

    def num_correct_drafts(self, phase: int, live: Live, num_steps: int) -> Ints:
        """Returns how many of ``num_steps`` drafts would be accepted, per row: [bs]."""

    def confidences(self, phase: int, live: Live, num_steps: int) -> Floats | None:
        """Returns the draft's confidence in each draft, if it tells any: [num_steps, bs]."""

    @property
    def has_table(self) -> bool:
        """Says whether a table drafts, which has drafts now and then."""

    def found(self, live: Live) -> Ints:
        """Returns how many drafts in a row the table has, per row: [bs]."""

    def expected_tokens(self, phase: int, live: Live) -> Floats:
        """Returns the true expectation for a round, by num_steps: [max_steps + 1], float64."""


def uniform(keys: Keys) -> Floats:
    """Returns one number in [0, 1) per key, the same for the same key."""
    mixed = _mix(keys)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def request_keys(seed: int, requests: Ints) -> Keys:
    """Returns one key per request, from which the keys of its output positions are made."""
    seeds = np.full(1, seed, np.uint64)
    return _mix(_mix(seeds) + requests.astype(np.uint64))


def position_keys(keys: Keys, positions: Ints) -> Keys:
    """Returns the keys of output positions; broadcasts."""
    return keys + positions.astype(np.uint64) * INCREMENT


def _mix(keys: Keys) -> Keys:
    keys = keys + INCREMENT
    keys = (keys ^ (keys >> np.uint64(30))) * MIX_1
    keys = (keys ^ (keys >> np.uint64(27))) * MIX_2
    return keys ^ (keys >> np.uint64(31))
