"""What the measuring plugin sees of a scheduler: which phase takes how long for which batch."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.inject.measure_plugin import Phases


def batch(is_decode: bool) -> Any:
    """A batch as the scheduler passes it around."""
    return SimpleNamespace(forward_mode=SimpleNamespace(is_decode=lambda: is_decode))


def test_a_phase_is_counted_by_the_kind_of_its_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(0, 100_000_000, 2_000_000))  # every reading 2 ms after the last
    monkeypatch.setattr(time, "perf_counter_ns", lambda: next(now))
    phases = Phases()
    launch = phases.around("launch", is_given=True)
    scheduler = object()
    for is_decode in (True, False, True):
        assert launch(lambda _self, _batch: "launched", scheduler, batch(is_decode)) == "launched"
    assert phases.took == {"launch decode": [2, 4.0], "launch prefill": [1, 2.0]}


def test_nothing_to_run_is_no_phase() -> None:
    phases = Phases()
    pick = phases.around("pick", is_given=False)
    pick(lambda _self: SimpleNamespace(batch_to_run=None), object())
    assert phases.took == {}
