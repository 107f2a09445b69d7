"""Whoever continues an answer of a batch too large to draft drafts as from a cold start.

The pair's batches of more than four run zero steps alone and are never caught up: the draft lacks
those tokens. Half of the requests end there; the others draft on when the batch is smaller, behind
a gap. Then each answer is continued twice: with what the cache has, and with nothing. The host's
own memory checks are on.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from transformers import AutoTokenizer

from tests.e2e.fleet import Fleet
from tests.e2e.launches import ALGORITHM, CONFIGS, PAIR, PAIR_DRAFT
from tests.e2e.server import OURS, Launch, Server
from tests.e2e.traffic import check_identical, check_idle_and_whole, greedy

MOST_WORSE = 0.02  # verifies of second turns, beyond those from a cold start
MAX_DRAFTING = 4  # requests
LENGTHS = (40, 40, 40, 40, 80, 80, 80, 80)  # of the first answers
NUM_TOKENS = 40  # of the second
PROMPTS = (
    "The capital of France is",
    "List three colours of the rainbow and say where each can be seen:",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "The old lighthouse keeper looked out at the storm and",
    '[{"id": 1, "name": "Alice", "age": 30}, {"id": 2, "name": "Bob", "age": 31}, {"id":',
    "Water boils at 100 degrees Celsius. Explain why it boils earlier on a mountain:",
    "Once upon a time there was a small village at the edge of a forest, where",
    "SELECT name, age FROM users WHERE",
)
SAID = "\nGo on. Say the same again in other words:\n"


def pair(name: str, config: str, *plugins: str, host: str, overlap: bool) -> Launch:
    """The pair, under the host's own checks."""
    args = (
        *(*ALGORITHM, "--speculative-draft-model-path", str(PAIR_DRAFT)),
        *("--speculative-adaptive-config", str(CONFIGS / f"{config}.json")),
    )
    launch = Launch(f"smollm2-{name}", PAIR, args, host=host, overlap=overlap, strict=True)
    return replace(launch, plugins=(OURS, *plugins))


RUNS = ("seven_up_to_four", "long_runs")  # zero-step rounds run up to eight decodes
CASES = [
    pair("above-four", "zero_above_four", host="0.5.21", overlap=True),
    pair("above-four-runs", *RUNS, host="0.5.23", overlap=False),
    pair("above-four-runs", *RUNS, host="0.5.23", overlap=True),
    pair("above-four", "zero_above_four", host="0.5.20", overlap=False),
]

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.parametrize("launch", CASES, ids=str, scope="module"),
]


def turns(server: Server) -> dict[str, Any]:
    """Asks all first turns at once, then the second ones, from the cache and from nothing."""
    tokenizer = AutoTokenizer.from_pretrained(PAIR[1])
    said = tokenizer.encode(SAID)
    prompts = [tokenizer.encode(prompt) for prompt in PROMPTS]
    check_idle_and_whole(server)  # and the cache is empty
    firsts = ask(server, prompts, LENGTHS)
    rounds = server.internal_state().get("adaptive_spec", {}).get("rounds", {})
    seconds = [
        prompt + first["output_ids"] + said for prompt, first in zip(prompts, firsts, strict=True)
    ]
    warm = second_turns(server, seconds)
    check_idle_and_whole(server)
    cold = second_turns(server, seconds)
    return {"first": firsts, "warm": warm, "cold": cold, "rounds": rounds}


def second_turns(server: Server, ids: list[list[int]]) -> list[Any]:
    """Asks as many at once as may draft."""
    parts = [ids[first : first + MAX_DRAFTING] for first in range(0, len(ids), MAX_DRAFTING)]
    return [reply for part in parts for reply in ask(server, part, [NUM_TOKENS] * len(part))]


def ask(server: Server, ids: list[list[int]], lengths: Sequence[int]) -> list[Any]:
    """Returns the replies to prompts that are asked in one batch, streamed on half the servers."""
    is_streamed = not server.launch.overlap
    sampling = [greedy(length) for length in lengths]
    body = {"input_ids": ids, "sampling_params": sampling, "stream": is_streamed}
    replies = server.post("/generate", body)
    if not is_streamed:
        return list(replies)
    lines = (line for line in replies.splitlines() if line.startswith("data: {"))
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines]
    newest = {chunk.get("index", 0): chunk for chunk in chunks}
    return [newest[number] for number in range(len(ids))]


def output_ids(got: dict[str, Any]) -> dict[str, list[int]]:
    """Returns all answers by turn and number."""
    return {
        f"{turn} {number}": reply["output_ids"]
        for turn in ("first", "warm", "cold")
        for number, reply in enumerate(got[turn])
    }


def sums(got: dict[str, Any], name: str) -> dict[str, int]:
    """Returns a figure of the replies, summed, of second turns from the cache and from nothing."""
    return {turn: sum(reply["meta_info"][name] for reply in got[turn]) for turn in ("warm", "cold")}


def test_the_text_is_that_of_no_speculation(fleet: Fleet, launch: Launch) -> None:
    got, reference = fleet.compare(launch, turns)
    check_identical(output_ids(got), output_ids(reference))


def test_a_second_turn_verifies_no_more_often_than_from_a_cold_start(
    fleet: Fleet, launch: Launch
) -> None:
    got = fleet.ask_once(launch, turns)
    verifies, cached = sums(got, "spec_verify_ct"), sums(got, "cached_tokens")
    print(launch, verifies, cached, got["rounds"])
    assert got["rounds"]["0"] > 0
    assert cached["cold"] == 0 < cached["warm"]  # the prompts are kept
    assert verifies["warm"] <= (1 + MOST_WORSE) * verifies["cold"]


def test_nothing_leaks(server: Server) -> None:
    check_idle_and_whole(server)
    assert server.internal_state()["adaptive_spec"]["fallbacks"] == {
        "policy_error": 0,
        "feedback_mismatch": 0,
    }
