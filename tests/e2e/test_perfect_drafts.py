"""A draft that is always right: whole rounds are accepted, and answers end inside them.

Target and draft are made so (tools/tiny_models.py:write_perfect_pair): each token follows from the
one before, on a cycle through the whole vocabulary, EOS included.
"""

import json

import pytest

from tests.e2e.fleet import Fleet
from tests.e2e.launches import perfect_drafts
from tests.e2e.server import Launch, Server
from tests.e2e.traffic import (
    Answers,
    check_identical,
    check_idle_and_whole,
    check_run_lengths,
    greedy,
)
from tools.tiny_models import EOS, VOCAB

CASES = [
    perfect_drafts("0.5.21", overlap=True),
    perfect_drafts("0.5.23", overlap=False),
]
DISTANCES = range(1, 18)  # tokens to the end: more than two of the widest rounds
PROMPT = [65, 66, 67]
MIN_ROUNDS = 10  # at every tier

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.parametrize("launch", CASES, ids=str, scope="module"),
]


def cycle_to_eos(server: Server) -> list[int]:
    """Returns the cycle, EOS last."""
    body = {"input_ids": PROMPT, "sampling_params": greedy(VOCAB)}
    ids: list[int] = server.post("/generate", body)["output_ids"]
    behind = ids.index(EOS) + 1
    return ids[behind:] + ids[:behind]


def ends(server: Server) -> Answers:
    """Asks for answers that end after 1 to 17 tokens, for each reason that there is."""
    cycle = cycle_to_eos(server)
    middle = VOCAB // 2
    collected: Answers = {"cycle": cycle}
    for distance in DISTANCES:
        stop = [cycle[middle + distance]]
        asked = {
            "EOS": (cycle[-1 - distance], greedy(64, ignore_eos=False)),
            "stop": (cycle[middle], greedy(64, stop_token_ids=stop, ignore_eos=False)),
            "length": (cycle[middle], greedy(distance)),
            "EOS ignored": (cycle[-1 - distance], greedy(32)),
            "length before EOS": (cycle[-2 - distance], greedy(distance, ignore_eos=False)),
        }
        body = {
            "input_ids": [[*PROMPT, token] for token, _ in asked.values()],
            "sampling_params": [sampling for _, sampling in asked.values()],
        }
        for name, reply in zip(asked, server.post("/generate", body), strict=True):
            meta = reply["meta_info"]
            collected[f"{name} {distance}"] = reply["output_ids"]
            collected[f"{name} {distance} text"] = reply["text"]
            collected[f"{name} {distance} ending"] = json.dumps(meta["finish_reason"])
            collected[f"{name} {distance} tokens"] = [meta["completion_tokens"]]
    return collected


def test_answers_end_as_without_speculation(fleet: Fleet, launch: Launch) -> None:
    got, reference = fleet.compare(launch, ends)
    check_identical(got, reference)


def test_answers_end_where_the_cycle_says(fleet: Fleet, launch: Launch) -> None:
    got = fleet.ask_once(launch, ends)
    cycle, middle = got["cycle"], VOCAB // 2
    assert sorted(cycle) == list(range(VOCAB))
    for distance in DISTANCES:
        assert got[f"EOS {distance}"] == cycle[VOCAB - distance :]
        after = cycle[middle + 1 : middle + 1 + distance]
        assert got[f"stop {distance}"] == got[f"length {distance}"] == after


def test_every_draft_is_accepted(fleet: Fleet, launch: Launch) -> None:
    fleet.ask_once(launch, ends)
    server = fleet.use(launch)
    body = {"input_ids": [[*PROMPT, 70 + number] for number in range(8)]}
    server.post("/generate", {**body, "sampling_params": greedy(400)})
    check_idle_and_whole(server)
    spec = server.internal_state()["adaptive_spec"]
    assert spec["fallbacks"] == {"policy_error": 0, "feedback_mismatch": 0}
    assert min(spec["rounds"].values()) >= MIN_ROUNDS, spec["rounds"]
    check_run_lengths(spec)
    assert spec["num_correct_drafts"] == spec["num_proposed_drafts"]
