"""Schedulers get the core that is fastest now, and everybody else leaves it to them."""

import os

import pytest

from benchmarks.lab import cores
from benchmarks.lab.cores import Cores


@pytest.fixture
def affinity(monkeypatch: pytest.MonkeyPatch) -> dict[int, set[int]]:
    """Where a machine of 16 cores lets processes run; this one is 0."""
    allowed = {0: set(range(16))}
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: allowed[pid])
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, to: allowed.update({pid: set(to)}))
    return allowed


def test_a_scheduler_gets_the_fastest_core(
    affinity: dict[int, set[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    took = {core: 4.0 for core in range(16)} | {5: 2.0, 6: 9.0}
    monkeypatch.setattr(cores, "work_ms", took.__getitem__)
    mine = Cores()
    seat = mine.seat(123)
    assert seat is not None
    assert (seat.core, seat.ms, seat.median_ms) == (5, 2.0, 4.0)
    assert affinity == {0: set(range(16)) - {5}, 123: {5}}
    took[5] = 7.0
    assert mine.look_again(seat).after_ms == 7.0
    second = mine.seat(123)
    assert second is not None
    assert second.core == 0
    assert affinity == {0: set(range(16)) - {0}, 123: {0}}


def test_where_cores_are_few_nobody_is_moved(affinity: dict[int, set[int]]) -> None:
    affinity[0] = set(range(4))
    assert Cores().seat(123) is None
    assert affinity == {0: set(range(4))}


def test_the_piece_of_work_is_done_on_the_core_that_is_asked(
    affinity: dict[int, set[int]],
) -> None:
    assert cores.work_ms(3) > 0
    assert affinity[0] == {3}
