"""The text that a server writes: half of it greedy, each answer cut behind its end."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from examples.training import write_text
from examples.training.data import Prompt, Sample, read_samples, write_prompts
from examples.training.writing import MAX_PROMPT_TOKENS

END = 2


class Tokenizer:
    """A token a character; a chat turn has a letter in front."""

    eos_token_id = END
    pad_token_id = END + 1

    def apply_chat_template(self, turns: list[dict[str, str]], **_: object) -> str:
        return "u" + turns[0]["content"]

    def __call__(self, text: str, **_: object) -> Any:
        return SimpleNamespace(input_ids=[ord(letter) for letter in text])


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A server that answers each prompt with its tokens reversed, an end, and one token more."""
    bodies: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/generate"
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            bodies.append(body)
            answers = [{"output_ids": [*ids[::-1], END, 9]} for ids in body["input_ids"]]
            content = json.dumps(answers).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Stays silent."""

    monkeypatch.setattr(
        write_text, "AutoTokenizer", SimpleNamespace(from_pretrained=lambda _: Tokenizer())
    )
    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", bodies
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_server_writes_greedy_and_sampled_text_by_turns(
    asked: tuple[str, list[dict[str, Any]]], tmp_path: Path
) -> None:
    url, bodies = asked
    prompts = [Prompt("chat", True, f"question {n}", "train") for n in range(4)]
    prompts += [Prompt("code", False, "def f(x):", "heldout"), Prompt("code", False, "x", "train")]
    prompts.append(Prompt("chat", True, "long " * MAX_PROMPT_TOKENS, "train"))
    write_prompts(tmp_path / "prompts.jsonl", prompts)
    arguments = ["--model", "M", "--prompts", str(tmp_path / "prompts.jsonl"), "--url", url]
    arguments += ["--out", str(tmp_path / "text.jsonl.xz"), "--batch", "2", "--new-tokens", "64"]
    assert write_text.main(arguments) == 0
    assert [body["sampling_params"]["temperature"] for body in bodies] == [0.0, 0.0, 0.7, 0.0]
    assert {body["sampling_params"]["max_new_tokens"] for body in bodies} == {64}
    samples = read_samples(tmp_path / "text.jsonl.xz")
    assert [sample.split for sample in samples] == ["heldout", *["train"] * 4]  # "x" is too short
    prompt = [ord(letter) for letter in "uquestion 0"]
    assert Sample([*prompt, *prompt[::-1], END], len(prompt), "chat", "train") in samples


def test_no_batch_starts_when_the_time_is_over(
    asked: tuple[str, list[dict[str, Any]]], tmp_path: Path
) -> None:
    url, bodies = asked
    write_prompts(tmp_path / "prompts.jsonl", [Prompt("chat", True, "why?")] * 4)
    arguments = ["--model", "M", "--prompts", str(tmp_path / "prompts.jsonl"), "--url", url]
    arguments += ["--out", str(tmp_path / "text.jsonl"), "--batch", "2", "--seconds", "-1"]
    assert write_text.main(arguments) == 0
    assert (bodies, read_samples(tmp_path / "text.jsonl")) == ([], [])


def test_held_out_text_is_of_the_temperature_asked_for(
    asked: tuple[str, list[dict[str, Any]]], tmp_path: Path
) -> None:
    url, bodies = asked
    write_prompts(tmp_path / "prompts.jsonl", [Prompt("chat", True, "why so?", "heldout")] * 2)
    arguments = ["--model", "M", "--prompts", str(tmp_path / "prompts.jsonl"), "--url", url]
    arguments += ["--out", str(tmp_path / "text.jsonl"), "--held-out-temperature", "0.7"]
    assert write_text.main(arguments) == 0
    assert [body["sampling_params"]["temperature"] for body in bodies] == [0.7]


def test_a_second_pass_swaps_the_kinds_and_leaves_held_out_text_as_it_is(
    asked: tuple[str, list[dict[str, Any]]], tmp_path: Path
) -> None:
    url, bodies = asked
    prompts = [Prompt("chat", True, f"question {n}", "train") for n in range(4)]
    prompts.append(Prompt("chat", True, "why so?", "heldout"))
    write_prompts(tmp_path / "prompts.jsonl", prompts)
    arguments = ["--model", "M", "--prompts", str(tmp_path / "prompts.jsonl"), "--url", url]
    arguments += ["--out", str(tmp_path / "text.jsonl"), "--batch", "2", "--passes", "2"]
    assert write_text.main(arguments) == 0
    temperatures = [body["sampling_params"]["temperature"] for body in bodies]
    assert temperatures == [0.0, 0.0, 0.7, 0.7, 0.0]
    asked_twice = [body["input_ids"] for body in bodies]
    assert asked_twice[1:3] == asked_twice[3:5]
