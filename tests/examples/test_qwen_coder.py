"""The prompts of the second pair: seeded, different, in every domain and language."""

import json
from collections import Counter
from pathlib import Path

import pytest

from examples.qwen_coder import held_out, train
from examples.qwen_coder import prompts as building
from examples.qwen_coder.prompts import SHARES, WORDS, build_prompts

TITLES = [f"Subject {n}" for n in range(300)]


def test_prompts_repeat_with_their_seed_and_none_comes_twice() -> None:
    prompts = build_prompts(TITLES, 400, seed=3)
    assert prompts == build_prompts(TITLES, 400, seed=3)
    assert prompts != build_prompts(TITLES, 400, seed=4)
    assert len({prompt.text for prompt in prompts}) == 400
    assert sum(prompt.split == "heldout" for prompt in prompts) == 20
    domains = Counter(prompt.domain for prompt in prompts)
    assert domains == {domain: round(400 * share) for domain, share in SHARES.items()}
    asked = " ".join(prompt.text for prompt in prompts)
    assert all(language in asked for language in WORDS["languages"])
    fields = ("{language}", "{task}", "{keys}", "{text}", "{tongue}", "{0}")
    assert not any(field in asked for field in fields)
    assert any(not prompt.chat for prompt in prompts)  # text to be continued


def test_more_prompts_than_there_are_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "SHARES", {"chat": 1.0})
    monkeypatch.setitem(WORDS, "chat", ["What is {0}?"])
    with pytest.raises(ValueError, match="3 different prompts of a kind, 10 wanted; ask for fewer"):
        build_prompts(TITLES[:3], 10)


def test_every_domain_is_held_out_in_words_that_were_not_trained_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    problems = [
        {
            "task_id": f"HumanEval/{n}",
            "entry_point": f"f{n}",
            "prompt": f"def f{n}(x: int) -> int:\n",
            "canonical_solution": "    return x\n",
        }
        for n in range(20)
    ]
    stories = [f"Ann has {n} pears." for n in range(6)]
    questions = [
        {"category": kind, "turns": [f"A question of {kind}"]}
        for kind in ("coding", "stem", "math")
    ]
    answers = ["It is a long story. " * 20, "short", "It is a long story. " * 20]
    for name, rows in (
        ("human_eval", problems),
        ("gsm8k", stories),
        ("mt_bench_questions", questions),
        ("mt_bench_answers", answers),
        ("truthful_qa", ["Is it so?"]),
    ):
        monkeypatch.setattr(held_out, name, lambda _cache, rows=rows: rows)
    prompts = held_out.held_out_prompts(tmp_path)
    assert Counter(prompt.domain for prompt in prompts) == {
        "chat": 2,
        "code": 20,
        "json": 2 + 6,
        "maths": 6,
        "summary": 1,
        "translation": 6,
    }
    assert {prompt.split for prompt in prompts} == {"heldout"}
    code = [prompt for prompt in prompts if prompt.domain == "code"]
    assert [prompt.chat for prompt in code[:3]] == [False, True, True]
    assert all(any(name in prompt.text for prompt in code) for name in held_out.LANGUAGES)
    beginnings = [prompt.text for prompt in prompts if prompt.domain == "json" and not prompt.chat]
    assert [len(json.loads(text.rstrip().rstrip(",") + "]")) for text in beginnings] == [6, 6]


def test_one_command_makes_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    done: list[str] = []

    class Serving:
        def __init__(self, command: list[str], *_: object) -> None:
            self.command = command

        def start(self) -> None:
            done.append(" ".join(self.command[-2:]))

        def wait_ready(self, _timeout_s: float) -> None:
            done.append("ready")

        def stop(self) -> None:
            done.append("stop")

    def write(arguments: list[str]) -> None:
        done.append("write")
        (tmp_path / "work" / "text.jsonl.xz").touch()

    def learn(arguments: list[str]) -> None:
        done.append("train")
        assert arguments[-2:] == ["--batch-size", "4"]
        if done.count("train") == 1:
            raise KeyboardInterrupt
        (tmp_path / "work" / "head").mkdir()
        (tmp_path / "work" / "head" / "config.json").touch()

    monkeypatch.setattr(train, "Server", Serving)
    monkeypatch.setattr(train, "load_titles", lambda _cache: TITLES)
    monkeypatch.setattr(train.write_text, "main", write)
    monkeypatch.setattr(train.train_head, "main", learn)
    monkeypatch.setattr(
        train.packing, "pack", lambda _head, packed, _target, bits: done.append(packed.name)
    )
    wanted = [str(tmp_path / "work"), "--target", "M", "--prompts", "100", "--batch-size", "4"]
    wanted += ["--server-args", "--device cpu"]
    with pytest.raises(KeyboardInterrupt):
        train.main(wanted)
    written = ["--device cpu", "ready", "write", "stop"]
    assert done == [*written, "train"]
    assert train.main(wanted) == 0
    assert done == [*written, "train", "train", "packed-4", "packed-8"]
    assert len((tmp_path / "work" / "prompts.jsonl").read_text().splitlines()) == 100
