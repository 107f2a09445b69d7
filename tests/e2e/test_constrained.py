"""Under a grammar every answer is valid and the one of no speculation, at another tier every round.

xgrammar, overlap schedule on, EAGLE and EAGLE-3: schemas and regexes beside each other, beside
free requests, and alone. The servers and their questions are shared with test_sampling.py.
"""

from typing import Any

import pytest

from tests.e2e.fleet import Fleet
from tests.e2e.grammars import GRAMMARS, PLAIN, Grammar
from tests.e2e.sampling import parameter_answers
from tests.e2e.server import Launch
from tests.e2e.test_sampling import SWITCHING
from tests.e2e.traffic import check_identical

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.parametrize("launch", SWITCHING, ids=str, scope="module"),
]


@pytest.mark.parametrize("grammar", GRAMMARS, ids=lambda grammar: grammar.name)
def test_every_constrained_answer_is_valid(fleet: Fleet, launch: Launch, grammar: Grammar) -> None:
    replies: dict[str, Any] = fleet.compare(launch, parameter_answers)[0]["grammars"]
    for name in (f"batch {grammar.name}", f"serial {grammar.name}"):
        assert grammar.holds(replies[name]), replies[name]


def test_constrained_answers_equal_no_speculation(fleet: Fleet, launch: Launch) -> None:
    got, expected = fleet.compare(launch, parameter_answers)
    reference = expected["grammars"]
    check_identical(got["grammars"], reference)
    constrained = {text for name, text in reference.items() if not name.startswith(PLAIN)}
    assert len(constrained) > len(GRAMMARS), "answers hardly depend on the prompt"


def test_a_grammar_masks_what_would_be_said_without_it(fleet: Fleet, launch: Launch) -> None:
    """A free answer is none of the valid ones: the checks can fail."""
    replies = fleet.ask_once(launch, parameter_answers)["grammars"]
    free = [text for name, text in replies.items() if name.startswith(PLAIN)]
    assert free
    for grammar in GRAMMARS:
        assert not any(holds(grammar, text) for text in free), grammar.name


def holds(grammar: Grammar, text: str) -> bool:
    try:
        return grammar.holds(text)
    except ValueError:  # no JSON
        return False
