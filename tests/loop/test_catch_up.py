"""What the draft has not seen: when it is due."""

from collections.abc import Hashable, Sequence
from copy import deepcopy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_adaptive_spec.loop.catch_up import (
    INTERVALS_FOR_ONE,
    MOST_KV_ALONE,
    CatchUpSchedule,
)
from sglang_adaptive_spec.loop.draft_prefixes import DraftPrefixes
from sglang_adaptive_spec.tiers import CATCH_UP_ROUNDS, CatchUp, DecodeBatch


def added(schedule: CatchUpSchedule, requests: Sequence[Hashable], num_decodes: int = 1) -> bool:
    """Adds a zero-step round; returns whether booking it would catch up."""
    batch = DecodeBatch(len(requests), tuple(requests))
    is_due = booked(deepcopy(schedule), batch, num_decodes=num_decodes)[0] is not CatchUp.NONE
    schedule.add_round(requests, num_decodes)
    return is_due


def booked(
    schedule: CatchUpSchedule, batch: DecodeBatch, is_last: bool = False, num_decodes: int = 1
) -> tuple[CatchUp, list[int]]:
    """Books a zero-step round of one rank alone."""
    return schedule.book(batch, schedule.lag(batch), is_last, num_decodes)


def test_a_catch_up_is_due_when_the_oldest_debt_reaches_the_interval() -> None:
    schedule = CatchUpSchedule(interval=3)
    assert not added(schedule, ["a"])
    assert not added(schedule, ["a", "b"])
    assert added(schedule, ["a", "b"])
    assert schedule.debts(["b", "a", "c"]) == [2, 3, 0]


def test_settling_leaves_nobody_behind() -> None:
    schedule = CatchUpSchedule(interval=3)
    added(schedule, ["a", "b"])
    assert schedule.is_behind(["x", "b"])
    schedule.settle()
    assert not schedule.is_behind(["a", "b"])
    assert schedule.debts(["a", "b"]) == [0, 0]


def test_a_request_that_skips_a_round_is_forgotten() -> None:
    """It left, or is prefilled anew: what was kept of it is not its newest tokens any more."""
    schedule = CatchUpSchedule(interval=3)
    added(schedule, ["a", "b"])
    added(schedule, ["b"])
    assert not schedule.is_behind(["a"])
    added(schedule, ["a", "b"])
    assert schedule.debts(["a", "b"]) == [1, 3]


def test_a_request_that_is_prefilled_owes_nothing_and_the_others_still_do() -> None:
    """The host may give a row away again under the same number (/flush_cache, up to 0.5.22)."""
    schedule = CatchUpSchedule(interval=4)
    added(schedule, ["a", "b"])
    added(schedule, ["a", "b"])
    schedule.forget(["a", "x"])
    assert schedule.debts(["a", "b"]) == [0, 2]
    assert not schedule.is_behind(["a"])
    added(schedule, ["a", "b"])
    assert schedule.debts(["a", "b"]) == [1, 3]
    assert added(schedule, ["a", "b"])  # b's debt has reached the interval


batches = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=8, unique=True), min_size=1)


@given(batches, st.integers(1, 5))
def test_no_debt_ever_exceeds_the_interval(rounds: list[list[int]], interval: int) -> None:
    schedule = CatchUpSchedule(interval)
    for requests in rounds:
        is_due = added(schedule, requests)
        debts = schedule.debts(requests)
        assert min(debts) >= 1
        assert max(debts) <= interval
        assert is_due == (max(debts) == interval)
        if is_due:
            schedule.settle()


def test_only_the_first_round_of_a_batch_may_have_begun_level() -> None:
    schedule = CatchUpSchedule(interval=9)
    level = []
    for requests in (["a"], ["a"], ["a", "b"], ["a", "b"]):
        added(schedule, requests)
        assert schedule.may_have_been_level >= (1 in schedule.debts(requests))
        level.append(schedule.may_have_been_level)
    assert level == [True, False, True, False]


def test_a_run_counts_as_its_decodes_and_leaves_room_for_another() -> None:
    schedule = CatchUpSchedule(interval=15)
    assert schedule.room(["a"]) == 15
    assert not added(schedule, ["a"], 7)
    assert (schedule.debts(["a"]), schedule.room(["a"])) == ([7], 8)
    assert not added(schedule, ["a"], 4)
    assert schedule.room(["a", "b"]) == 4  # the batch has changed
    assert added(schedule, ["a", "b"], 4)
    assert schedule.debts(["a", "b"]) == [15, 4]
    schedule.settle()
    assert added(schedule, ["a", "b"], 8)  # no second one fits


@given(batches, st.sampled_from([1, 7, 15]), st.data())
def test_runs_never_exceed_the_interval_either(
    rounds: list[list[int]], interval: int, data: st.DataObject
) -> None:
    schedule = CatchUpSchedule(interval)
    for requests in rounds:
        room = schedule.room(requests)
        assert room >= 1
        length = data.draw(st.sampled_from([each for each in (1, 2, 4, 8) if each <= room]))
        is_due = added(schedule, requests, length)
        debts = schedule.debts(requests)
        assert length <= min(debts) <= max(debts) <= interval
        assert is_due == (max(debts) + length > interval)
        if is_due:
            schedule.settle()


# -- what the controller is told, and does --


def decoded(schedule: CatchUpSchedule, *requests: str, may_catch_up: bool = True) -> list[int]:
    """Books a zero-step round of requests with 8 tokens each; returns their debts."""
    batch = DecodeBatch(len(requests), requests, lengths=lambda: (8,) * len(requests))
    return schedule.book(batch, schedule.lag(batch), False, 1, may_catch_up)[1]


def behind(*requests: str) -> CatchUpSchedule:
    """A schedule after a round after which the draft lacks a token of ``requests``."""
    schedule = CatchUpSchedule(8, DraftPrefixes())
    decoded(schedule, *requests)
    return schedule


def test_a_round_is_told_what_the_draft_lacks_where_that_may_matter() -> None:
    schedule = CatchUpSchedule(3, DraftPrefixes())
    assert decoded(schedule, "a") == [1]
    assert decoded(schedule, "a") == []  # nobody can have begun level
    assert decoded(schedule, "a") == [3]  # it catches up
    assert decoded(schedule, "a") == [1]


def test_a_batch_too_large_to_keep_is_never_behind() -> None:
    schedule = CatchUpSchedule(3, DraftPrefixes(), max_rows=1)
    assert [decoded(schedule, "a", "b") for _ in range(4)] == [[1, 1]] * 4
    assert not schedule.is_behind(("a", "b"))
    assert schedule.prefixes is not None
    assert schedule.prefixes.end("a", 20, 12, 4) == 8  # there is a gap


def test_decode_rows_beside_a_prefill_are_caught_up_before() -> None:
    assert behind("b", "c").before_extend(("a",), ("b", "c"), True) == [1, 1]


@pytest.mark.parametrize(
    ("owing", "may_catch_up", "has_gap"),
    [
        ("gone", True, False),
        ("a", True, False),  # a name that came back: it is prefilled anew
        ("b", False, True),  # the gap stays
    ],
)
def test_no_other_rows_beside_a_prefill_are(owing: str, may_catch_up: bool, has_gap: bool) -> None:
    schedule = behind(owing)
    assert schedule.before_extend(("a",), ("b", "c"), may_catch_up) == []
    assert not schedule.is_behind(("a", "b", "c"))
    assert schedule.prefixes is not None
    schedule.prefixes.catch_up((owing,), (1,), width=8)  # what comes later closes no gap
    assert schedule.prefixes.end(owing, 20, 12, 4) == (8 if has_gap else 20)


# -- catch-ups that write KV alone --


def kinds(
    schedule: CatchUpSchedule, num_rounds: int, requests: str = "a", **ending: bool
) -> list[CatchUp]:
    """How so many rounds catch up, one decode each; the last one ends as told."""
    batch = DecodeBatch(len(requests), tuple(requests), lengths=lambda: [9] * len(requests))
    found = [booked(schedule, batch)[0] for _ in range(num_rounds - bool(ending))]
    if ending:
        found.append(booked(schedule, batch, **ending)[0])
    return found


def stayed(num_for: int, interval: int = 4) -> CatchUpSchedule:
    """A schedule whose draft is level, after a stay long enough for so many of KV alone."""
    schedule = CatchUpSchedule(interval, DraftPrefixes(), can_write_kv_alone=True)
    kinds(schedule, num_for * INTERVALS_FOR_ONE * interval, is_last=True)
    return schedule


def due(found: list[CatchUp]) -> dict[int, CatchUp]:
    """The rounds that catch up, by their number."""
    return {number: kind for number, kind in enumerate(found, 1) if kind is not CatchUp.NONE}


def test_the_longer_a_stay_the_more_catch_ups_write_kv_alone() -> None:
    kv, whole = CatchUp.KV, CatchUp.WHOLE  # one of KV leaves a token to be made up for
    assert due(kinds(stayed(0), 8)) == {4: whole, 8: whole}
    assert due(kinds(stayed(1), 14)) == {4: kv, 7: whole, 11: kv, 14: whole}
    assert due(kinds(stayed(2), 20)) == {4: kv, 7: kv, 10: whole, 14: kv, 17: kv, 20: whole}
    longest = kinds(stayed(2 * MOST_KV_ALONE), 40)
    assert list(due(longest).values())[: MOST_KV_ALONE + 1] == [kv] * MOST_KV_ALONE + [whole]


def test_drafts_end_a_stay_and_looks_do_not() -> None:
    schedule = stayed(1)
    kinds(schedule, 1, is_last=True)
    assert due(kinds(schedule, 4)) == {4: CatchUp.KV}
    schedule.end_stay()
    assert kinds(schedule, 1, is_last=True) == [CatchUp.WHOLE]
    assert due(kinds(schedule, 4)) == {4: CatchUp.WHOLE}


def test_whoever_is_about_to_draft_is_caught_up_whole() -> None:
    schedule = stayed(1)
    assert due(kinds(schedule, 4)) == {4: CatchUp.KV}
    assert booked(schedule, DecodeBatch(1, ("a",)), is_last=True) == (CatchUp.WHOLE, [2])
    assert not schedule.is_behind("a")


def test_after_kv_alone_nobody_is_level_but_who_joins() -> None:
    schedule = stayed(1)
    assert due(kinds(schedule, 4, "ab")) == {4: CatchUp.KV}
    assert schedule.is_behind("ab")
    assert schedule.room("ab") == 3
    assert booked(schedule, DecodeBatch(3, tuple("abc"))) == (CatchUp.NONE, [2, 2, 1])


def test_what_kv_alone_wrote_may_be_built_on() -> None:
    schedule = stayed(1)
    assert due(kinds(schedule, 4)) == {4: CatchUp.KV}
    assert schedule.prefixes.end("a", 13, 4, 0) == 13
    kinds(schedule, 2)  # these are missing again, from the length before the first of them
    assert schedule.prefixes.end("a", 15, 6, 0) == 9


def test_a_window_of_one_token_has_no_room_for_what_kv_alone_leaves() -> None:
    assert set(kinds(stayed(3, interval=1), 5)) == {CatchUp.WHOLE}


def test_a_draft_that_cannot_write_kv_alone_is_caught_up_whole() -> None:
    schedule = CatchUpSchedule(interval=4)
    kinds(schedule, 2 * INTERVALS_FOR_ONE * 4)
    assert set(due(kinds(schedule, 12)).values()) == {CatchUp.WHOLE}


@pytest.mark.parametrize("num_before", [0, 1])
def test_decodes_that_did_not_run_are_no_debt(num_before: int) -> None:
    """In the first round of a batch, and in a later one."""
    schedule, served = CatchUpSchedule(), DecodeBatch(2, ("a", "b"))
    for _ in range(num_before):
        schedule.book(served, schedule.lag(served), False, 2)
    schedule.book(served, schedule.lag(served), False, 4)
    schedule.take_back(3, is_caught_up=False)
    left = 2 * num_before + 1
    assert schedule.debts(served.requests) == [left, left]
    assert schedule.room(served.requests) == CATCH_UP_ROUNDS - left


def test_a_catch_up_of_fewer_decodes_leaves_as_much() -> None:
    """Whole, or KV alone once the stay has lasted."""
    schedule, served = CatchUpSchedule(can_write_kv_alone=True), DecodeBatch(2, ("a", "b"))
    left = {}
    for _ in range(INTERVALS_FOR_ONE):
        kind, debts = schedule.book(served, schedule.lag(served), False, 8)
        assert min(debts) >= 8
        schedule.take_back(5, is_caught_up=True)
        left[kind] = schedule.debts(served.requests)
    assert left == {CatchUp.WHOLE: [0, 0]}
    for _ in range(5 * INTERVALS_FOR_ONE):
        kind, _ = schedule.book(served, schedule.lag(served), False, 8)
        schedule.take_back(5, is_caught_up=True)
        left[kind] = schedule.debts(served.requests)
    assert left == {CatchUp.WHOLE: [0, 0], CatchUp.KV: [1, 1]}


def test_a_batch_too_large_to_keep_owes_nothing_back() -> None:
    schedule, served = CatchUpSchedule(max_rows=1), DecodeBatch(2, ("a", "b"))
    schedule.book(served, schedule.lag(served), False, 8)
    schedule.take_back(5, is_caught_up=False)
    assert schedule.debts(served.requests) == [0, 0]
