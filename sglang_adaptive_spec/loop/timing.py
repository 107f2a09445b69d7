"""Periods of decode rounds, read without a sync.

A mark is placed at the head of every decode round; the period of a round is the time from its
mark to the next one, so it holds whatever a round costs: draft, verify, draft-extend, sampling
and the scheduler between them. On a GPU a mark is an event in the stream that the forward pass
waits for, on a CPU a reading of the clock. A period is dropped unless

  - `WARM_UP_ROUNDS` came before it: the first ones of a process are slow, such as those of the
    request that the host serves itself before it is ready;
  - the next decode round followed directly, and a round was still in flight then, or one extend
    came between, which let others in beside requests that went on: that period says so;
  - its tier had run at this batch size before (a first use warms caches up), and in the
    `SETTLING_ROUNDS` before it (a switch costs the first rounds after it, not the tier);
  - its end is marked complete when it is read (its head lies before, in the same stream).

Marks and what is learned from them cost the CPU microseconds: a tier known well is timed in its
first rounds once it has settled, then in one round in `SAMPLE_EVERY`, which stands for as many.
"""

import time
from typing import Protocol

from sglang_adaptive_spec.loop.round import MAX_ROUNDS, Round
from sglang_adaptive_spec.policy.costs.corrections import SETTLING_ROUNDS, VISIT_ROUNDS
from sglang_adaptive_spec.tiers import RoundTime, Tier

# Rounds marked and not yet read. A mark is written over only when it is this many rounds old.
RING_SIZE = MAX_ROUNDS
# Of a process: the host's own request has 8 tokens, 30 at most (sglang 0.5.23
# entrypoints/http_server.py:_execute_server_warmup, warmup.py). Its rounds took twice their time.
WARM_UP_ROUNDS = 32
ALL_TIMED_USES = 80  # of a tier at a batch size: it is known well by then (policy/costs/table.py)
SAMPLE_EVERY = 5  # later one round in so many, on average
# Round n is sampled if n * STRIDE % MODULUS falls into the first fifth: evenly spread, and with no
# period in common with what comes every 4, 8 or 15 rounds (decisions, catch-ups). 499 is prime.
STRIDE, MODULUS = 308, 499
# Extends between two rounds, or what makes their period as useless as several.
MANY = 2
# A choice: a longer period with an extend holds a pause, not a prefill.
LONGEST_MS = 2000.0


class Clock(Protocol):
    """Places marks and measures between them; a mark is an index below `RING_SIZE`."""

    def mark(self, idx: int) -> None:
        """Places mark ``idx`` now, in the order of the work launched."""

    def elapsed_ms(self, begin_idx: int, end_idx: int) -> float | None:
        """Returns the time between two marks, or None while it is not known; never waits."""


class Event(Protocol):
    """The part of ``torch.cuda.Event`` that is used."""

    def record(self) -> None:
        """Marks the current stream."""

    def query(self) -> bool:
        """Returns whether the work before the mark is done."""

    def elapsed_time(self, end_event: "Event") -> float:
        """Returns the ms from this mark to ``end_event``; both must be done."""


class CpuClock:
    """Marks are readings of ``time.perf_counter``."""

    def __init__(self, size: int) -> None:
        self._marks_s = [0.0] * size

    def mark(self, idx: int) -> None:
        """Reads the clock."""
        self._marks_s[idx] = time.perf_counter()

    def elapsed_ms(self, begin_idx: int, end_idx: int) -> float:
        """Returns the difference."""
        return (self._marks_s[end_idx] - self._marks_s[begin_idx]) * 1e3


class EventClock:
    """Marks are events, recorded again and again."""

    def __init__(self, events: list[Event]) -> None:
        self._events = events

    def mark(self, idx: int) -> None:
        """Records the event in the current stream."""
        self._events[idx].record()

    def elapsed_ms(self, begin_idx: int, end_idx: int) -> float | None:
        """Returns the time on the GPU if the later event is complete; asks, never waits."""
        end = self._events[end_idx]
        return self._events[begin_idx].elapsed_time(end) if end.query() else None


class Sampling:
    """Says which rounds are timed: all of a tier new to a batch size, later one in some.

    None are timed during warm-up. The first rounds of a tier that has settled after another
    one are timed, too: they tell own from drift.
    """

    def __init__(self, warm_up_rounds: int = WARM_UP_ROUNDS) -> None:
        self._warm_up_rounds = warm_up_rounds
        self._uses: dict[tuple[Tier, int, bool], int] = {}
        self._num_rounds = 0
        self._num_uses = 0  # of the newest tier and batch size, as far as it goes
        self._size = 0  # of the last round, as its tier and whether it was packed
        self._tier: Tier | None = None
        self._is_packed = False
        self._num_settled = 0  # rounds of that tier since it settled; none yet up to 0

    def stands_for(self, tier: Tier, batch_size: int, is_packed: bool = False) -> int:
        """Counts a round; returns for how many its time stands, 0 if it is not timed."""
        self._num_rounds += 1
        if (tier, batch_size, is_packed) != (self._tier, self._size, self._is_packed):
            self._change(tier, batch_size, is_packed)
        self._num_uses += 1
        self._num_settled += 1
        num_uses = self._num_uses
        if num_uses == 1 or self._num_settled <= 0 or self._num_rounds <= self._warm_up_rounds:
            return 0
        if num_uses <= ALL_TIMED_USES or self._num_settled <= VISIT_ROUNDS:
            return 1
        is_sampled = self._num_rounds * STRIDE % MODULUS < MODULUS / SAMPLE_EVERY
        return SAMPLE_EVERY if is_sampled else 0

    def _change(self, tier: Tier, batch_size: int, is_packed: bool) -> None:
        if self._tier is not None:
            self._uses[self._tier, self._size, self._is_packed] = self._num_uses
        if (tier, is_packed) != (self._tier, self._is_packed):
            self._num_settled = 0 if self._tier is None else -SETTLING_ROUNDS
        self._tier, self._size, self._is_packed = tier, batch_size, is_packed
        self._num_uses = self._uses.get((tier, batch_size, is_packed), 0)


class RoundTimer:
    """Times the decode rounds of one stream; ``device`` as torch names it."""

    def __init__(
        self, device: str, clock: Clock | None = None, warm_up_rounds: int = WARM_UP_ROUNDS
    ) -> None:
        self._clock = clock if clock is not None else clock_of(device)
        self._newest = -1  # the number of the newest round
        self._num_between = MANY  # extends since the newest start
        self._has_overlap = False  # the host launches a round before it reads the last one
        self._sampling = Sampling(warm_up_rounds)
        # Per mark its round, for how many its time stands (0: it is not timed), and the extends
        # between it and the round before.
        self._rounds: list[Round | None] = [None] * RING_SIZE
        self._stands_for = [0] * RING_SIZE
        self._extends_before = [MANY] * RING_SIZE

    def start(self, launched: Round, num_in_flight: int) -> None:
        """Marks the head of a decode round, in the stream that is to run it.

        Results of rounds that are not in flight any more may still wait to be polled.
        """
        if num_in_flight > 0:
            self._has_overlap = True
        elif self._has_overlap:  # nothing was in flight: the scheduler had gone idle
            self._num_between = self._num_between or MANY
        was_timed = self._stands_for[self._newest % RING_SIZE] > 0
        self._newest = launched.number
        idx = launched.number % RING_SIZE
        is_packed = launched.plan.verify_lens is not None
        stands_for = self._sampling.stands_for(launched.tier, launched.load.size, is_packed)
        if stands_for or was_timed:  # the head of a round is the end of the one before
            self._clock.mark(idx)
        self._rounds[idx], self._stands_for[idx] = launched, stands_for
        self._extends_before[idx], self._num_between = self._num_between, 0

    def interrupt(self, is_mixed: bool = False) -> None:
        """Takes note that an extend comes before the next round.

        Called at any time from the newest round's start to the next one's.

        Args:
            is_mixed: Whether requests that go on decode in it: then it is no mere prefill.
        """
        self._num_between += MANY if is_mixed else 1

    def poll(self, done: Round) -> Round | None:
        """Returns the round before ``done`` with its period, if it has one.

        The result of ``done`` is there: both marks lie before it, so they are complete.
        """
        begin_idx, end_idx = (done.number - 1) % RING_SIZE, done.number % RING_SIZE
        before, stands_for = self._rounds[begin_idx], self._stands_for[begin_idx]
        if before is None or before.number != done.number - 1:  # the first, or written over
            return None
        if not stands_for:
            return None
        num_extends = self._extends_before[end_idx]
        num_joined = _num_joined(before, done) if num_extends == 1 else 0
        if num_extends and not num_joined:
            return None
        ms = self._clock.elapsed_ms(begin_idx, end_idx)
        if ms is None or ms <= 0.0:  # not measured, or by a clock that was set back
            return None
        if num_joined and ms > LONGEST_MS:
            return None
        load = before.load
        sizes = load.size, load.context_tokens
        before.period = RoundTime(before.plan, *sizes, ms, stands_for, num_joined)
        return before


def _num_joined(before: Round, done: Round) -> int:
    """Returns how many requests were let in beside others that went on; 0 if there are none.

    Else the scheduler may have waited for requests.
    """
    known = set(before.batch.requests)
    num_joined = len(set(done.batch.requests) - known)
    goes_on = num_joined < done.batch.size and before.of_all is None
    return num_joined if goes_on and not before.plan.is_catch_up else 0


def clock_of(device: str) -> Clock:
    """Returns events for a device that has a stream, readings of the clock for the CPU."""
    if device.partition(":")[0] == "cpu":
        return CpuClock(RING_SIZE)
    import torch  # not for the CPU: what runs here then needs none of it

    event = torch.get_device_module(device).Event
    return EventClock([event(enable_timing=True) for _ in range(RING_SIZE)])
