"""Sampling parameters beside temperature 0, and what a server answers to all of them.

Most do not depend on how many tokens a round gives. Penalties and `min_new_tokens` do, in SGLang's
speculation as such: it counts one token a round and penalises every node of a tree alike (sglang
0.5.23 speculative/eagle_utils.py, "relaxed version of penalties").
"""

import json
from typing import Any, NamedTuple

from tests.e2e.grammars import grammar_answers
from tests.e2e.server import Server
from tests.e2e.traffic import PROMPTS, Answers, check_idle_and_whole, greedy

STOP_IDS = [100, 101, *range(300, 304), *range(400, 404)]
BANNED = (420, 447)  # frequent in what the tiny target says
MIN_NEW_TOKENS = 24
NUM_LOGPROB_TOKENS = 48
NUM_RELAXED_TOKENS = 40
DEPTHS = ("walk", "at-0", "at-3")  # how requests are named


class Case(NamedTuple):
    """Parameters, and whether they change what the model says to some prompt."""

    parameters: dict[str, Any]
    has_effect: bool = True


EXACT = {
    "plain": Case({}, has_effect=False),
    "one token": Case({"max_new_tokens": 1}),
    "two tokens": Case({"max_new_tokens": 2}),
    "logit bias": Case({"logit_bias": {"65": 15.0, "100": 15.0, "300": 15.0}}),
    "banned tokens": Case({"logit_bias": {str(token): -100.0 for token in BANNED}}),
    "stop string": Case({"stop": ["><x4"]}),  # two tokens share it
    "stop string kept": Case({"stop": ["><x4"], "no_stop_trim": True}),
    "stop regex": Case({"stop_regex": [r"<x4\d2>"]}),
    "stop token ids": Case({"stop_token_ids": STOP_IDS, "ignore_eos": False}),
    "top-p, top-k, min-p": Case({"top_p": 0.5, "top_k": 20, "min_p": 0.1}, has_effect=False),
    "min_new_tokens": Case({"min_new_tokens": 20}, has_effect=False),  # no stop in its way
}
RELAXED: dict[str, dict[str, Any]] = {
    "frequency_penalty": {"frequency_penalty": 2.0},
    "presence_penalty": {"presence_penalty": 2.0},
    "repetition_penalty": {"repetition_penalty": 1.5},
    "min_new_tokens": {
        "min_new_tokens": MIN_NEW_TOKENS,
        "stop_token_ids": STOP_IDS,
        "ignore_eos": False,
    },
    "plain": {},
}
RELAXED_PROMPTS = (PROMPTS[0], PROMPTS[4])  # where a static server differs from no speculation
ASKED = (PROMPTS[0], PROMPTS[2], PROMPTS[5])  # each case but "plain" changes one of them
INPUT_LOGPROBS = ("input_token_logprobs", "input_top_logprobs", "input_token_ids_logprobs")
OUTPUT_LOGPROBS = ("output_token_logprobs", "output_top_logprobs", "output_token_ids_logprobs")


def parameter_answers(server: Server) -> dict[str, Any]:
    """Asks everything once; servers that switch stay at a depth where the request is named so."""
    if server.launch.args:
        relaxed = {depth: relaxed_answers(server, depth) for depth in DEPTHS}
    else:  # no speculation has no depth
        relaxed = dict.fromkeys(DEPTHS, relaxed_answers(server, "none"))
    return {
        "grammars": grammar_answers(server),
        "exact": exact_answers(server),
        "copies": copies(server),
        "beside sampled": beside_sampled(server),
        "beside penalised": beside_penalised(server),
        "logprobs": logprob_replies(server),
        "relaxed": relaxed,
        "state": server.internal_state(),
        "whole": check_idle_and_whole(server),
    }


def exact_answers(server: Server) -> Answers:
    """Asks every case of `EXACT` at once: more requests than run at once."""
    names = [(case, number) for case in EXACT for number in range(len(ASKED))]
    body = {
        "text": [ASKED[number] for _, number in names],
        "sampling_params": [greedy(**EXACT[case].parameters) for case, _ in names],
    }
    collected: Answers = {}
    for (case, number), reply in zip(names, server.post("/generate", body), strict=True):
        collected[f"{case} {number}"] = reply["output_ids"]
        collected[f"{case} {number} text"] = reply["text"]
        collected[f"{case} {number} ending"] = json.dumps(reply["meta_info"]["finish_reason"])
    return collected


def copies(server: Server) -> Answers:
    """Asks for two parallel samples of every prompt."""
    body = {"text": list(ASKED), "sampling_params": greedy(n=2)}
    replies = server.post("/generate", body)
    return {f"copy {number}": reply["output_ids"] for number, reply in enumerate(replies)}


def beside_sampled(server: Server) -> Answers:
    """Asks greedily beside requests at temperature 0.9, whose answers are left out."""
    hot = {**greedy(), "temperature": 0.9, "top_p": 0.9}
    sampling = [greedy() if number % 2 else hot for number in range(len(PROMPTS))]
    replies = server.post("/generate", {"text": list(PROMPTS), "sampling_params": sampling})
    return {f"greedy {n}": reply["output_ids"] for n, reply in enumerate(replies) if n % 2}


def logprob_replies(server: Server) -> list[dict[str, Any]]:
    """Asks for logprobs of the prompt and of the answer, their alternatives and some tokens."""
    body = {
        "text": list(ASKED),
        "sampling_params": greedy(NUM_LOGPROB_TOKENS),
        "return_logprob": True,
        "logprob_start_len": 0,
        "top_logprobs_num": 3,
        "token_ids_logprob": list(BANNED),
    }
    return [reply["meta_info"] for reply in server.post("/generate", body)]


def relaxed_answers(server: Server, depth: str) -> Answers:
    """Asks all of `RELAXED`, one by one.

    In a batch the penalised answers of no speculation itself change from one run to the next
    (frequency_penalty, sglang 0.5.21).
    """
    collected: Answers = {}
    for case, parameters in RELAXED.items():
        for number, prompt in enumerate(RELAXED_PROMPTS):
            sampling = greedy(NUM_RELAXED_TOKENS, **parameters)
            rid = f"{depth}-{case}-{number}"
            body = {"text": prompt, "rid": rid, "sampling_params": sampling}
            collected[f"{case} {number}"] = server.post("/generate", body)["output_ids"]
    return collected


def beside_penalised(server: Server) -> Answers:
    """Asks greedily beside penalised requests, whose answers are left out."""
    cases = list(RELAXED.values())
    sampling = [greedy() if n % 2 else greedy(**cases[n % len(cases)]) for n in range(len(PROMPTS))]
    replies = server.post("/generate", {"text": list(PROMPTS), "sampling_params": sampling})
    return {f"greedy {n}": reply["output_ids"] for n, reply in enumerate(replies) if n % 2}


def relaxed_at_three_steps(server: Server) -> Answers:
    """Asks what a static server of that depth is compared in."""
    return relaxed_answers(server, "at-3")
