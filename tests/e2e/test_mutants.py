"""The identity check can fail: planted mistakes in the switching are found by the text alone.

Mistakes in what the draft catches up on leave the text alone; test_zero_steps.py finds those.
"""

import pytest

from tests.e2e.fleet import Fleet
from tests.e2e.launches import by_confidence, forced, packed
from tests.e2e.server import Launch
from tests.e2e.traffic import answers, check_identical

CASES = [
    forced("eagle", "shifted_kv_slot", overlap=True),
    forced("eagle", "stale_width", overlap=True),
    forced("eagle", "stale_chain_buffers", overlap=True),
    forced("standalone", "shifted_kv_slot", overlap=True),
    forced("standalone", "stale_width", overlap=True),
    forced("ngram", "stale_width", overlap=True),
    forced("ngram", "first_token_again", overlap=True),
    packed("eagle3", "count_unverified"),
    packed("eagle3", "leave_slots_packed"),
    packed("eagle3", "pack_neighbours_root"),
    by_confidence("eagle3", "cap_by_neighbours"),
    by_confidence("eagle3", "choose_alone", told="askew"),
]

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.parametrize("launch", CASES, ids=str, scope="module"),
]


def test_a_planted_mistake_is_found(fleet: Fleet, launch: Launch) -> None:
    reference = fleet.ask_once(launch.reference(), answers)
    server = fleet.use(launch)  # ready: the mistake is not one that a start would show
    found: AssertionError | OSError | None = None
    try:
        check_identical(answers(server), reference)
    except (AssertionError, OSError) as error:  # other text, or no answer: the round failed
        found = error
    finally:
        fleet.end(launch)
    assert found is not None, f"{launch} gave the text of no speculation"
