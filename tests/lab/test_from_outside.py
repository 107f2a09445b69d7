"""SGLang's benchmark client: who asks what, what is kept of it, and what follows."""

import importlib.util
import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchmarks.lab.fleet import Engine
from benchmarks.studies import from_outside
from benchmarks.studies.from_outside import (
    KEPT,
    attempt,
    build_result,
    check_from_outside,
    client_environment,
    figure_table,
    requests_of,
)
from tests.lab.records import PROVENANCE

NUMBERS = dict.fromkeys(KEPT, 10.0)
ENGINE = cast(
    Engine,
    SimpleNamespace(arm=SimpleNamespace(name="none"), server=SimpleNamespace(url="http://u")),
)


def passes(ours: float) -> list[dict[str, Any]]:
    """Three passes of two cells each, ours so many times as fast."""
    return [
        {
            "arm": arm,
            "concurrency": concurrency,
            "repeat": repeat,
            **NUMBERS,
            "output_throughput": 100.0 * repeat * factor,
        }
        for arm, factor in (("none", 1.0), ("goodput", ours))
        for concurrency in (8, 1)
        for repeat in (1, 2, 3)
    ]


def test_ratios_follow_from_passes_of_the_same_repeat() -> None:
    result = build_result(PROVENANCE, [], passes(1.5))
    assert list(result["cells"]) == ["1", "8"]
    cell = result["cells"]["8"]
    assert cell["over_none"] == {"ratio": 1.5, "interval": [1.5, 1.5]}
    assert cell["means"]["goodput"]["output_throughput"] == 300.0
    assert figure_table(result).count("met") == 3  # two cells and all
    assert check_from_outside(result) == []
    result["cells"]["8"]["over_none"]["ratio"] = 1.6
    assert check_from_outside(result) != []
    assert figure_table(build_result(PROVENANCE, [], passes(0.9))).count("MISSED") == 3


def test_a_cell_that_lacks_an_arm_is_left_out() -> None:
    alone = [each for each in passes(1.0) if each["arm"] == "none" or each["concurrency"] == 1]
    assert list(build_result(PROVENANCE, [], alone)["cells"]) == ["1"]


def test_every_repeat_draws_other_requests_and_each_client_has_some(tmp_path: Path) -> None:
    lines, asked = [json.dumps({"seed": number}) for number in range(100)], tmp_path / "asked"
    drawn = []
    for concurrency, repeat in ((1, 1), (1, 2), (1, 1), (20, 1), (256, 1)):
        number = requests_of(lines, concurrency, repeat, asked)
        drawn.append(asked.read_text().splitlines())
        assert len(set(drawn[-1])) == number
    assert [len(each) for each in drawn] == [16, 16, 16, 40, 100]
    assert drawn[0] == drawn[2] != drawn[1]
    assert all(json.loads(line)["stream_options"] == {"include_usage": True} for line in drawn[0])


@pytest.mark.parametrize("is_there", [True, False])
def test_the_client_starts_where_a_module_is_missing_that_it_does_not_need(
    is_there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object() if is_there else None)
    monkeypatch.setenv("PYTHONPATH", "mine")
    paths = client_environment(tmp_path)["PYTHONPATH"].split(os.pathsep)
    assert paths == (["mine"] if is_there else [str(tmp_path), "mine"])
    assert (tmp_path / "datasets.py").exists() != is_there


@pytest.mark.parametrize(
    ("code", "completed", "is_kept"), [(0, 16, True), (1, 16, False), (0, 15, False)]
)
def test_a_pass_counts_if_the_client_had_every_answer(
    code: int, completed: int, is_kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "found.jsonl").write_text("an earlier pass\n")

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        found = Path(command[command.index("--output-file") + 1])
        assert not found.exists()
        found.write_text(json.dumps({**NUMBERS, "completed": completed, "server_info": {}}))
        assert "--disable-ignore-eos" in command
        return subprocess.CompletedProcess(command, code, "", "")

    monkeypatch.setattr(from_outside.subprocess, "run", run)
    got = attempt(ENGINE, {}, tmp_path / "requests.jsonl", 8, 16, 60.0)
    assert got == ({**NUMBERS, "completed": completed} if is_kept else None)


def test_a_client_that_hangs_or_ends_loses_its_pass_alone_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def hang(command: list[str], timeout: float, **_: Any) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    def end(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "no such tokenizer")

    for run, said in ((hang, "TimeoutExpired"), (end, "no such tokenizer")):
        monkeypatch.setattr(from_outside.subprocess, "run", run)
        assert attempt(ENGINE, {}, tmp_path / "requests.jsonl", 8, 16, 7.0) is None
        assert said in capsys.readouterr().out
