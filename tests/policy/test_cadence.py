"""When a decision is due: by rounds, by who is in the batch, by what is accepted."""

import pytest

from sglang_adaptive_spec.policy.cadence import MOST_AT_ONCE, OVERDUE_ROUNDS, Cadence
from sglang_adaptive_spec.policy.settings import DEFAULTS

SETTINGS = DEFAULTS.cadence
ROUND_MS = 20.0


def decided(num_steady: int = 0, size: int = 64, round_ms: float = ROUND_MS) -> Cadence:
    """Returns one that has decided about a batch of ``size``."""
    cadence = Cadence(SETTINGS)
    cadence.note_batch(size)
    for is_steady in (False, *[True] * num_steady):
        cadence.decided(is_steady, round_ms)
    return cadence


def rounds_until_due(cadence: Cadence) -> int:
    """Returns the rounds until a result is decided about."""
    num_rounds = 0
    while not cadence.is_due_at_result(0):
        cadence.count_rounds(1)
        num_rounds += 1
    return num_rounds


@pytest.mark.parametrize(
    ("num_steady", "num_rounds"),
    [(0, 4), (1, 8), (2, 16), (9, 32)],
)
def test_decisions_that_change_nothing_come_after_twice_as_many_rounds_each(
    num_steady: int, num_rounds: int
) -> None:
    assert rounds_until_due(decided(num_steady)) == num_rounds


@pytest.mark.parametrize(("round_ms", "num_rounds"), [(20.0, 4), (5.0, 8), (2.0, 20), (0.5, 32)])
def test_short_rounds_want_decisions_farther_apart(round_ms: float, num_rounds: int) -> None:
    assert rounds_until_due(decided(round_ms=round_ms)) == num_rounds
    cadence = decided(9, size=8, round_ms=round_ms)
    for _ in range(4):  # as if every round brought another request
        cadence.note_batch(8)
        assert not cadence.is_due_at_result(0)
    assert rounds_until_due(cadence) == num_rounds


def test_a_result_is_waited_for_unless_it_is_overdue() -> None:
    cadence = decided()
    cadence.count_rounds(SETTINGS.decision_rounds - 1)  # with the one about to launch it is due
    assert cadence.is_due_at_launch(has_batch_changed=True)
    for _ in range(OVERDUE_ROUNDS):
        assert not cadence.is_due_at_launch(has_batch_changed=False)
        cadence.count_rounds(1)
    assert cadence.is_due_at_launch(has_batch_changed=False)


@pytest.mark.parametrize(
    ("size", "other", "num_rounds"),
    [(8, 7, 24), (8, 6, 2), (2, 1, 2), (64, 55, 2), (64, 80, 2), (64, 128, 2), (64, 129, 0)],
)
def test_another_size_is_decided_about_once_it_has_lasted_and_a_far_larger_one_at_once(
    size: int, other: int, num_rounds: int
) -> None:
    cadence = decided(3, size)  # 32 rounds
    cadence.note_batch(other)
    assert cadence.is_due_at_launch(has_batch_changed=True) == (num_rounds == 0)
    assert cadence.rounds_at_once == min(max(num_rounds, 1), MOST_AT_ONCE)
    assert rounds_until_due(cadence) == num_rounds


@pytest.mark.parametrize("size", [2, 4, 8, 32])
def test_a_place_that_is_taken_again_at_once_is_one_change(size: int) -> None:
    dips, replaced = decided(3, size), decided(3, size)
    for _ in range(2):
        dips.note_batch(size - 1)
        dips.count_rounds(1)
        dips.note_batch(size)
        replaced.note_batch(size)
        replaced.count_rounds(1)
        assert dips.rounds_at_once == replaced.rounds_at_once
    assert rounds_until_due(dips) == pytest.approx(rounds_until_due(replaced), abs=2)


@pytest.mark.parametrize("size", [64, 8, 1])
def test_a_batch_whose_requests_change_keeps_its_interval(size: int) -> None:
    cadence = decided(2, size)  # 16 rounds
    cadence.note_batch(size)
    cadence.decided(True, ROUND_MS)
    assert rounds_until_due(cadence) == 32


@pytest.mark.parametrize(("size", "num_changes"), [(1, 2), (4, 2), (16, 2), (32, 4)])
def test_one_request_of_a_few_is_no_reason_to_decide_at_once(size: int, num_changes: int) -> None:
    cadence = decided(3, size)
    cadence.count_rounds(SETTINGS.decision_rounds)
    for _ in range(num_changes - 1):
        cadence.note_batch(size)
        assert not cadence.is_due_at_result(0)
    cadence.note_batch(size)
    assert cadence.is_due_at_result(0)


@pytest.mark.parametrize("num_steady", [0, 2, 9])
def test_a_large_batch_is_decided_about_when_an_eighth_of_it_has_changed(num_steady: int) -> None:
    cadence = decided(num_steady)
    cadence.count_rounds(SETTINGS.decision_rounds - 1)
    for _ in range(7):
        cadence.note_batch(64)
        assert not cadence.is_due_at_result(0)
    cadence.note_batch(64)
    cadence.count_rounds(1)
    assert cadence.is_due_at_result(0)


def test_a_change_of_acceptance_is_due_until_it_was_decided_about() -> None:
    cadence = decided()
    assert cadence.is_due_at_result(num_changes=1)
    assert cadence.has_acceptance_changed(num_changes=1)
    assert not cadence.has_acceptance_changed(num_changes=1)
    assert not cadence.is_due_at_result(num_changes=1)


def test_new_requests_are_waited_for_and_their_results_taken_one_by_one() -> None:
    cadence = decided(num_steady=3)
    cadence.start_afresh(64)
    assert (cadence.rounds_at_once, rounds_until_due(cadence)) == (1, 1 + 1)  # one is to launch
    cadence.note_batch(2)
    cadence.start_afresh(2)
    assert rounds_until_due(cadence) == SETTINGS.fresh_rounds + 1  # though 2 are not 64
    assert cadence.rounds_at_once == 1
    cadence.decided(True, ROUND_MS)
    assert cadence.rounds_at_once == SETTINGS.decision_rounds  # not twice the last wait


def test_who_is_never_asked_takes_results_in_groups() -> None:
    assert Cadence(SETTINGS).rounds_at_once == SETTINGS.decision_rounds


def test_no_more_rounds_are_taken_together_than_are_left_until_a_decision() -> None:
    cadence = decided(num_steady=3)
    assert cadence.rounds_at_once == MOST_AT_ONCE < SETTINGS.max_decision_rounds
    cadence.count_rounds(SETTINGS.max_decision_rounds - 3)
    assert cadence.rounds_at_once == 3
    cadence.count_rounds(5)
    assert cadence.rounds_at_once == 1
