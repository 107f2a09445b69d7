"""The matrix run: every arm in every cell, nobody always first, what is missing is counted."""

import argparse
import json
import time
import types
from pathlib import Path
from typing import Any

import pytest

from benchmarks.lab import visits as lab_visits
from benchmarks.lab.arms import ARMS
from benchmarks.lab.fleet import Visit
from benchmarks.lab.load import Window
from benchmarks.lab.visits import visit_cells
from benchmarks.studies.matrix import __main__ as matrix
from benchmarks.studies.matrix.__main__ import parser
from tests.lab.matrix_records import run_record

PLAN: Any = types.SimpleNamespace(prompt_tokens=8)


def arguments(*words: str) -> argparse.Namespace:
    """A parsed command over two small cells."""
    return parser().parse_args(
        ["run", "--arms", "none,goodput", "--out", "out", "--batches", "1,4",
         "--acceptances", "0.7,mixed", *words]
    )  # fmt: skip


def engine(name: str) -> Any:
    """An engine as far as the loop knows it."""
    return types.SimpleNamespace(arm=ARMS[name], pid=0)


@pytest.fixture
def visits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Visit, int]]:
    """The visits that were made; those of static-7 fail."""
    made: list[tuple[str, Visit, int]] = []

    def visit(engine: Any, wanted: Visit, prompts: Any, _limit: int) -> tuple[Any, Any]:
        if engine.arm.name == "static-7":
            raise RuntimeError("no full batch")
        made.append((engine.arm.name, wanted, len(prompts)))
        return [], {}

    def windows(_rounds: Any, _size: int, _settle: float, _window: float, count: int) -> Any:
        return [Window(10, 0.5, {"3": 5}, 0)] * count

    monkeypatch.setattr(lab_visits, "visit_rounds", visit)
    monkeypatch.setattr(lab_visits, "timed_windows", windows)
    return made


def test_every_arm_visits_every_cell_as_often_as_asked(
    visits: list[tuple[str, Visit, int]],
) -> None:
    windows: list[dict[str, Any]] = []
    kept: list[int] = []
    engines = [engine("none"), engine("goodput")]
    args = arguments("--repeats", "2", "--first-repeat", "3", "--windows", "2")
    num_missing = visit_cells(
        engines, PLAN, args, time.monotonic() + 60, windows, lambda: kept.append(len(windows))
    )
    assert num_missing == 0
    cells = {(each["batch_size"], each["acceptance"]) for each in windows}
    assert cells == {(1, "0.7"), (4, "0.7"), (4, "mixed")}
    assert len(windows) == 3 * 2 * 2 * 2  # cells, arms, visits, windows
    assert {each["repeat"] for each in windows} == {3, 4}
    assert kept == [8, 16, 24]  # written after every cell
    assert all(number == wanted.batch_size for _, wanted, number in visits)


def test_arms_take_turns_in_being_first(visits: list[tuple[str, Visit, int]]) -> None:
    engines = [engine("none"), engine("goodput")]
    visit_cells(engines, PLAN, arguments("--repeats", "2"), time.monotonic() + 60, [], lambda: None)
    assert [name for name, _, _ in visits[:4]] == ["none", "goodput", "goodput", "none"]


def test_every_arm_settles_alike(visits: list[tuple[str, Visit, int]]) -> None:
    engines = [engine("none"), engine("goodput")]
    visit_cells(engines, PLAN, arguments(), time.monotonic() + 60, [], lambda: None)
    by_size: dict[int, set[float]] = {wanted.batch_size: set() for _, wanted, _ in visits}
    for _, wanted, _ in visits:
        by_size[wanted.batch_size].add(wanted.settle_s)
    assert by_size == {1: {2.0}, 4: {0.5}}


def test_failed_visits_and_those_after_the_deadline_are_counted(
    visits: list[tuple[str, Visit, int]], capsys: pytest.CaptureFixture[str]
) -> None:
    engines = [engine("static-7"), engine("none")]
    late = time.monotonic() + 60
    assert visit_cells(engines, PLAN, arguments(), late, [], lambda: None) == 3
    assert "static-7 1 0.7: no full batch" in capsys.readouterr().out
    assert len(visits) == 3
    assert visit_cells(engines, PLAN, arguments(), 0.0, [], lambda: None) == 6
    assert len(visits) == 3


def test_merge_writes_the_result_and_the_plot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "a.json").write_text(json.dumps(run_record(batch_sizes=(4,))))
    args = parser().parse_args(
        ["merge", str(tmp_path / "a.json"), "--result", str(tmp_path / "m.json"),
         "--plot", str(tmp_path / "m.svg")]
    )  # fmt: skip
    assert matrix.merge(args) == 0
    assert len(json.loads((tmp_path / "m.json").read_text())["cells"]) == 6
    assert (tmp_path / "m.svg").read_text().lstrip().startswith("<?xml")
    assert "goodput / best static, geometric mean" in capsys.readouterr().out
