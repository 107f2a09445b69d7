"""The prompts of the second pair: seeded, different, in every domain and language."""

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from examples.qwen_coder import fetch_pair, held_out, train
from examples.qwen_coder import prompts as building
from examples.qwen_coder.prompts import SHARES, WORDS, build_prompts
from examples.server import Server
from examples.training import packing
from examples.training.measure import Acceptance
from examples.wheels import sha256_of

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


def test_every_domain_is_held_out_and_no_wording_is_one_of_training(
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
    templates = [
        each for kind in ("code", "json", "summary", "translation") for each in WORDS[kind]
    ]
    mine = (held_out.COMPLETE, held_out.REWRITE, held_out.FACTS, held_out.SUMMARISE)
    for wording in (*mine, held_out.TRANSLATE):
        assert not any(each.startswith(wording[:12]) for each in templates)
    code = [prompt for prompt in prompts if prompt.domain == "code"]
    assert [prompt.chat for prompt in code[:3]] == [False, True, True]
    assert all(any(name in prompt.text for prompt in code) for name in held_out.LANGUAGES)
    beginnings = [prompt.text for prompt in prompts if prompt.domain == "json" and not prompt.chat]
    assert [len(json.loads(text.rstrip().rstrip(",") + "]")) for text in beginnings] == [6, 6]


def test_requests_are_the_turns_of_all_domains_mixed() -> None:
    turns = [f"q{n}" for n in range(9)]
    requests = held_out.chat_requests(turns)
    texts = [request["messages"][0]["content"] for request in requests]
    assert sorted(texts) == turns != texts
    assert {request["temperature"] for request in requests} == {0}


def test_a_head_is_unpacked_once_and_whole_and_another_one_beside_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = SimpleNamespace(folder="coder", fetch=lambda cache: cache / "coder")
    monkeypatch.setattr(fetch_pair, "TARGET", target)
    monkeypatch.setattr(fetch_pair, "PACKED", tmp_path / "packed")
    stored = tmp_path / "packed" / packing.PACKED
    stored.parent.mkdir()
    made: list[Path] = []
    is_ended = True

    def unpack(_packed: Path, head: Path, model: Path) -> None:
        assert model == tmp_path / "coder"
        assert not head.exists()
        head.mkdir()
        made.append(head)
        if is_ended:
            raise KeyboardInterrupt

    monkeypatch.setattr(packing, "unpack", unpack)
    stored.write_bytes(b"one")
    with pytest.raises(KeyboardInterrupt):
        fetch_pair.main(["--cache", str(tmp_path)])
    is_ended = False
    heads = []
    for content in (b"one", b"one", b"two"):
        stored.write_bytes(content)
        assert fetch_pair.main(["--cache", str(tmp_path)]) == 0
        model, head = capsys.readouterr().out.split()[1::2]
        assert model == str(tmp_path / "coder")
        assert Path(head).is_dir()
        heads.append(head)
    assert heads[0] == heads[1] != heads[2]
    assert len(made) == 3


def test_the_shipped_head_is_the_one_the_readme_names_and_is_small() -> None:
    stored = fetch_pair.PACKED / packing.PACKED
    assert sha256_of(stored) in (fetch_pair.PACKED.parent / "README.md").read_text()
    assert stored.stat().st_size < 16e6


class Work:
    """What the command did, instead of doing it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.done = folder, list[str]()
        work = self

        class Serving(Server):
            def start(self) -> None:
                sent = self.command[: self.command.index("--host")]
                work.done.extend([" ".join(sent[-4:]), "start"])

            def wait_ready(self, timeout_s: float = 0.0) -> None:
                assert timeout_s == train.READY_TIMEOUT_S
                work.done.append("ready")

            def stop(self) -> None:
                work.done.append("stop")

        monkeypatch.setattr(train, "Server", Serving)
        monkeypatch.setattr(train, "load_titles", lambda _cache: TITLES)
        monkeypatch.setattr(train.write_text, "main", self.write)
        monkeypatch.setattr(train.subprocess, "Popen", self.learn)
        monkeypatch.setattr(train.packing, "pack", self.pack)
        monkeypatch.setattr(train.packing, "unpack", lambda *_: None)
        monkeypatch.setattr(train.measure, "measured", self.measured)

    def write(self, arguments: list[str]) -> None:
        self.done.append("write")
        assert arguments[arguments.index("--batch") + 1] == "4096"
        (self.folder / "text.jsonl").touch()

    def learn(self, command: list[str], env: dict[str, str]) -> Any:
        head = Path(command[command.index("--out") + 1])
        self.done.append(f"train {head.name} on {env['CUDA_VISIBLE_DEVICES']}")
        is_ended = head.name == "head-1" and self.done.count(self.done[-1]) == 1
        if not is_ended:
            head.mkdir()
            (head / "config.json").touch()
        assert command[-4:] == [*train.SETTINGS[int(head.name[-1])], "--max-len", "256"]
        return SimpleNamespace(wait=lambda: int(is_ended))

    def pack(self, head: Path, packed: Path, _target: Path, bits: int) -> None:
        self.done.append(f"{head.name} {packed.name}")

    def measured(self, _target: Path, heads: list[Path], _text: Path) -> list[Any]:
        accepted = [2.0 if head.name == "head-1" else 1.5 for head in heads]
        return [{"chat": Acceptance(0.5, each, (0.5, 0.5), 9)} for each in accepted]


def test_one_command_makes_what_is_missing_and_stores_the_best_head(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    work = Work(tmp_path / "work", monkeypatch)
    wanted = [str(work.folder), "--target", "M", "--prompts", "100", "--gpus", "2"]
    wanted += ["--server-args=--device cpu", "--max-len", "256"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(RuntimeError, match="the training of head-1 ended early; start again"):
        train.main(wanted)
    served = ["--dp-size 2 --device cpu", "start", "ready", "write", "stop"]
    assert work.done == [*served, "train head-0 on 0", "train head-1 on 1"]
    work.done.clear()
    work.done.append("train head-1 on 1")
    assert train.main(wanted) == 0
    assert work.done[1:] == ["train head-1 on 1", "head-1 packed-4", "head-1 packed-8"]
    assert len((work.folder / "prompts.jsonl").read_text().splitlines()) == 100
    found = json.loads((work.folder / "acceptance.json").read_text())
    assert list(found) == ["head-0", "head-1", "head-1 in 4 bits", "head-1 in 8 bits"]


def test_heads_are_trained_on_the_gpus_that_are_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    assert train.gpu_names(2) == ["4", "5"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert train.gpu_names(2) == ["0", "1"]


def test_a_flag_that_training_does_not_know_is_refused_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        train.main([str(tmp_path / "work"), "--no-such-flag", "1"])
    assert not (tmp_path / "work").exists()
    assert "--no-such-flag" in capsys.readouterr().err
