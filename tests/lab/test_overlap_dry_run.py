"""Overlap end to end on the CPU host: with and without, injected and under a grammar."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.stats.windows import luck
from benchmarks.studies.overlap.summary import merged
from tests.lab.dry_run import dry_run, write_prompts

pytestmark = pytest.mark.e2e

SMALL = ("--max-total-tokens", "8192", "--batches", "4", "--repeats", "2", "--deadline", "800")
WINDOWS = ("--prompt-tokens", "16", "--window-s", "4", "--windows", "1", "--settle-s", "0.5")
ARMS = ("goodput", "goodput-no-overlap")


def run(folder: Path, part: str, *arguments: str) -> dict[str, Any]:
    """Runs one part of the benchmark; returns its record."""
    return dry_run(folder, "overlap", part, *SMALL, "--arms", ",".join(ARMS), *arguments)


def test_each_arm_runs_its_schedule_and_the_injected_acceptance(tmp_path: Path) -> None:
    record = run(tmp_path, "run", *WINDOWS)
    result = merged([record])
    (cell,) = result["cells"]
    assert {arm: len(windows) for arm, windows in cell["windows"].items()} == dict.fromkeys(ARMS, 2)
    assert all(abs(luck(cell, arm)) < 5 for arm in ARMS)
    assert result["refused"] == {}
    is_synchronous = {
        server["arm"]: "--disable-overlap-schedule" in server["server_argv"]
        for server in result["servers"]
    }
    assert is_synchronous == dict(zip(ARMS, (False, True), strict=True))
    log = (tmp_path / "overlap-1.log").read_text()
    assert "'disable_overlap_schedule': False" in log
    assert "'disable_overlap_schedule': True" in log


def test_a_schema_is_served_in_both_schedules(tmp_path: Path) -> None:
    given = (*write_prompts(tmp_path, ["prose"]), "--new-tokens", "64")
    result = merged([run(tmp_path, "grammar", *given)])
    assert [(cell["batch_size"], cell["kind"]) for cell in result["grammar"]] == [
        (4, "free"),
        (4, "schema"),
    ]
    for cell in result["grammar"]:
        for windows in cell["windows"].values():
            assert [each["repeat"] for each in windows] == [1, 2]
            assert windows[0]["num_tokens"] > 100
