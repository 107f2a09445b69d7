"""What the tests send, and what must come back: the token ids that no speculation gives."""

import contextlib
import itertools
import json
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from http.client import HTTPConnection, HTTPResponse
from typing import Any

from tests.e2e.fleet import Fleet
from tests.e2e.server import REQUEST_TIMEOUT_S, Launch, Server

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
ALONE = (0, 2, 5)  # of them
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
RUN_LENGTHS = ("1", "2", "4", "8")  # decodes of a zero-step round, as the policy plans them
# Rounding: verify has other shapes than plain decoding, and which rows share a batch changes with
# the load. 3e-4 to 9e-4 in eleven answers, 2e-4 between batch sizes of no speculation itself.
MAX_LOGPROB_DIFFERENCE = 5e-3

Answers = dict[str, Any]
Alternatives = list[tuple[float, int]]


def greedy(num_tokens: int = NUM_TOKENS, **sampling: Any) -> dict[str, Any]:
    """Returns sampling parameters for exactly ``num_tokens`` greedy tokens."""
    return {"temperature": 0, "max_new_tokens": num_tokens, "ignore_eos": True, **sampling}


def answers(server: Server) -> Answers:
    """Asks everything once: some prompts alone, all in one batch, chat, completions, JSON."""
    collected: Answers = {}
    for number in ALONE:
        reply = server.post("/generate", {"text": PROMPTS[number], "sampling_params": greedy()})
        collected[f"serial {number}"] = reply["output_ids"]
    collected |= batch_answers(server)
    openai = {"model": "tiny", "temperature": 0, "max_tokens": NUM_TOKENS, "ignore_eos": True}
    message = {"role": "user", "content": "hi"}
    chat = server.post("/v1/chat/completions", {**openai, "messages": [message]})
    collected["chat"] = chat["choices"][0]["message"]["content"]
    completion = server.post("/v1/completions", {**openai, "prompt": "once upon"})
    collected["completions"] = completion["choices"][0]["text"]
    return collected | json_answers(server)


def batch_answers(server: Server) -> Answers:
    """Asks all prompts in one batch."""
    replies = server.post("/generate", {"text": list(PROMPTS), "sampling_params": greedy()})
    return {f"batch {number}": reply["output_ids"] for number, reply in enumerate(replies)}


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


def output_ids(replies: dict[str, Any]) -> Answers:
    """Returns the token ids of whole replies, by name."""
    return {name: reply["output_ids"] for name, reply in replies.items()}


def check_identical(got: Answers, reference: Answers) -> None:
    """Asserts that every answer is the reference's, token by token; names the first that is not."""
    assert got.keys() == reference.keys()
    for name, expected in reference.items():
        if got[name] != expected:
            pairs = itertools.zip_longest(got[name], expected)
            place = next(place for place, (one, other) in enumerate(pairs) if one != other)
            raise AssertionError(f"{name} differs from no speculation from token {place} on")


def check_run_lengths(spec: Mapping[str, Any], planned: Collection[str] = RUN_LENGTHS) -> None:
    """Asserts that zero-step rounds ran every planned length, and others only where cut short."""
    decodes = spec["zero_step_decodes"]
    assert set(planned) <= set(decodes)
    assert sum(decodes[length] for length in set(decodes) - set(planned)) <= spec["cut_runs"]


def check_not_degenerate(reference: Answers) -> None:
    """Asserts that the reference's token ids vary: repeated text would hide a lost KV slot."""
    distinct = {name: len(set(ids)) for name, ids in reference.items() if isinstance(ids, list)}
    assert len(distinct) == len(ALONE) + len(PROMPTS)
    assert min(distinct.values()) >= MIN_DISTINCT, distinct


# -- logprobs --


def check_logprobs(got: dict[str, Any], expected: dict[str, Any], names: Sequence[str]) -> None:
    """Asserts that two replies' logprobs are of the same tokens, and equal but for rounding."""
    for name in names:
        for ours, theirs in zip(per_token(got[name]), per_token(expected[name]), strict=True):
            differences = [
                abs(mine[0] - yours[0]) for mine, yours in zip(ours, theirs, strict=True)
            ]
            assert max(differences, default=0.0) < MAX_LOGPROB_DIFFERENCE, name
            if "top" in name:
                check_ranking(ours, theirs)
            else:
                assert [token for _, token in ours] == [token for _, token in theirs], name


def check_ranking(ours: Alternatives, theirs: Alternatives) -> None:
    """Asserts that alternatives are in one order; those within rounding of each other may swap."""
    logprob_of = {token: logprob for logprob, token in theirs}
    for (logprob, token), (_, other) in zip(ours, theirs, strict=True):
        if token != other:  # one that is not among theirs came just after their last
            theirs_of_it = logprob_of.get(token, theirs[-1][0])
            assert abs(logprob - theirs_of_it) < MAX_LOGPROB_DIFFERENCE, (ours, theirs)


def per_token(logprobs: list[Any]) -> list[Alternatives]:
    """Returns (logprob, token) of every alternative of every token of a reply, in their order.

    The first token of a prompt has neither: None is left out.
    """
    tokens = [[one] if isinstance(one[1], int) else one for one in logprobs if one is not None]
    return [
        [(logprob, token) for logprob, token, _text in triples if logprob is not None]
        for triples in tokens
    ]


# -- aborting --


@contextlib.contextmanager
def running(
    server: Server, rid: str, text: str, num_tokens: int, **more: Any
) -> Iterator[HTTPResponse]:
    """Starts a streamed request and yields once its first words are there; hangs up after."""
    sampling = greedy(num_tokens, **more)
    body = {"text": text, "rid": rid, "stream": True, "sampling_params": sampling}
    connection = HTTPConnection("127.0.0.1", server.port, timeout=REQUEST_TIMEOUT_S)
    headers = {"Content-Type": "application/json"}
    connection.request("POST", "/generate", json.dumps(body), headers)
    response = connection.getresponse()
    assert response.readline().startswith(b"data:"), "nothing was streamed"
    yield response
    connection.close()


def abort_running(server: Server, rid: str) -> str:
    """Aborts a long request through /abort_request; returns why it ended."""
    with running(server, rid, "abort me", num_tokens=900) as response:
        server.post("/abort_request", {"rid": rid})
        *_, last = (line for line in response if line.startswith(b"data: {"))
    return str(json.loads(last.removeprefix(b"data: "))["meta_info"]["finish_reason"]["type"])


def disconnect_while_running(server: Server, rid: str, text: str, num_tokens: int) -> None:
    """Hangs up on a request after its first words."""
    with running(server, rid, text, num_tokens):
        pass


# -- idleness --


def load(server: Server) -> dict[str, Any]:
    """Returns the scheduler's own account of its load."""
    first: dict[str, Any] = server.get("/v1/loads")["loads"][0]
    return first


def check_served_whole(fleet: Fleet, launch: Launch) -> dict[str, Any]:
    """Asserts that all answers are those of no speculation and nothing failed; returns figures."""
    got, reference = fleet.compare(launch, answers)
    check_identical(got, reference)
    server = fleet.use(launch)
    check_idle_and_whole(server)
    spec: dict[str, Any] = server.internal_state()["adaptive_spec"]
    assert spec["fallbacks"] == {"policy_error": 0, "feedback_mismatch": 0}
    return spec


def check_idle_and_whole(server: Server) -> None:
    """Asserts that every request is gone and every KV token is free again.

    The host flushes its cache only when idle, and its idle checks end the server on a leak.
    """
    path = f"/flush_cache?timeout={IDLE_TIMEOUT_S}"
    assert server.answers(path, IDLE_TIMEOUT_S + 30.0), "the server is not idle"
    time.sleep(0.5)  # some idle rounds, which check the pools
    state = load(server)
    left = {name: state[name] for name in ("num_running_reqs", "num_waiting_reqs")}
    assert (left, state["num_used_tokens"]) == (dict.fromkeys(left, 0), 0)
    assert server.answers("/health"), server.log_text()[-4000:]
