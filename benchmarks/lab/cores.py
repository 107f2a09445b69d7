"""Moves a server's scheduler to the core that is fastest now.

A GPU's host is a virtual machine whose cores others use, too: some of them never slow down, others
most of the time (cores-h200.json.xz), and the guest sees no steal. Schedulers that shared one core
ran nearly all the time, and rounds that the CPU bounds took 1 to 4 times as long for seconds on
end. One server of a fleet is busy at a time. Before it is, all cores do the same piece of work; its
scheduler gets the fastest, which everybody else leaves to it.
"""

import os
import time
from statistics import median
from typing import NamedTuple

FEWEST_CORES = 8  # with fewer, nobody is moved
LOOKS = 2  # at each core
# Memory and bytecode, as a scheduler's rounds are: 2 to 4 ms of it.
TABLE = {str(number): number for number in range(20_000)}


class Seat(NamedTuple):
    """The core of a scheduler, and what the piece of work took there and elsewhere, ms."""

    core: int
    ms: float
    median_ms: float  # of all cores
    after_ms: float | None = None  # when its server had been busy


class Cores:
    """Owns the cores of this process, from which schedulers get theirs."""

    def __init__(self) -> None:
        """Takes those that it has now."""
        self._all = frozenset(os.sched_getaffinity(0))

    def seat(self, pid: int) -> Seat | None:
        """Moves the main thread of a process to the fastest core; None where cores are few."""
        if len(self._all) < FEWEST_CORES:
            return None
        took = {core: work_ms(core) for core in sorted(self._all)}
        core = min(took, key=lambda each: took[each])
        os.sched_setaffinity(pid, {core})
        self._leave(core)
        return Seat(core, round(took[core], 3), round(median(took.values()), 3))

    def look_again(self, seat: Seat) -> Seat:
        """Returns the seat with what the work takes there now."""
        after_ms = round(work_ms(seat.core), 3)
        self._leave(seat.core)
        return seat._replace(after_ms=after_ms)

    def _leave(self, core: int) -> None:
        os.sched_setaffinity(0, self._all - {core})


def work_ms(core: int) -> float:
    """Moves this thread to a core; returns what the piece of work takes there, mean of `LOOKS`."""
    os.sched_setaffinity(0, {core})
    start = time.perf_counter()
    for _ in range(LOOKS):
        sum(TABLE[name] for name in TABLE)
    return (time.perf_counter() - start) * 1e3 / LOOKS
