"""The pair of the demo, SmolLM2 and its EAGLE-3 head, with the default config."""

import pytest

from tests.e2e.fleet import Fleet
from tests.e2e.launches import ALGORITHM, PAIR, PAIR_DRAFT
from tests.e2e.server import Launch, Server
from tests.e2e.traffic import check_identical, greedy

NUM_TOKENS = 48
PROMPTS = {
    "code": "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "json": '[{"id": 1, "name": "Alice"}, {"id": 2, "name": "Bob"}, {"id": 3, "name":',
    "prose": "The old lighthouse keeper looked out at the storm and",
    "maths": "Question: Tom has 12 apples and gives 5 away. How many are left?\nAnswer:",
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
    assert sum(count > 0 for count in spec["rounds"].values()) >= 2, spec["rounds"]
    assert sum(spec["switches"].values()) >= 1
    # The head fits this target: drafts are accepted, as they would not be from a broken relay.
    assert state["avg_spec_accept_length"] > 1.5
