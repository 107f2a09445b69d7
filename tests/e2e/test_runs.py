"""Several plain decodes in one zero-step round: no other text, and counts of single rounds.

The policy is replaced by a seeded walk that stays at zero steps for some rounds and draws the
decodes of each: 1, 2, 4 or 8, as many as the draft can still catch up on. The host's own memory
checks are on.
"""

import json
import random
import urllib.error
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.e2e.fleet import Fleet
from tests.e2e.launches import CONTEXT_LENGTH, TINY, in_runs
from tests.e2e.sampling import exact_answers
from tests.e2e.server import Launch, Server
from tests.e2e.traffic import (
    PROMPTS,
    RUN_LENGTHS,
    Answers,
    abort_running,
    answers,
    batch_answers,
    check_identical,
    check_idle_and_whole,
    check_run_lengths,
    disconnect_while_running,
    greedy,
)

MIN_ROUNDS = 10  # of every length
# Each for what a run must not step over.
ALONE = {
    "a grammar": {"regex": "[a-z]{20,40}"},
    "a penalty": {"frequency_penalty": 0.5},
    "fewest tokens": {"min_new_tokens": 8},
    "a stream with an interval": {"stream_interval": 3},
}


def runs(base: str, host: str, overlap: bool) -> Launch:
    """ADAPTIVE_EAGLE that walks in runs."""
    return in_runs(base, f"{base}-runs", TINY, host, overlap)


# Prompt and answer fill the context: SGLang reserves what the deepest tier drafts, 8 tokens, and
# would answer 400. The last prompt is the longest that it takes without speculation.
AT_THE_END = {CONTEXT_LENGTH - 14: 8, CONTEXT_LENGTH - 64: 64, CONTEXT_LENGTH - 7: 5}

CASES = [
    runs("eagle3", "0.5.21", overlap=True),
    runs("eagle", "0.5.23", overlap=False),
    runs("eagle", "0.5.20", overlap=True),
    runs("eagle3", "0.5.23", overlap=True),
    runs("ngram", "0.5.21", overlap=True),
]

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.parametrize("launch", CASES, ids=str, scope="module"),
]


def all_answers(server: Server) -> Answers:
    """Asks prompts alone and in batches, and for stops, ends and counts of every kind."""
    return answers(server) | {f"exact {name}": got for name, got in exact_answers(server).items()}


def test_every_greedy_answer_equals_no_speculation(fleet: Fleet, launch: Launch) -> None:
    check_identical(*fleet.compare(launch, all_answers))


def test_every_length_ran_and_the_draft_caught_up(fleet: Fleet, launch: Launch) -> None:
    fleet.ask_once(launch, all_answers)
    server = fleet.use(launch)
    check_idle_and_whole(server)
    state = server.internal_state()
    spec = state["adaptive_spec"]
    assert spec["fallbacks"] == {"policy_error": 0, "feedback_mismatch": 0}
    check_run_lengths(spec)
    decodes = spec["zero_step_decodes"]
    assert min(decodes[length] for length in RUN_LENGTHS) >= MIN_ROUNDS, decodes
    assert sum(spec["zero_step_decodes"].values()) == spec["rounds"]["0"]
    walk = state["e2e_walk"]
    assert walk["needless_catch_ups"] == 0, walk
    assert walk["plain_chosen"] + walk["catch_ups"] == spec["rounds"]["0"], walk


def at_the_end(server: Server) -> Answers:
    """Fills the context, alone, in one batch with short requests, and streamed."""
    rng = random.Random(6)
    prompts = {length: rng.choices(range(5, 250), k=length) for length in (*AT_THE_END, 20, 40)}
    sampling = [greedy(AT_THE_END.get(length, 96)) for length in prompts]
    bodies = [
        {"input_ids": ids, "sampling_params": one}
        for ids, one in zip(prompts.values(), sampling, strict=True)
    ]
    together = {"input_ids": list(prompts.values()), "sampling_params": sampling}
    collected = {
        f"of {number}": server.post("/generate", body) for number, body in enumerate(bodies)
    }
    replies = server.post("/generate", together)
    collected |= {f"batch {number}": reply for number, reply in enumerate(replies)}
    streamed = server.post("/generate", {**bodies[0], "stream": True})
    *_, last = (line for line in streamed.splitlines() if line.startswith("data: {"))
    collected["streamed"] = json.loads(last.removeprefix("data: "))
    return {name: reply["output_ids"] for name, reply in collected.items()}


def test_prompt_and_answer_may_fill_the_context(fleet: Fleet, launch: Launch) -> None:
    got, reference = fleet.compare(launch, at_the_end)
    check_identical(got, reference)
    wanted = [
        min(AT_THE_END.get(length, 96), CONTEXT_LENGTH - 2 - length)
        for length in (*AT_THE_END, 20, 40)
    ]
    assert [len(ids) for name, ids in reference.items() if name.startswith("batch")] == wanted


def test_what_does_not_fit_without_speculation_is_refused(server: Server) -> None:
    body = {"input_ids": [5] * (CONTEXT_LENGTH - 14), "sampling_params": greedy(15)}
    with pytest.raises(urllib.error.HTTPError) as refused:
        server.post("/generate", body)
    assert refused.value.code == 400


def ends(server: Server) -> Answers:
    """Asks for answers that end at a token, or at their limit, all over a run; others go on."""
    (text,) = answers_to(server, [greedy(60)])
    at_tokens = [greedy(60, ignore_eos=False, stop_token_ids=[each]) for each in text[20:60:4]]
    at_limits = [greedy(number) for number in range(20, 36, 2)]
    asked = [*at_tokens, *at_limits]
    together = {"text": list(PROMPTS[:4]), "sampling_params": [greedy(n) for n in (21, 34, 47, 90)]}
    found = [
        *answers_to(server, asked),
        *(r["output_ids"] for r in server.post("/generate", together)),
    ]
    return {f"end {number}": got for number, got in enumerate(found)}


def answers_to(server: Server, asked: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """Asks the same prompt for each of these sampling parameters."""
    bodies = [{"text": PROMPTS[1], "sampling_params": each} for each in asked]
    return [server.post("/generate", body)["output_ids"] for body in bodies]


def test_a_run_ends_with_the_answer(fleet: Fleet, launch: Launch) -> None:
    got, reference = fleet.compare(launch, ends)
    check_identical(got, reference)
    server = fleet.use(launch)
    check_idle_and_whole(server)
    assert server.internal_state()["adaptive_spec"]["cut_runs"]


def test_counts_are_those_of_single_rounds(server: Server) -> None:
    """A request's verifies and accepted drafts make up its tokens, whatever the runs."""
    before = server.internal_state()["adaptive_spec"]["zero_step_decodes"]
    sampling = greedy(200)
    meta = server.post("/generate", {"text": PROMPTS[1], "sampling_params": sampling})["meta_info"]
    after = server.internal_state()["adaptive_spec"]["zero_step_decodes"]
    assert {length for length in after if after[length] > before.get(length, 0)} > {"1", "2"}
    # The first token is prefill's; what the last round gave beyond the end is cut off.
    num_tokens = meta["spec_verify_ct"] + meta["spec_num_correct_drafts"]
    assert 199 <= num_tokens <= 199 + 8


@pytest.mark.parametrize("name", ALONE)
def test_a_run_is_one_decode_where_every_token_counts(server: Server, name: str) -> None:
    before = server.internal_state()["adaptive_spec"]["zero_step_decodes"]
    body = {"text": PROMPTS[1], "sampling_params": greedy(40, **ALONE[name])}
    server.post("/generate", {**body, "stream": "stream_interval" in ALONE[name]})
    check_idle_and_whole(server)
    after = server.internal_state()["adaptive_spec"]["zero_step_decodes"]
    assert after.pop("1") > before.pop("1")
    assert after == before


def test_logprobs_are_of_single_rounds(fleet: Fleet, launch: Launch) -> None:
    body = {
        "text": PROMPTS[0],
        "sampling_params": greedy(48),
        "return_logprob": True,
    }
    got = fleet.use(launch).post("/generate", body)
    assert len(got["meta_info"]["output_token_logprobs"]) == 48


def test_aborted_requests_leave_nothing_behind(fleet: Fleet, launch: Launch) -> None:
    server = fleet.use(launch)
    assert abort_running(server, rid="abort") == "abort"
    disconnect_while_running(server, rid="leave", text="leave me", num_tokens=900)
    check_idle_and_whole(server)
    reference = fleet.ask_once(launch.reference(), all_answers)
    batch = batch_answers(server)
    check_identical(batch, {name: reference[name] for name in batch})
