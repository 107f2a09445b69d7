"""Rounds know their requests and their context where the host tells neither by id nor by length."""

from dataclasses import replace

import pytest

from tests.e2e.fleet import Fleet
from tests.e2e.launches import forced
from tests.e2e.server import OURS, Launch
from tests.e2e.traffic import answers, check_identical, check_idle_and_whole


def hidden_rows(base: str, host: str) -> Launch:
    """The tiny models under the plugin that hides what tells rows apart."""
    launch = forced(base, host=host, overlap=True)
    return replace(launch, name=f"{base}-hidden-rows", plugins=(OURS, "hidden_rows"))


CASES = [hidden_rows("eagle", "0.5.20"), hidden_rows("eagle3", "0.5.23")]
MIN_ROUNDS = 100

pytestmark = [pytest.mark.e2e, pytest.mark.parametrize("launch", CASES, ids=str, scope="module")]


def test_requests_of_one_id_are_told_apart(fleet: Fleet, launch: Launch) -> None:
    check_identical(*fleet.compare(launch, answers))
    state = fleet.use(launch).internal_state()
    assert min(state["adaptive_spec"]["rounds"].values()) > 0
    assert state["adaptive_spec"]["fallbacks"] == {"policy_error": 0, "feedback_mismatch": 0}


def test_the_policy_is_told_the_context_but_for_rounds_since_it_was_read(
    fleet: Fleet, launch: Launch
) -> None:
    fleet.ask_once(launch, answers)
    check_idle_and_whole(fleet.use(launch))
    contexts = fleet.use(launch).internal_state()["e2e_contexts"]
    assert len(contexts) >= MIN_ROUNDS
    wrong = [(told, true) for told, true, added in contexts if not 0 <= true - told <= added]
    assert wrong == []
    assert any(told for told, _, _ in contexts)
