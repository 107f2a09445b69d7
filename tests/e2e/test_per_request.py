"""What a request sets for itself holds for it, however it is asked, and never changes its text.

The server's own policy chooses among rounds of 0 to 5 steps. One server packs whatever it can, so
that every request with a limit is verified no further; the other packs nothing.
"""

import json
import random
import urllib.error
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from tests.e2e.asking_more import ask
from tests.e2e.fleet import Fleet
from tests.e2e.launches import CONFIGS, PACKED, adaptive
from tests.e2e.sampling import RELAXED, RELAXED_PROMPTS
from tests.e2e.server import OURS, Launch, Server
from tests.e2e.test_more_runs import p_values
from tests.e2e.traffic import (
    PROMPTS,
    SCHEMA,
    Answers,
    check_identical,
    check_idle_and_whole,
    greedy,
    running,
)

NUM_TOKENS = 48
NUM_SOAKED, NUM_CLIENTS, SEED = 160, 12, 49
NUM_FLOODED = 16
NUM_SAMPLES, NUM_DRAWN, NUM_CHOICES = 476, 12, 4
LEAST_P = 1e-3 / NUM_DRAWN  # of a position: one test in a thousand fails by chance


def looked_at(base: str, host: str, *, overlap: bool, packs: bool) -> Launch:
    """ADAPTIVE_EAGLE by its own policy, under the host's own checks."""
    config = PACKED if packs else CONFIGS / "unpacked.json"
    launch = adaptive(base, host=host, overlap=overlap, config=config)
    plugins = (OURS, *(("always_packed",) if packs else ()), "limits")
    return replace(launch, name=f"{base}-limits-{config.stem}", plugins=plugins, strict=True)


CASES = [
    looked_at("eagle3", "0.5.21", overlap=True, packs=True),
    looked_at("eagle3", "0.5.20", overlap=True, packs=False),
    looked_at("eagle", "0.5.22", overlap=False, packs=True),
    looked_at("eagle3", "0.5.23", overlap=True, packs=False),
]
OFF = adaptive("eagle3", host="0.5.23", overlap=True, config=CONFIGS / "requests.json")
OFF = replace(OFF, name="eagle3-requests", plugins=(OURS, "limits"))
NO_ZERO = adaptive("eagle", overlap=True, config=CONFIGS / "no_zero.json")
NO_ZERO = replace(NO_ZERO, name="eagle-no-zero-here")

pytestmark = pytest.mark.e2e
of_all = pytest.mark.parametrize("launch", CASES, ids=str, scope="module")


def limited(max_steps: int | None, num_tokens: int = NUM_TOKENS, **more: Any) -> dict[str, Any]:
    """Greedy sampling of a request with a limit."""
    settings = {} if max_steps is None else {"max_steps": max_steps}
    return greedy(num_tokens, custom_params={"adaptive_spec": settings}, **more)


def with_exact(**sampling: Any) -> dict[str, Any]:
    return greedy(NUM_TOKENS, custom_params={"adaptive_spec": {"exact": True}}, **sampling)


# -- questions, asked of a server and of no speculation --


def alone(server: Server) -> Answers:
    """Native: one after the other, whole and streamed, with every kind of limit."""
    found: Answers = {}
    for stream in (False, True):
        for max_steps in (0, 1, 3, 100):
            body = {"text": PROMPTS[0], "stream": stream, "sampling_params": limited(max_steps)}
            found[f"{stream} {max_steps}"] = ask(server, body)["output_ids"]
    return found


def together(server: Server) -> Answers:
    """Native: a batch of unlike limits; two samples of one prompt; a grammar beside them."""
    limits = [0, 1, None, 2, 0, None]
    sampling = [limited(each) for each in limits]
    replies = server.post("/generate", {"text": list(PROMPTS), "sampling_params": sampling})
    found = {f"batch {number}": reply["output_ids"] for number, reply in enumerate(replies)}
    two = server.post("/generate", {"text": PROMPTS[1], "sampling_params": limited(1, n=2)})
    found |= {f"of two {number}": reply["output_ids"] for number, reply in enumerate(two)}
    schema = {"json_schema": json.dumps(SCHEMA), "ignore_eos": False}
    sampling = [
        limited(number % 3, 120, **schema) if number % 2 else limited(number % 3)
        for number in range(len(PROMPTS))
    ]
    replies = server.post("/generate", {"text": list(PROMPTS), "sampling_params": sampling})
    return found | {f"grammar {number}": reply["text"] for number, reply in enumerate(replies)}


def by_openai(server: Server) -> Answers:
    """The OpenAI-compatible endpoints, which take the same object in the body."""
    common = {"model": "tiny", "temperature": 0, "max_tokens": NUM_TOKENS, "ignore_eos": True}
    common["custom_params"] = {"adaptive_spec": {"max_steps": 1}}
    message = {"role": "user", "content": "hi"}
    chat = server.post("/v1/chat/completions", {**common, "messages": [message]})
    text = server.post("/v1/completions", {**common, "prompt": "once upon", "n": 2})
    return {
        "chat": chat["choices"][0]["message"]["content"],
        "completions": [choice["text"] for choice in text["choices"]],
    }


def exactly(server: Server) -> Answers:
    """Requests whose parameters verify does not apply to every token, alone and beside others.

    In a batch penalised answers of no speculation itself change from run to run (sampling.py).
    """
    found: Answers = {}
    for name, parameters in RELAXED.items():
        body = {"text": RELAXED_PROMPTS[0], "sampling_params": with_exact(**parameters)}
        found[name] = server.post("/generate", body)["output_ids"]
    penalised = [with_exact(frequency_penalty=2.0), with_exact(presence_penalty=2.0)]
    sampling = [*penalised, *(limited(number) for number in (0, 1, 3))]
    texts = [RELAXED_PROMPTS[1]] * 2 + list(PROMPTS[:3])
    replies = server.post("/generate", {"text": texts, "sampling_params": sampling})
    return found | {f"beside {number}": replies[number]["output_ids"] for number in (2, 3, 4)}


def drawn(server: Server) -> list[list[int]]:
    """Draws answers to one prompt, exactly, beside a greedy request that would be drafted for."""
    return [ids for _ in range(NUM_SAMPLES // 7) for ids in _seven(server)]


def _seven(server: Server) -> list[list[int]]:
    sampling = {
        "temperature": 2.0,
        "top_k": NUM_CHOICES,
        "max_new_tokens": NUM_DRAWN,
        "ignore_eos": True,
        "custom_params": {"adaptive_spec": {"exact": True}},
    }
    body = {"text": [PROMPTS[0]] * 8, "sampling_params": [sampling] * 7 + [greedy(NUM_DRAWN)]}
    return [reply["output_ids"] for reply in server.post("/generate", body)[:7]]


def soaked(server: Server) -> Answers:
    """Random limits, lengths and prompts from many clients, some of whom hang up."""
    draws = random.Random(SEED)
    drawn = [
        (
            f"soak-{number:04d}",
            draws.choice(PROMPTS),
            draws.choice(({}, {"max_steps": draws.randrange(6)}, {"exact": True})),
            draws.choice((1, 2, 7, draws.randrange(10, 60))),
            draws.random() < 0.2,
        )
        for number in range(NUM_SOAKED)
    ]

    def send(request: tuple[str, str, dict[str, Any], int, bool]) -> list[int]:
        rid, text, settings, num_tokens, hangs_up = request
        params = {"custom_params": {"adaptive_spec": settings}}
        if hangs_up:
            with running(server, rid, text, num_tokens + 40, **params):
                return []
        body = {"text": text, "rid": rid, "sampling_params": greedy(num_tokens, **params)}
        ids: list[int] = server.post("/generate", body)["output_ids"]
        return ids

    with ThreadPoolExecutor(NUM_CLIENTS) as clients:
        ids = list(clients.map(send, drawn))
    return {rid: found for (rid, *_), found in zip(drawn, ids, strict=True)}


# -- figures --


def figures(server: Server) -> dict[str, Any]:
    check_idle_and_whole(server)
    spec: dict[str, Any] = server.internal_state()["adaptive_spec"]
    return spec


def deeper_rounds(spec: dict[str, Any], steps: int) -> int:
    return sum(count for label, count in spec["rounds"].items() if int(label) > steps)


@of_all
@pytest.mark.parametrize("question", [alone, together, by_openai, exactly, soaked])
def test_text_is_that_of_no_speculation(fleet: Fleet, launch: Launch, question: Any) -> None:
    check_identical(*fleet.compare(launch, question))


@of_all
def test_limits_and_exactness_held_in_every_round(fleet: Fleet, launch: Launch) -> None:
    for question in (alone, together, exactly, soaked):
        fleet.ask_once(launch, question)
    spec = figures(fleet.use(launch))
    seen = fleet.use(launch).internal_state()["e2e_limits"]
    print(seen, spec["rounds"], spec["packed_rounds"], spec["requests"])
    assert seen["limited"] > 100
    assert seen["exact"] > 50
    assert (seen["too_deep"], seen["beyond"], seen["drafted"]) == (0, 0, 0), seen
    if spec["why_not_packed"] is None:
        assert seen["rows"] > seen["none"] > 20, seen
    assert deeper_rounds(spec, 1) > 0, "requests without a limit drafted on"
    assert spec["exact_rounds"]["penalties"] > 20
    assert spec["requests"]["max_steps"] > 60
    assert spec["requests"]["exact"] > 20
    assert spec["requests"]["default"] == spec["requests"]["ignored"] == 0
    assert spec["fallbacks"] == {"policy_error": 0, "feedback_mismatch": 0}


@pytest.mark.parametrize("launch", CASES[:1], ids=str, scope="module")
def test_drawn_answers_are_distributed_as_without_speculation(fleet: Fleet, launch: Launch) -> None:
    """On a CPU verify draws nothing: chi-square of two samples, by position, would find it."""
    got, reference = fleet.compare(launch, drawn)
    assert len({tuple(ids) for ids in got}) > NUM_SAMPLES / 4
    by_position = p_values(got, reference)
    assert len(by_position) == NUM_DRAWN
    assert min(by_position) >= LEAST_P, by_position
    assert figures(fleet.use(launch))["exact_rounds"]["drawn"] > NUM_SAMPLES / 7


@of_all
def test_a_request_alone_drafts_no_deeper_and_is_told_so(fleet: Fleet, launch: Launch) -> None:
    server = fleet.use(launch)
    for max_steps in (0, 1):
        before = figures(server)
        body = {"text": PROMPTS[2], "sampling_params": limited(max_steps)}
        meta = server.post("/generate", body)["meta_info"]
        after = figures(server)
        assert meta["adaptive_spec"] == {"max_steps": max_steps}
        assert deeper_rounds(after, max_steps) == deeper_rounds(before, max_steps)
        assert after["requests"]["max_steps"] == before["requests"]["max_steps"] + 1
    meta = server.post("/generate", {"text": "a", "sampling_params": with_exact()})["meta_info"]
    assert meta["adaptive_spec"] == {"exact": True}
    meta = server.post("/generate", {"text": "a", "sampling_params": greedy(4)})["meta_info"]
    assert "adaptive_spec" not in meta


@of_all
def test_a_flood_of_exact_requests_costs_what_no_speculation_costs(
    fleet: Fleet, launch: Launch
) -> None:
    """While one of them runs no draft is made nor verified, and no token takes a round more."""
    server = fleet.use(launch)
    before = figures(server)
    sampling = with_exact(frequency_penalty=1.0)
    texts = [f"{PROMPTS[number % len(PROMPTS)]} {number}" for number in range(NUM_FLOODED)]
    server.post("/generate", {"text": texts, "sampling_params": sampling})
    after = figures(server)
    assert deeper_rounds(after, 0) == deeper_rounds(before, 0)
    assert after["num_proposed_drafts"] == before["num_proposed_drafts"]
    gained = after["num_request_rounds"]["0"] - before["num_request_rounds"]["0"]
    assert gained <= NUM_FLOODED * NUM_TOKENS
    server.post("/generate", {"text": PROMPTS[0], "sampling_params": greedy(64)})
    assert figures(server)["exact_rounds"] == after["exact_rounds"], "nothing is held any more"


# -- wrong values --

WRONG = {
    "a number": (3, "adaptive_spec is 3;"),
    "a text": ({"max_steps": "three"}, 'adaptive_spec.max_steps is "three";'),
    "negative": ({"max_steps": -1}, "adaptive_spec.max_steps is -1;"),
    "a truth": ({"max_steps": True}, "adaptive_spec.max_steps is true;"),
    "a fraction": ({"max_steps": 1.5}, "adaptive_spec.max_steps is 1.5;"),
    "nested": ({"max_steps": [[1]]}, "adaptive_spec.max_steps is [[1]];"),
    "huge": ({"max_steps": 10**30}, "adaptive_spec.max_steps is 1e+30;"),  # the host's JSON
    "not a truth": ({"exact": "yes"}, 'adaptive_spec.exact is "yes";'),
    "misspelt": ({"max_step": 3}, "did you mean max_steps?"),
}


def refused(server: Server, path: str, body: dict[str, Any]) -> str:
    """Returns the sentence that a request is refused with, a 400."""
    with pytest.raises(urllib.error.HTTPError) as caught:
        server.post(path, body)
    assert caught.value.code == 400
    answer = json.loads(caught.value.read())
    return str(answer.get("error", answer)["message"])


@of_all
def test_a_wrong_value_is_a_400_and_nothing_else_is_lost(fleet: Fleet, launch: Launch) -> None:
    server = fleet.use(launch)
    beside = {"text": PROMPTS[0], "sampling_params": greedy(200)}
    expected = ask(fleet.use(launch.reference()), beside)["output_ids"]
    server = fleet.use(launch)
    with ThreadPoolExecutor(1) as client:
        answer = client.submit(ask, server, beside)
        for settings, words in WRONG.values():
            wrong = {"adaptive_spec": settings}
            sampling = greedy(4, custom_params=wrong)
            chat = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
            sentences = [
                refused(server, "/generate", {"text": "a", "sampling_params": sampling}),
                refused(server, "/v1/chat/completions", {**chat, "custom_params": wrong}),
                refused(
                    server,
                    "/generate",
                    {"text": ["a", "b"], "sampling_params": [greedy(4), sampling]},
                ),
            ]
            for sentence in sentences:
                assert words in sentence
                assert "; allowed: " in sentence
                assert "; fix: " in sentence
        assert answer.result()["output_ids"] == expected
    streamed = {"text": "a", "stream": True, "sampling_params": sampling}
    assert "max_step" in json.dumps(server.post("/generate", streamed))
    check_idle_and_whole(server)


# -- what the operator sets --


@pytest.mark.parametrize("launch", [OFF], ids=str)
def test_an_operator_sets_a_limit_and_lets_no_client_set_one(fleet: Fleet, launch: Launch) -> None:
    check_identical(*fleet.compare(launch, alone))
    check_identical(*fleet.compare(launch, by_openai))
    server = fleet.use(launch)
    meta = ask(server, {"text": "a", "sampling_params": limited(5)})["meta_info"]
    assert meta["adaptive_spec"] == {"max_steps": 1}
    spec = figures(server)
    assert deeper_rounds(spec, 1) == 0
    assert spec["requests"]["ignored"] > 8
    assert spec["requests"]["default"] == spec["requests"]["ignored"]
    assert spec["requests"]["max_steps"] == 0
    sentence = refused(server, "/generate", {"text": "a", "sampling_params": with_exact()})
    assert "adaptive_spec.exact is true" in sentence
    assert '"per_request": true' in sentence


@pytest.mark.parametrize("launch", [NO_ZERO], ids=str)
def test_what_no_round_serves_exactly_is_refused(fleet: Fleet, launch: Launch) -> None:
    server = fleet.use(launch)
    penalised = with_exact(frequency_penalty=1.0)
    sentence = refused(server, "/generate", {"text": "a", "sampling_params": penalised})
    assert "penalties" in sentence
    assert 'remove "exact"' in sentence
    assert ask(server, {"text": "a", "sampling_params": with_exact()})["meta_info"]
    assert figures(server)["requests"]["refused"] == 1
