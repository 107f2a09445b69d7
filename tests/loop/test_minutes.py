"""A row a minute: what the sums gained in it, for a day, and nothing where nothing ran."""

import json
from typing import Any

import pytest

from sglang_adaptive_spec.loop.counters import RoundCounters
from sglang_adaptive_spec.loop.meter import RoundMeter
from sglang_adaptive_spec.loop.minutes import MINUTE_S, MOST_MINUTES, Minutes
from sglang_adaptive_spec.loop.round import Round
from sglang_adaptive_spec.size_classes import size_class, size_range
from sglang_adaptive_spec.tiers import PLAIN_TIER, DecodeBatch, Plan, RoundTime, Tier, chain_tier

THREE = chain_tier(3)
TIERS = [PLAIN_TIER, THREE]
START_S = 1_000_000 * MINUTE_S + 10.0  # since 1970: ten seconds into a minute


class Clocked:
    """Minutes on a clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 500.0
        self.retractions = 0
        self.moves: dict[str, int] = {"gain": 0}
        self.counters, self.meter = RoundCounters(), RoundMeter(TIERS, has_decisions=False)
        self.minutes = Minutes(
            self.counters,
            self.meter,
            lambda: {"moves": self.moves},
            lambda: self.retractions,
            lambda: self.now_s,
            START_S,
        )

    def round(self, tier: Tier, correct: list[int], ms: float = 10.0, waiting: int = 0) -> None:
        self.minutes.decode(self.now_s, waiting)
        self.counters.count_round(Plan(tier), correct)
        size = len(correct)
        done = Round(0, DecodeBatch(size, tuple(range(size))), Plan(tier))
        done.finish(correct)
        done.period = RoundTime(Plan(tier), size, 0, ms)
        self.meter.add(done)

    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(row) for row in self.minutes.rows()]


@pytest.fixture
def server() -> Clocked:
    return Clocked()


def test_a_minute_says_what_its_rounds_gave(server: Clocked) -> None:
    server.round(THREE, [3, 1, 0])
    server.round(THREE, [3, 3, 3], ms=12.5, waiting=4)
    server.round(PLAIN_TIER, [0])
    server.counters.num_switches["policy"] += 1
    server.moves["gain"] += 1
    server.retractions += 2
    server.now_s += 50.0  # the next clock minute
    server.round(THREE, [0])
    first, second = server.rows()
    assert first == {
        "start": START_S,
        "seconds": 50.0,
        "rounds": {"3": 2, "0": 1},
        "accepted": {"3": {"0": 1, "1": 1, "3": 4}, "0": {"0": 1}},
        "runs": {"1": 1},
        "switches": {"policy": 1},
        "timed": {
            "3": {"3-4": {"rounds": 2, "ms": 22.5, "tokens": 19}},
            "0": {"1": {"rounds": 1, "ms": 10.0, "tokens": 1}},
        },
        "sums": {"tokens": 20, "ms": 32.5},
        "policy": {"moves": {"gain": 1}},
        "waiting": 4,
        "retractions": 2,
        "most_waiting": 4,
    }
    assert second["start"] == START_S + 50.0
    assert second["rounds"] == {"3": 1}
    assert second["most_waiting"] == 0


def test_an_idle_server_writes_nothing(server: Clocked) -> None:
    assert server.rows() == []
    server.round(THREE, [0])
    server.now_s += 600.0
    (newest,) = server.rows()  # of an idle server: its minute was over long ago
    server.round(THREE, [0])
    first, second = server.rows()
    assert newest == first
    assert (first["start"], first["seconds"]) == (START_S, 50.0)
    assert (second["start"] - MINUTE_S * 1_000_000) / MINUTE_S == 10.0
    assert second["seconds"] == 10.0


def test_prefills_alone_fill_minutes_too(server: Clocked) -> None:
    for _ in range(90):
        server.minutes.extend()
        server.now_s += 1.0
    first, second = server.rows()
    assert (first["seconds"], first["prefills"]["number"]) == (50.0, 50)
    assert (second["seconds"], second["prefills"]["number"]) == (40.0, 40)


def test_a_day_is_kept_and_takes_some_hundred_kilobytes(server: Clocked) -> None:
    for minute in range(MOST_MINUTES + 100):
        for size in (1, 2, 4, 8, 16):
            server.round(THREE, [minute % 4] * size)
            server.round(PLAIN_TIER, [0] * size)
        server.now_s += MINUTE_S
    rows = server.minutes.rows(10**9)
    assert len(rows) == MOST_MINUTES + 1  # and the one that is not over
    assert json.loads(rows[0])["start"] == pytest.approx(START_S + 50 + 60 * 98)
    assert sum(map(len, rows)) < 1_000_000
    assert len(server.minutes.rows(3)) == 3


def test_prefill_counts_until_the_next_round_and_never_as_idle(server: Clocked) -> None:
    """Health checks of an idle server are prefills of one token each."""
    server.minutes.extend()
    server.now_s += 0.5
    server.minutes.extend()
    server.now_s += 7.0  # a long prompt
    server.round(THREE, [0])
    for _ in range(3):
        server.minutes.extend()
        server.now_s += 0.25
        server.minutes.idle()
        server.now_s += 4.0
        server.minutes.idle()
    server.round(THREE, [0])
    (row,) = server.rows()
    assert row["prefills"] == {"number": 5, "ms": 8250.0}


def test_packed_rounds_say_how_many_drafts_they_left_out(server: Clocked) -> None:
    server.counters.count_round(Plan(THREE, verify_lens=(4, 1, 2)), [3, 0, 1])
    (row,) = server.rows()
    assert row["packed"] == {"3": {"rounds": 1, "unverified": 12 - 7}}


@pytest.mark.parametrize(
    ("size", "expected"), [(1, "1"), (2, "2"), (3, "3-4"), (4, "3-4"), (5, "5-8"), (128, "65-128")]
)
def test_batches_fall_into_ranges(size: int, expected: str) -> None:
    assert size_range(size_class(size)) == expected
