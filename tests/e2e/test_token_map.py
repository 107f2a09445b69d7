"""An EAGLE draft that proposes frequent tokens alone (`--speculative-token-map`)."""

import pytest
import torch

from tests.e2e.fleet import Fleet
from tests.e2e.interruptions import long_answers
from tests.e2e.launches import HOT_TOKENS, WITH_SETTINGS
from tests.e2e.server import Launch
from tests.e2e.traffic import check_identical, check_idle_and_whole

NUM_BATCHES = 4  # the walk drafts in one round of ten
MIN_ACCEPTED = 0.2  # drafts a round of a request, at drafting tiers

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.parametrize(
        "launch",
        [launch for launch in WITH_SETTINGS if str(HOT_TOKENS) in launch.args],
        ids=str,
        scope="module",
    ),
]


def test_the_text_is_that_of_no_speculation_beyond_the_map(fleet: Fleet, launch: Launch) -> None:
    got, reference = fleet.compare(launch, long_answers)
    check_identical(got, reference)
    hot = set(torch.load(HOT_TOKENS, weights_only=True))
    said = {token for ids in got.values() for token in ids}
    assert said & hot
    assert said - hot, "a token that is never proposed is said all the same"


def test_drafts_are_accepted(fleet: Fleet, launch: Launch) -> None:
    server = fleet.use(launch)
    check_idle_and_whole(server)
    before = server.internal_state()["adaptive_spec"]
    for _ in range(NUM_BATCHES):
        long_answers(server)
    check_idle_and_whole(server)
    state = server.internal_state()
    after = state["adaptive_spec"]
    assert state["speculative_token_map"] == str(HOT_TOKENS)
    drafting = [steps for steps in after["rounds"] if steps != "0"]
    accepted, rounds = (
        sum(after[name][steps] - before[name][steps] for steps in drafting)
        for name in ("num_correct_drafts", "num_request_rounds")
    )
    assert accepted >= MIN_ACCEPTED * rounds > 0, (accepted, rounds)
    assert after["fallbacks"] == {"policy_error": 0, "feedback_mismatch": 0}
