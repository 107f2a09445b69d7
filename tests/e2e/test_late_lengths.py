"""Drafts that start before their requests' lengths are known: the same text, the same drafts.

On a GPU FlashInfer's drafts do (host/attention/lengths.py). Here a plugin makes the CPU host
serve so: its scheduler knows no lengths, and every verify fetches those of its batch. The tier
changes in every round; in the last case a batch visits zero steps and must draft as before.
"""

from dataclasses import replace

import pytest

from tests.e2e.fleet import Fleet
from tests.e2e.launches import forced
from tests.e2e.server import Launch
from tests.e2e.test_zero_steps import both_arms, reference_answers, visiting
from tests.e2e.traffic import answers, check_identical, check_idle_and_whole
from tests.e2e.visits import check_as_if_never_left, check_visit, compare

MIN_ROUNDS = 100
MIN_SHARE = 0.9  # of rounds: a verify right behind a prefill may know its lengths


def late(launch: Launch) -> Launch:
    """The same, without lengths."""
    plugins = (*launch.plugins, "late_lengths")
    return replace(launch, name=f"{launch.name}-late", plugins=plugins)


FORCED = [
    late(forced("eagle3", host="0.5.21", overlap=True)),
    late(forced("eagle", host="0.5.23", overlap=True)),
]

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("launch", FORCED, ids=str, scope="module")
def test_every_greedy_answer_equals_no_speculation(fleet: Fleet, launch: Launch) -> None:
    check_identical(*fleet.compare(launch, answers))


@pytest.mark.parametrize("launch", FORCED, ids=str, scope="module")
def test_verifies_fetch_their_lengths_and_nothing_is_left_behind(
    fleet: Fleet, launch: Launch
) -> None:
    fleet.ask_once(launch, answers)
    server = fleet.use(launch)
    check_idle_and_whole(server)
    state = server.internal_state()
    num_rounds = sum(state["adaptive_spec"]["rounds"].values())
    assert num_rounds > MIN_ROUNDS
    assert MIN_SHARE * num_rounds < state["e2e_fetched"] <= num_rounds


def test_a_visit_to_zero_steps_leaves_the_draft_as_it_was(fleet: Fleet) -> None:
    launch = late(visiting("eagle3", "0.5.21"))
    reference = fleet.ask_once(launch.reference(), reference_answers)["ids"]
    visit, stay = both_arms(fleet.use(launch), reference)
    for rounds in visit.rounds:
        check_visit(rounds)
    check_as_if_never_left(compare(visit, stay))
