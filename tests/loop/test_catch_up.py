"""What the draft has not seen: when it is due."""

from hypothesis import given
from hypothesis import strategies as st

from sglang_adaptive_spec.loop.catch_up import CatchUpSchedule


def test_a_catch_up_is_due_when_the_oldest_debt_reaches_the_interval() -> None:
    schedule = CatchUpSchedule(interval=3)
    assert not schedule.add_round(["a"], is_last=False)
    assert not schedule.add_round(["a", "b"], is_last=False)
    assert schedule.add_round(["a", "b"], is_last=False)
    assert schedule.debts(["b", "a", "c"]) == [2, 3, 0]


def test_a_catch_up_is_due_before_the_draft_is_asked_again() -> None:
    schedule = CatchUpSchedule(interval=3)
    assert schedule.add_round(["a"], is_last=True)


def test_settling_leaves_nobody_behind() -> None:
    schedule = CatchUpSchedule(interval=3)
    schedule.add_round(["a", "b"], is_last=False)
    assert schedule.is_behind(["x", "b"])
    schedule.settle()
    assert not schedule.is_behind(["a", "b"])
    assert schedule.debts(["a", "b"]) == [0, 0]


def test_a_request_that_skips_a_round_is_forgotten() -> None:
    """It left, or is prefilled anew: what was kept of it is not its newest tokens any more."""
    schedule = CatchUpSchedule(interval=3)
    schedule.add_round(["a", "b"], is_last=False)
    schedule.add_round(["b"], is_last=False)
    assert not schedule.is_behind(["a"])
    schedule.add_round(["a", "b"], is_last=False)
    assert schedule.debts(["a", "b"]) == [1, 3]


def test_a_request_that_is_prefilled_owes_nothing_and_the_others_still_do() -> None:
    """The host may give a row away again under the same number (/flush_cache, up to 0.5.22)."""
    schedule = CatchUpSchedule(interval=4)
    schedule.add_round(["a", "b"], is_last=False)
    schedule.add_round(["a", "b"], is_last=False)
    schedule.forget(["a", "x"])
    assert schedule.debts(["a", "b"]) == [0, 2]
    assert not schedule.is_behind(["a"])
    schedule.add_round(["a", "b"], is_last=False)
    assert schedule.debts(["a", "b"]) == [1, 3]
    assert schedule.add_round(["a", "b"], is_last=False)  # b's debt has reached the interval


batches = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=8, unique=True), min_size=1)


@given(batches, st.integers(1, 5))
def test_no_debt_ever_exceeds_the_interval(rounds: list[list[int]], interval: int) -> None:
    schedule = CatchUpSchedule(interval)
    for requests in rounds:
        is_due = schedule.add_round(requests, is_last=False)
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
        schedule.add_round(requests, is_last=False)
        assert schedule.may_have_been_level >= (1 in schedule.debts(requests))
        level.append(schedule.may_have_been_level)
    assert level == [True, False, True, False]


def test_a_run_counts_as_its_decodes_and_leaves_room_for_another() -> None:
    schedule = CatchUpSchedule(interval=15)
    assert schedule.room(["a"]) == 15
    assert not schedule.add_round(["a"], False, num_decodes=7)
    assert (schedule.debts(["a"]), schedule.room(["a"])) == ([7], 8)
    assert not schedule.add_round(["a"], False, num_decodes=4)
    assert schedule.room(["a", "b"]) == 4  # the batch has changed
    assert schedule.add_round(["a", "b"], False, num_decodes=4)
    assert schedule.debts(["a", "b"]) == [15, 4]
    schedule.settle()
    assert schedule.add_round(["a", "b"], False, num_decodes=8)  # no second one fits


@given(batches, st.sampled_from([1, 7, 15]), st.data())
def test_runs_never_exceed_the_interval_either(
    rounds: list[list[int]], interval: int, data: st.DataObject
) -> None:
    schedule = CatchUpSchedule(interval)
    for requests in rounds:
        room = schedule.room(requests)
        assert room >= 1
        length = data.draw(st.sampled_from([each for each in (1, 2, 4, 8) if each <= room]))
        is_due = schedule.add_round(requests, False, length)
        debts = schedule.debts(requests)
        assert length <= min(debts) <= max(debts) <= interval
        assert is_due == (max(debts) + length > interval)
        if is_due:
            schedule.settle()
