"""Prompts that end at, before and behind the edge of a prefill chunk, and answers of few tokens."""

import random

import pytest

from tests.e2e.fleet import Fleet
from tests.e2e.launches import CHUNK_TOKENS, WITH_SETTINGS
from tests.e2e.server import Launch, Server
from tests.e2e.traffic import Answers, check_identical, check_idle_and_whole, greedy

SEED = 64
PROMPT_LENGTHS = [
    num_chunks * CHUNK_TOKENS + offset for num_chunks in (1, 2, 3) for offset in (-1, 0, 1)
]
ANSWER_LENGTHS = (1, 2, 24)
SHAPES = [(prompt, answer) for prompt in PROMPT_LENGTHS for answer in ANSWER_LENGTHS]

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.parametrize("launch", WITH_SETTINGS, ids=str, scope="module"),
]


def prompts(seed: int) -> list[list[int]]:
    """Returns a prompt for each shape; none has its first token in common with another."""
    rng = random.Random(seed)
    firsts = rng.sample(range(258, 512), len(SHAPES))
    return [
        [first, *rng.choices(range(256), k=length - 1)]
        for first, (length, _) in zip(firsts, SHAPES, strict=True)
    ]


def edge_answers(server: Server) -> Answers:
    """Asks every shape alone, and other prompts of every shape at once."""
    check_idle_and_whole(server)  # nothing is cached, which would move the edges
    sampling = [greedy(num_tokens) for _, num_tokens in SHAPES]
    collected: Answers = {}
    for shape, ids, how in zip(SHAPES, prompts(SEED), sampling, strict=True):
        reply = server.post("/generate", {"input_ids": ids, "sampling_params": how})
        collected[f"alone {shape}"] = reply["output_ids"]
    check_idle_and_whole(server)
    together = {"input_ids": prompts(SEED + 1), "sampling_params": sampling}
    for shape, reply in zip(SHAPES, server.post("/generate", together), strict=True):
        collected[f"together {shape}"] = reply["output_ids"]
    return collected


def test_answers_equal_no_speculation(fleet: Fleet, launch: Launch) -> None:
    got, reference = fleet.compare(launch, edge_answers)
    check_identical(got, reference)
    assert [len(got[f"alone {shape}"]) for shape in SHAPES] == [answer for _, answer in SHAPES]
    assert len({tuple(ids) for ids in got.values() if len(ids) > 2}) == 2 * len(PROMPT_LENGTHS)


def test_prompts_were_filled_in_chunks(fleet: Fleet, launch: Launch) -> None:
    fleet.ask_once(launch, edge_answers)
    server = fleet.use(launch)
    check_idle_and_whole(server)
    num_full = sum(length // CHUNK_TOKENS for length, _ in SHAPES)  # of those asked alone
    assert server.log_text().count(f"#new-token: {CHUNK_TOKENS},") >= num_full
    spec = server.internal_state()["adaptive_spec"]
    assert spec["fallbacks"] == {"policy_error": 0, "feedback_mismatch": 0}
