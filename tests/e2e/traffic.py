"""What the tests send, and what must come back: the token ids that no speculation gives."""

import http.client
import itertools
import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.e2e.server import Server

NUM_TOKENS = 96
MIN_DISTINCT = 50  # of NUM_TOKENS: a reference that repeats itself hides mistakes
PROMPTS = (
    "The quick brown fox",
    "hello",
    "0123456789 " * 12,
    "def f(x):\n    return",
    "a",
    "SGLang on a CPU " * 30,
)
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 16},
        "size": {"enum": ["small", "medium", "large"]},
        "tags": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4},
    },
    "required": ["name", "size", "tags"],
    "additionalProperties": False,
}
IDLE_TIMEOUT_S = 60

Answers = dict[str, Any]


def greedy(num_tokens: int = NUM_TOKENS, **sampling: Any) -> dict[str, Any]:
    """Returns sampling parameters for exactly ``num_tokens`` greedy tokens."""
    return {"temperature": 0, "max_new_tokens": num_tokens, "ignore_eos": True, **sampling}


def answers(server: Server) -> Answers:
    """Asks everything once: prompts one by one, all in one batch, chat, completions, JSON."""
    collected: Answers = {}
    for number, prompt in enumerate(PROMPTS):
        reply = server.post("/generate", {"text": prompt, "sampling_params": greedy()})
        collected[f"serial {number}"] = reply["output_ids"]
    replies = server.post("/generate", {"text": list(PROMPTS), "sampling_params": greedy()})
    for number, reply in enumerate(replies):
        collected[f"batch {number}"] = reply["output_ids"]
    openai = {"model": "tiny", "temperature": 0, "max_tokens": NUM_TOKENS, "ignore_eos": True}
    message = {"role": "user", "content": "hi"}
    chat = server.post("/v1/chat/completions", {**openai, "messages": [message]})
    collected["chat"] = chat["choices"][0]["message"]["content"]
    completion = server.post("/v1/completions", {**openai, "prompt": "once upon"})
    collected["completions"] = completion["choices"][0]["text"]
    return collected | json_answers(server)


def json_answers(server: Server) -> Answers:
    """Asks for JSON by a schema in one batch with plain prompts."""
    schema = greedy(160, json_schema=json.dumps(SCHEMA), ignore_eos=False)
    sampling = [schema if number % 2 == 0 else greedy(48) for number in range(len(PROMPTS))]
    body = {"text": list(PROMPTS), "sampling_params": sampling}
    replies = server.post("/generate", body)
    return {
        f"{'json' if number % 2 == 0 else 'plain'} {number}": reply["text"]
        for number, reply in enumerate(replies)
    }


def check_identical(got: Answers, reference: Answers) -> None:
    """Asserts that every answer is the reference's, token by token; names the first that is not."""
    assert got.keys() == reference.keys()
    for name, expected in reference.items():
        if got[name] != expected:
            pairs = itertools.zip_longest(got[name], expected)
            place = next(place for place, (one, other) in enumerate(pairs) if one != other)
            raise AssertionError(f"{name} differs from no speculation from token {place} on")


def check_not_degenerate(reference: Answers) -> None:
    """Asserts that the reference's token ids vary: repeated text would hide a lost KV slot."""
    distinct = {name: len(set(ids)) for name, ids in reference.items() if isinstance(ids, list)}
    assert len(distinct) == 2 * len(PROMPTS)
    assert min(distinct.values()) >= MIN_DISTINCT, distinct


# -- aborting --


def abort_running(server: Server, rid: str) -> dict[str, Any]:
    """Starts a long request, aborts it through /abort_request; returns its reply."""
    body = {"text": "abort me", "rid": rid, "sampling_params": greedy(900)}
    with ThreadPoolExecutor(1) as pool:
        reply = pool.submit(server.post, "/generate", body)
        _wait_until_running(server)
        server.post("/abort_request", {"rid": rid})
        result: dict[str, Any] = reply.result()
    return result


def disconnect_while_running(server: Server, text: str, num_tokens: int) -> None:
    """Starts a streamed request and hangs up after its first words."""
    body = {"text": text, "stream": True, "sampling_params": greedy(num_tokens)}
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    headers = {"Content-Type": "application/json"}
    connection.request("POST", "/generate", json.dumps(body), headers)
    assert connection.getresponse().read(1), "nothing was streamed"
    connection.close()


def _wait_until_running(server: Server) -> None:
    deadline = time.monotonic() + IDLE_TIMEOUT_S
    while time.monotonic() < deadline:
        if load(server)["num_running_reqs"] > 0:
            return
        time.sleep(0.02)
    raise AssertionError("the request never ran")


# -- idleness --


def load(server: Server) -> dict[str, Any]:
    """Returns the scheduler's own account of its load."""
    first: dict[str, Any] = server.get("/v1/loads")["loads"][0]
    return first


def check_idle_and_whole(server: Server) -> None:
    """Asserts that every request is gone and every KV token is free again.

    The host flushes its cache only when idle, and its idle checks end the server on a leak.
    """
    assert server.answers(f"/flush_cache?timeout={IDLE_TIMEOUT_S}"), "the server is not idle"
    time.sleep(0.5)  # some idle rounds, which check the pools
    state = load(server)
    left = {name: state[name] for name in ("num_running_reqs", "num_waiting_reqs")}
    assert (left, state["num_used_tokens"]) == (dict.fromkeys(left, 0), 0)
    assert server.answers("/health"), server.log_text()[-4000:]
