"""What users ask for beside text: a count of reasoning tokens, sessions, a rule for every token."""

import json
from typing import Any

from tests.e2e.server import Server
from tests.e2e.traffic import PROMPTS, Answers, greedy

LENGTHS = (1, 2, 4, 5, 7, 12, 33)
FREQUENT = [420, 447, 258, 300, 401]
NUM_SESSIONS = 6


def ask(server: Server, body: dict[str, Any]) -> dict[str, Any]:
    """Returns the answer to one request; of a stream the last chunk."""
    if not body.get("stream"):
        reply: dict[str, Any] = server.post("/generate", body)
        return reply
    text = server.post("/generate", body)
    *_, last = (line for line in text.splitlines() if line.startswith("data: {"))
    reply = json.loads(last.removeprefix("data: "))
    return reply


# -- reasoning --


def reasoning_counts(server: Server) -> Answers:
    """Returns [reasoning tokens, completion tokens] of answers of many lengths."""
    counts: Answers = {}
    for stream in (False, True):
        for length in LENGTHS:
            for number, prompt in enumerate(PROMPTS):
                body = {"text": prompt, "require_reasoning": True, "stream": stream}
                meta = ask(server, {**body, "sampling_params": greedy(length)})["meta_info"]
                name = f"{'stream' if stream else 'whole'} {length} {number}"
                counts[name] = [meta["reasoning_tokens"], meta["completion_tokens"]]
    return counts


# -- sessions --


def session_turns(server: Server) -> Answers:
    """Returns prompt tokens and text of the second turns of sessions whose first one met a stop."""
    turns: Answers = {}
    for number in range(NUM_SESSIONS):
        turns |= _two_turns(server, f"session-{number}", number, is_streaming=False)
    return turns


def streaming_turns(server: Server) -> Answers:
    """The same of streaming sessions, which keep the KV of a turn for the next."""
    turns: Answers = {}
    for number in range(NUM_SESSIONS):
        turns |= _two_turns(server, f"streaming-{number}", number, is_streaming=True)
    return turns


def _two_turns(server: Server, name: str, number: int, is_streaming: bool) -> Answers:
    session = server.post(
        "/open_session",
        {"capacity_of_str_len": 4096, "session_id": name, "streaming": is_streaming},
    )
    assert session == name, session
    first, turns = list(range(65 + number, 85 + number)), {}
    stop = {"stop_token_ids": list(range(258, 512, 9 + number)), "ignore_eos": False}
    lengths = (7 + number, 24, 16)
    before = None
    for turn, length in enumerate(lengths):
        tokens = first if turn == 0 else list(range(97 + turn, 107 + turn))
        more = stop if turn != 2 and number % 2 else {}
        reply = ask(
            server,
            {
                "input_ids": tokens,
                "session_params": {"id": name, "rid": before},
                "sampling_params": greedy(length, **more),
            },
        )
        before = reply["meta_info"]["id"]
        turns[f"{name} {turn}"] = reply["output_ids"]
        turns[f"{name} {turn} prompt"] = [reply["meta_info"]["prompt_tokens"]]
    server.post("/close_session", {"session_id": name})
    return turns


# -- a rule for every token --


def disallow(tokens: list[int]) -> dict[str, Any]:
    """Returns what asks for SGLang's processor that forbids ``tokens``."""
    from sglang.srt.sampling.custom_logit_processor import DisallowedTokensLogitsProcessor

    return {
        "custom_logit_processor": DisallowedTokensLogitsProcessor().to_str(),
        "params": {"custom_params": {"token_ids": tokens}},
    }


def processed_answers(server: Server) -> Answers:
    """Asks under a rule, alone and beside requests without one, with logprobs, too."""
    rule = disallow(FREQUENT)
    answers: Answers = {}
    for number, prompt in enumerate(PROMPTS[:3]):
        body = {
            "text": prompt,
            "rid": f"exact-{number}",
            "custom_logit_processor": rule["custom_logit_processor"],
            "sampling_params": greedy(**rule["params"]),
        }
        answers[f"rule {number}"] = ask(server, body)["output_ids"]
        with_logprobs = {**body, "rid": f"exact-logprobs-{number}", "return_logprob": True}
        answers[f"rule and logprobs {number}"] = ask(server, with_logprobs)["output_ids"]
    beside = {
        "text": list(PROMPTS),
        "rid": [f"exact-beside-{number}" for number in range(len(PROMPTS))],
        "custom_logit_processor": [
            rule["custom_logit_processor"] if number % 2 else None for number in range(len(PROMPTS))
        ],
        "sampling_params": [
            greedy(**rule["params"]) if number % 2 else greedy() for number in range(len(PROMPTS))
        ],
    }
    for number, reply in enumerate(server.post("/generate", beside)):
        answers[f"{'rule' if number % 2 else 'plain'} beside {number}"] = reply["output_ids"]
    return answers
