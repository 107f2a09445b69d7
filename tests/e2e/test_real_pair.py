"""The pair of the demo, SmolLM2 and its EAGLE-3 head, with the default config."""

import pytest

from tests.e2e.fleet import Fleet
from tests.e2e.launches import ALGORITHM, PAIR, PAIR_DRAFT
from tests.e2e.server import Launch, Server
from tests.e2e.traffic import check_identical, greedy

NUM_TOKENS = 48
# Easy ones first: the average rises above the deepest tier's threshold, then falls below 1.
PROMPTS = {
    "records": '[{"id": 1, "name": "Alice", "age": 30}, {"id": 2, "name": "Bob", "age": 31}, '
    '{"id": 3, "name": "Carol", "age": 32}, {"id":',
    "items": '{"items": [{"key": "a", "value": 1}, {"key": "b", "value": 2}, '
    '{"key": "c", "value": 3}, {"key": "d", "value": 4}, {"key":',
    "code": "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "prose": "The old lighthouse keeper looked out at the storm and",
}
CASES = [Launch("smollm2", PAIR, (*ALGORITHM, "--speculative-draft-model-path", str(PAIR_DRAFT)))]

pytestmark = [pytest.mark.e2e, pytest.mark.parametrize("launch", CASES, ids=str)]


def real_answers(server: Server) -> dict[str, list[int]]:
    return {
        name: server.post("/generate", {"text": text, "sampling_params": greedy(NUM_TOKENS)})[
            "output_ids"
        ]
        for name, text in PROMPTS.items()
    }


def test_the_real_pair_gives_the_text_of_no_speculation(fleet: Fleet, launch: Launch) -> None:
    reference = fleet.ask_once(launch.reference(), real_answers)
    assert [len(ids) for ids in reference.values()] == [NUM_TOKENS] * len(PROMPTS)
    assert len({token for ids in reference.values() for token in ids}) >= NUM_TOKENS
    check_identical(fleet.ask_once(launch, real_answers), reference)


def test_the_default_config_moves_between_its_tiers(fleet: Fleet, launch: Launch) -> None:
    fleet.ask_once(launch, real_answers)
    state = fleet.use(launch).internal_state()
    spec = state["adaptive_spec"]
    print(spec["rounds"], spec["switches"], state["avg_spec_accept_length"])
    assert (spec["config"], spec["base"]) == ("preset conservative", "EAGLE3")
    assert set(spec["rounds"]) == {"1", "3", "7"}
    assert min(spec["rounds"].values()) > 0, spec["rounds"]
    assert spec["switches"]["policy"] >= 3
    assert spec["fallbacks"] == {"policy_error": 0, "feedback_mismatch": 0}
    # The head fits this target: drafts are accepted, as they would not be from a broken relay.
    assert state["avg_spec_accept_length"] > 1.5
