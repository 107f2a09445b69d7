"""Round periods: which are told, which are dropped, and that reading one never waits."""

import sys
import time
from collections.abc import Sequence
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_adaptive_spec.loop import timing
from sglang_adaptive_spec.loop.round import Round
from sglang_adaptive_spec.loop.timing import (
    ALL_TIMED_USES,
    RING_SIZE,
    SAMPLE_EVERY,
    WARM_UP_ROUNDS,
    CpuClock,
    EventClock,
    RoundTimer,
    Sampling,
)
from sglang_adaptive_spec.policy.costs.corrections import SETTLING_ROUNDS, VISIT_ROUNDS
from sglang_adaptive_spec.tiers import (
    PLAIN_TIER,
    CatchUp,
    DecodeBatch,
    Plan,
    RoundTime,
    Tier,
    chain_tier,
)

DEEP = chain_tier(3)


class FakeStream:
    """A device: what was recorded completes only when the test lets time pass."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.num_waits = 0
        self.num_marks = 0


class FakeEvent:
    """Behaves as torch.cuda.Event: elapsed_time of an incomplete event is an error."""

    def __init__(self, stream: FakeStream) -> None:
        self.stream = stream
        self.at_ms: float | None = None
        self.is_complete = True

    def record(self) -> None:
        self.at_ms = self.stream.now_ms
        self.stream.num_marks += 1
        self.is_complete = True

    def query(self) -> bool:
        return self.is_complete

    def elapsed_time(self, end_event: "FakeEvent") -> float:
        if not (self.is_complete and end_event.is_complete):
            raise RuntimeError("device not ready")
        assert self.at_ms is not None
        assert end_event.at_ms is not None
        return end_event.at_ms - self.at_ms

    def synchronize(self) -> None:
        self.stream.num_waits += 1


def launched(
    number: int,
    tier: Tier = DEEP,
    batch_size: int = 4,
    context_tokens: int = 0,
    catch_up: CatchUp = CatchUp.NONE,
) -> Round:
    batch = DecodeBatch(batch_size, tuple(range(batch_size)), context_tokens)
    return Round(number, batch, Plan(tier, catch_up=catch_up))


class Bench:
    """A timer on a fake device; every round takes what the test says."""

    def __init__(self, warm_up_rounds: int = 0) -> None:
        self.stream = FakeStream()
        self.events = [FakeEvent(self.stream) for _ in range(RING_SIZE)]
        self.timer = RoundTimer("fake", EventClock(list(self.events)), warm_up_rounds)
        self.num_in_flight = 0
        self.rounds: list[Round] = []  # not polled
        self.num_started = 0

    def start(
        self,
        ms: float,
        tier: Tier = DEEP,
        batch_size: int = 4,
        context_tokens: int = 100,
        catch_up: CatchUp = CatchUp.NONE,
    ) -> None:
        shape = (tier, batch_size, context_tokens, catch_up)
        self.rounds.append(launched(self.num_started, *shape))
        self.timer.start(self.rounds[-1], self.num_in_flight)
        self.num_started += 1
        self.num_in_flight += 1
        self.stream.now_ms += ms

    def poll(self) -> RoundTime | None:
        self.num_in_flight = max(self.num_in_flight - 1, 0)
        found = self.timer.poll(self.rounds.pop(0))
        return None if found is None else found.period

    def warm_up(self, *uses: tuple[Tier, int]) -> None:
        """Uses up the first use of each, lets the last tier settle; no round is left in flight."""
        for tier, batch_size in uses or ((DEEP, 4),):
            for _ in range(SETTLING_ROUNDS):
                self.start(1.0, tier, batch_size)
                self.poll()
        self.timer.interrupt()

    def overlapped(self, periods: list[float]) -> list[float]:
        """Runs rounds as the overlap schedule does; returns the periods told."""
        told = []
        self.start(periods[0])
        for ms in periods[1:]:
            self.start(ms)
            told.append(self.poll())
        return [time.ms for time in told if time]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_the_first_rounds_of_a_process_are_not_timed() -> None:
    """The host's own request before it is ready, at another batch size than the first users'."""
    bench = Bench(WARM_UP_ROUNDS)
    told = []
    for number in range(2 * WARM_UP_ROUNDS):
        bench.start(1.0 + number, batch_size=1 if number < WARM_UP_ROUNDS / 2 else 4)
        told.append(bench.poll())
    assert next(time.ms for time in told if time) == 1.0 + WARM_UP_ROUNDS


def test_a_period_runs_from_a_head_to_the_next_and_names_its_round(bench: Bench) -> None:
    bench.warm_up((DEEP, 4), (PLAIN_TIER, 5))
    bench.start(7.5, PLAIN_TIER, 5, 700, catch_up=CatchUp.WHOLE)
    bench.start(9.0)
    assert bench.poll() is None  # the first round has none before it
    bench.start(1.0)
    assert bench.poll() == RoundTime(Plan(PLAIN_TIER, catch_up=CatchUp.WHOLE), 5, 700, 7.5)


@settings(deadline=None)
@given(st.lists(st.floats(0.5, 50), min_size=3, max_size=3 * RING_SIZE))
def test_every_round_but_those_in_flight_is_told_once_in_order(periods: list[float]) -> None:
    bench = Bench()
    bench.warm_up()
    assert bench.overlapped(periods) == pytest.approx(periods[:-2])


def test_without_overlap_periods_are_told_too(bench: Bench) -> None:
    bench.warm_up()
    told = []
    for ms in (3.0, 4.0, 5.0):
        bench.start(ms)
        told.append(bench.poll())
    assert [time.ms for time in told if time] == [3.0, 4.0]


def test_a_known_tier_is_timed_now_and_then(bench: Bench) -> None:
    told = []
    for idx in range(4 * ALL_TIMED_USES):
        bench.start(1.0 + idx)
        told.append(bench.poll())
    times = [time for time in told if time]
    assert {time.ms for time in times} <= {1.0 + idx for idx in range(len(told))}, "one round each"
    assert sum(time.num_rounds for time in times) == pytest.approx(len(told), rel=0.03)
    assert bench.stream.num_marks < 0.6 * len(told)
    assert {time.num_rounds for time in times[ALL_TIMED_USES:]} == {SAMPLE_EVERY}


@pytest.mark.parametrize("period", [4, 5, 7, 8, 15, 16, 32])
def test_what_comes_every_few_rounds_is_sampled_as_often_as_the_rest(period: int) -> None:
    sampling = Sampling(warm_up_rounds=0)
    for _ in range(ALL_TIMED_USES):
        sampling.stands_for(DEEP, 4)
    for phase in range(period):
        hits = [sampling.stands_for(DEEP, 4) > 0 for _ in range(499 * period)][phase::period]
        assert sum(hits) / len(hits) == pytest.approx(1 / SAMPLE_EVERY, rel=0.02)


def known(*tiers: Tier) -> Sampling:
    """Returns a sampling that knows ``tiers`` well at batch 4; the last one ran last."""
    sampling = Sampling(warm_up_rounds=0)
    for tier in tiers:
        for _ in range(ALL_TIMED_USES + VISIT_ROUNDS):
            sampling.stands_for(tier, 4)
    return sampling


@pytest.mark.parametrize("num_before", range(SAMPLE_EVERY))
def test_the_first_rounds_once_a_tier_has_settled_are_timed_and_stand_for_themselves(
    num_before: int,
) -> None:
    sampling = known(DEEP, PLAIN_TIER)
    for _ in range(num_before):
        sampling.stands_for(PLAIN_TIER, 4)
    for tier in (DEEP, PLAIN_TIER):  # a look and the way back
        told = [sampling.stands_for(tier, 4) for _ in range(SETTLING_ROUNDS + VISIT_ROUNDS)]
        assert told == [0] * SETTLING_ROUNDS + [1] * VISIT_ROUNDS


def test_no_round_is_timed_where_the_tier_keeps_changing() -> None:
    sampling = known(DEEP, PLAIN_TIER)
    assert {sampling.stands_for(tier, 4) for tier in (DEEP, PLAIN_TIER) * 50} == {0}


def test_another_batch_size_is_no_other_tier() -> None:
    sampling = known(DEEP)
    for _ in range(ALL_TIMED_USES):
        sampling.stands_for(DEEP, 5)
    told = [sampling.stands_for(DEEP, 4 + idx % 2) for idx in range(500)]
    assert sum(stands_for > 0 for stands_for in told) == pytest.approx(100, rel=0.02)


@pytest.mark.parametrize("num_rounds", [4, 7, 12, 40])
def test_times_stand_for_all_settled_rounds_however_often_the_tier_changes(num_rounds: int) -> None:
    sampling = known(DEEP, PLAIN_TIER)
    tiers = ((DEEP,) * num_rounds + (PLAIN_TIER,) * num_rounds) * 499
    told = sum(sampling.stands_for(tier, 4) for tier in tiers)
    num_settled = len(tiers) * (num_rounds - SETTLING_ROUNDS) / num_rounds
    assert told == pytest.approx(num_settled, rel=0.02)


def test_a_first_use_is_left_out_after_another_tier_too() -> None:
    sampling = known(DEEP)
    for size in range(5, 5 + SETTLING_ROUNDS):
        sampling.stands_for(PLAIN_TIER, size)
    assert [sampling.stands_for(PLAIN_TIER, 4) for _ in range(3)] == [0, 1, 1]


def test_a_first_use_of_tier_and_batch_size_is_left_out(bench: Bench) -> None:
    bench.warm_up((DEEP, 4))
    bench.start(3.0)
    bench.start(100.0, DEEP, 5)
    bench.poll()
    bench.start(4.0, DEEP, 5)
    assert bench.poll().ms == 3.0
    bench.start(5.0)
    assert bench.poll() is None  # the first use: 100 ms
    bench.start(6.0)
    assert bench.poll().ms == 4.0


def test_an_interrupt_drops_the_period_it_falls_into_and_no_other(bench: Bench) -> None:
    bench.warm_up()
    told = []
    bench.start(1.0)
    for ms in (2.0, 3.0, 4.0, 5.0, 6.0):
        if ms == 4.0:
            bench.timer.interrupt()  # an extend between the rounds of 3 and 4 ms
            bench.stream.now_ms += 80.0
        bench.start(ms)
        told.append(bench.poll())
    assert [time.ms for time in told if time] == [1.0, 2.0, 4.0]


def join(
    bench: Bench, before: Sequence[str], after: Sequence[str], num_extends: int = 1
) -> RoundTime | None:
    """Runs a round of ``before`` and, behind extends of 80 ms, one of ``after``."""
    bench.warm_up((DEEP, len(before)))
    bench.start(1.0, batch_size=len(before))
    bench.start(2.0, batch_size=len(before))
    bench.poll()
    for _ in range(num_extends):
        bench.timer.interrupt()
        bench.stream.now_ms += 80.0
    bench.start(3.0, batch_size=len(after))
    for each, requests in zip(bench.rounds, (before, after), strict=True):
        each.batch = each.batch._replace(requests=tuple(requests))
    bench.poll()
    return bench.poll()


def test_a_period_with_an_extend_says_who_was_let_in(bench: Bench) -> None:
    period = join(bench, "abc", "acde")
    assert period is not None
    assert (period.ms, period.num_joined, period.batch_size) == (82.0, 2, 3)


@pytest.mark.parametrize(("after", "num_extends"), [("de", 1), ("ab", 1), ("abd", 2)])
def test_none_is_told_where_more_than_an_extend_may_lie_in_it(
    bench: Bench, after: str, num_extends: int
) -> None:
    """Nobody went on, so the scheduler may have waited; nobody came; a long prompt had parts."""
    assert join(bench, "abc", after, num_extends) is None


def test_an_idle_gap_drops_the_period(bench: Bench) -> None:
    bench.warm_up()
    bench.start(1.0)
    bench.start(2.0)
    bench.poll()
    bench.poll()  # both results are in: nothing is in flight
    bench.stream.now_ms += 5_000.0
    told = bench.overlapped([3.0, 4.0, 5.0])
    assert told == [3.0]


def test_results_that_wait_to_be_polled_are_not_in_flight(bench: Bench) -> None:
    bench.warm_up()
    bench.start(1.0)
    bench.start(2.0)
    bench.num_in_flight = 0  # both results are in, neither is polled: the scheduler went idle
    bench.stream.now_ms += 5_000.0
    bench.start(3.0)
    bench.start(4.0)
    told = [bench.poll() for _ in range(4)]
    assert [time.ms for time in told if time] == [1.0, 3.0]


def test_a_clock_that_was_set_back_drops_its_period(bench: Bench) -> None:
    bench.warm_up()
    assert bench.overlapped([3.0, -5.0, 0.0, 4.0, 2.0, 1.0]) == [3.0, 4.0]


def test_an_incomplete_event_drops_its_period_without_waiting(bench: Bench) -> None:
    bench.warm_up()
    bench.start(1.0)
    bench.start(2.0)
    bench.poll()
    bench.start(3.0)
    begin = bench.events[SETTLING_ROUNDS + 1]  # of 2 ms; before it the warm-up's and that of 1 ms
    begin.is_complete = False
    assert bench.poll() is None
    begin.is_complete = True
    bench.start(4.0)
    assert bench.poll().ms == 2.0
    assert bench.stream.num_waits == 0


def test_a_mark_written_over_is_never_read(bench: Bench) -> None:
    bench.warm_up()
    for _ in range(RING_SIZE + 3):
        bench.start(1.0)
    told = [bench.poll() for _ in range(RING_SIZE + 3)]
    assert all(time is None or time.ms == 1.0 for time in told)
    # As many as have both marks left in the ring.
    assert sum(time is not None for time in told) == RING_SIZE - 1


def test_a_round_whose_result_never_comes_ends_the_period_before_it_and_has_its_own(
    bench: Bench,
) -> None:
    bench.warm_up()
    for ms in (1.0, 2.0, 3.0, 4.0):
        bench.start(ms)
    bench.poll()
    del bench.rounds[0]  # lost: that of 2 ms, whose head ends the round of 1 ms
    told = [bench.poll() for _ in range(2)]
    assert [time.ms for time in told if time] == [2.0, 3.0]


def test_events_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    class Module:
        @staticmethod
        def Event(enable_timing: bool) -> FakeEvent:
            assert enable_timing
            made.append(FakeEvent(FakeStream()))
            return made[-1]

    torch = SimpleNamespace(get_device_module=lambda device: Module)
    monkeypatch.setitem(sys.modules, "torch", torch)
    timer = RoundTimer("cuda:0", warm_up_rounds=0)
    for number in range(3 * RING_SIZE):
        one = launched(number)
        timer.start(one, num_in_flight=0)
        timer.poll(one)
    assert len(made) == RING_SIZE


def test_the_cpu_reads_the_monotonic_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([10.0, 10.25, 10.75])  # the first use is not timed
    monkeypatch.setattr(time, "perf_counter", lambda: next(readings))
    timer = RoundTimer("cpu", warm_up_rounds=0)
    assert isinstance(timing.clock_of("cpu"), CpuClock)
    told = []
    for number in range(4):
        one = launched(number)
        timer.start(one, num_in_flight=0)
        found = timer.poll(one)
        told.append(found and found.period)
    assert told == [
        None,
        None,  # the first use
        RoundTime(Plan(DEEP), 4, 0, 250.0),
        RoundTime(Plan(DEEP), 4, 0, 500.0),
    ]
