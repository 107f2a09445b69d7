"""What a round that gives several tokens must not break: counts, sessions, rules for every token.

The policy is replaced by a seeded walk over all tiers, in runs of up to 8 decodes at zero steps.
Static EAGLE errs in all of it; no speculation is what is right.
"""

import pytest

from tests.e2e.asking_more import (
    FREQUENT,
    processed_answers,
    reasoning_counts,
    session_turns,
    streaming_turns,
)
from tests.e2e.fleet import Fleet
from tests.e2e.launches import MODELS, TINY, in_runs
from tests.e2e.server import Launch
from tests.e2e.traffic import check_identical, check_idle_and_whole

MORE = (
    *("--tokenizer-path", str(MODELS / "thinking"), "--reasoning-parser", "qwen3"),
    *("--enable-custom-logit-processor", "--enable-streaming-session"),
)


def asked_more(base: str, host: str, overlap: bool) -> Launch:
    """ADAPTIVE_EAGLE that walks in runs, and takes all that these tests ask for."""
    return in_runs(base, f"{base}-more", (*TINY, *MORE), host, overlap)


CASES = [
    asked_more("eagle", "0.5.21", overlap=True),
    asked_more("eagle3", "0.5.21", overlap=False),
    asked_more("eagle", "0.5.23", overlap=False),
    asked_more("eagle", "0.5.23", overlap=True),
]

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.parametrize("launch", CASES, ids=str, scope="module"),
]


def test_reasoning_tokens_are_at_most_those_of_the_answer(fleet: Fleet, launch: Launch) -> None:
    got, reference = fleet.compare(launch, reasoning_counts)
    assert got == reference
    assert all(reasoning <= completion for reasoning, completion in got.values())
    assert any(0 < reasoning < completion for reasoning, completion in got.values())


@pytest.mark.parametrize("question", [session_turns, streaming_turns])
def test_the_next_turn_of_a_session_goes_on_where_the_answer_ended(
    fleet: Fleet, launch: Launch, question: object
) -> None:
    check_identical(*fleet.compare(launch, question))  # type: ignore[arg-type]


def test_a_rule_for_every_token_holds_at_every_tier(fleet: Fleet, launch: Launch) -> None:
    fleet.ask_once(launch, reasoning_counts)  # at any tier
    got, reference = fleet.compare(launch, processed_answers)
    check_identical(got, reference)
    for name, tokens in got.items():
        has_rule = name.startswith("rule")
        assert bool(set(FREQUENT) & set(tokens)) is not has_rule, name
    spec = fleet.use(launch).internal_state()["adaptive_spec"]
    assert spec["exact_rounds"]["processors"] > 0
    assert min(spec["rounds"].values()) > 0, "other rounds ran at every tier"


def test_nothing_is_left_behind(fleet: Fleet, launch: Launch) -> None:
    server = fleet.use(launch)
    check_idle_and_whole(server)
    spec = server.internal_state()["adaptive_spec"]
    assert spec["fallbacks"] == {"policy_error": 0, "feedback_mismatch": 0}
