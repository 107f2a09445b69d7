"""The demo's arms: servers that differ in how they speculate and in nothing else."""

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from examples.demo import run
from examples.demo.arms import (
    BUILTIN,
    CANDIDATES,
    EMA,
    GOODPUT_CONFIG,
    NONE,
    OURS,
    STATIC,
    arms,
)
from examples.demo.screen import Screen
from examples.demo.traffic import Answer, Snapshot
from sglang_adaptive_spec.config.schema import load_config

MODEL = Path("model")


@pytest.mark.parametrize(
    ("is_full", "names"),
    [
        (False, [NONE, STATIC, BUILTIN, OURS]),
        (True, [NONE, "static 1", STATIC, "static 5", BUILTIN, EMA, OURS]),
    ],
)
def test_ours_comes_last_after_sglang_s_own(is_full: bool, names: list[str]) -> None:
    made = arms(MODEL, is_full)
    assert [arm.name for arm in made] == names
    assert [arm.name for arm in made if arm.is_ours] == [n for n in names if n in (EMA, OURS)]
    assert [arm.name for arm in made if arm.is_fixed] == [
        name for name in names if name == NONE or name.startswith("static")
    ]


def test_every_arm_starts_from_the_arguments_of_no_speculation() -> None:
    base, *others = (arm.arguments for arm in arms(MODEL, is_full=True))
    assert "--sleep-on-idle" in base
    assert not any("speculative" in argument for argument in base)
    assert all(args[: len(base)] == base for args in others)


def test_all_that_adapt_have_the_same_candidates() -> None:
    written = json.loads(CANDIDATES.read_text())
    assert written == {"policy": "ema", "1": {"candidate_steps": [0, 1, 3, 5]}}
    assert json.loads(GOODPUT_CONFIG.read_text()) == {**written, "policy": "goodput"}
    assert load_config(str(CANDIDATES)).policy == "ema"


class FakeServer:
    """Notes when it is started, ready and stopped."""

    events: list[str]

    def __init__(self, name: str) -> None:
        self.name = name

    def start(self) -> None:
        self.events.append(f"start {self.name}")

    def wait_ready(self) -> None:
        self.events.append(f"ready {self.name}")
        if self.name == "broken":
            raise RuntimeError("the server ended")

    def stop(self) -> None:
        self.events.append(f"stop {self.name}")


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    noted: list[str] = []

    class Fakes:
        @staticmethod
        def of_sglang(_args: Any, log: Path, _environment: Any) -> FakeServer:
            server = FakeServer(log.stem)
            server.events = noted
            return server

    monkeypatch.setattr(run, "Server", Fakes)
    return noted


def screen() -> Screen:
    return Screen(1, Console(file=io.StringIO()))


def test_ours_starts_when_all_others_are_ready(events: list[str], tmp_path: Path) -> None:
    with run.serving(arms(MODEL), tmp_path, screen()) as servers:
        assert len(servers) == 4
        assert events[:3] == ["start none", "start static-3", "start SGLang-adaptive"]
        assert set(events[3:6]) == {"ready none", "ready static-3", "ready SGLang-adaptive"}
        assert events[6:] == ["start ADAPTIVE_EAGLE", "ready ADAPTIVE_EAGLE"]
    assert len([each for each in events if each.startswith("stop")]) == 4


def test_a_server_that_ends_takes_the_others_with_it(events: list[str], tmp_path: Path) -> None:
    broken = [arms(MODEL)[0], arms(MODEL)[1]._replace(name="broken")]
    with (
        pytest.raises(RuntimeError, match="the server ended"),
        contextlib.ExitStack() as stack,
    ):
        stack.enter_context(run.serving(broken, tmp_path, screen()))
    assert {"stop none", "stop broken"} <= set(events)


def test_a_log_has_a_line_an_answer_and_a_terminal_the_turn_under_way() -> None:
    said = io.StringIO()
    with Screen(2, Console(file=said, width=120)) as shown:
        shown.polled(OURS, Snapshot(1.0, "JSON", 5))
        shown.answered(OURS, Answer("JSON", "JSON template 1", (1, 2, 3), 0.5, 2, 1))
    assert said.getvalue().split() == (
        [
            "JSON",
            "JSON",
            "template",
            "1",
            "ADAPTIVE_EAGLE",
            "6.0",
            "tok/s",
            "accept",
            "length",
            "1.50",
        ]
    )
    seen = io.StringIO()
    with Screen(2, Console(file=seen, width=120, force_terminal=True)) as shown:
        shown.polled(OURS, Snapshot(1.0, "JSON", 5))
        shown.answered(OURS, Answer("JSON", "JSON template 1", (1, 2, 3), 0.5, 2, 1))
    assert "1/2" in seen.getvalue()
    assert "JSON: ADAPTIVE_EAGLE, 5 steps" in seen.getvalue()
