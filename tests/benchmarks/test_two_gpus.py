"""The commands for two GPUs: every benchmark knows the arguments it is given."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.hosts import REPO

SCRIPT = REPO / "benchmarks" / "two_gpus.sh"
RECORDER = f"""#!{sys.executable}
import json, os, sys
with open(os.environ["CALLS"], "a") as calls:
    calls.write(json.dumps([os.environ["CUDA_VISIBLE_DEVICES"], *sys.argv[1:]]) + "\\n")
"""


def run_script(tmp_path: Path, part: str, **environment: str) -> list[list[str]]:
    """Runs a part with a ``python3`` that only says how it was called: [GPUs, arguments ...]."""
    recorder, calls = tmp_path / "bin" / "python3", tmp_path / "calls"
    recorder.parent.mkdir()
    recorder.write_text(RECORDER)
    recorder.chmod(0o755)
    calls.touch()
    path = os.pathsep.join((str(recorder.parent), os.environ["PATH"]))
    given = {"OUT": str(tmp_path / "out"), "SHA": "abc", "PAIR": "pair", "CALLS": str(calls)}
    command = [str(SCRIPT), part]
    subprocess.run(command, env={**os.environ, **given, "PATH": path, **environment}, check=True)
    return [json.loads(line) for line in calls.read_text().splitlines()]


def parsed(call: list[str]) -> tuple[str, Any]:
    """Returns the GPUs of a call and its arguments, read by the benchmark itself."""
    gpus, dash_m, module, *arguments = call
    assert dash_m == "-m"
    return gpus, importlib.import_module(module).parser().parse_args(arguments)


@pytest.mark.parametrize(
    ("part", "gpus"), [("1", ["0", "1"]), ("2", ["0", "0,1", "1"]), ("3", ["0", "0", "1"])]
)
def test_every_benchmark_knows_its_arguments(part: str, gpus: list[str], tmp_path: Path) -> None:
    found = [parsed(call) for call in run_script(tmp_path, part)]
    assert sorted(each for each, _ in found) == gpus
    assert len({args.port for _, args in found}) == len(found)
    assert {args.git_sha for _, args in found} == {"abc"}
    assert max(args.deadline for _, args in found) < 590


def test_what_does_not_fit_is_left_out_and_said(tmp_path: Path) -> None:
    calls = run_script(tmp_path, "2", LIMIT_S="240")
    assert [parsed(call)[0] for call in calls] == ["0,1"]
    assert "left out for want of time: transition" in (tmp_path / "out" / "gpu0.txt").read_text()


def test_the_whole_transition_has_every_arm_once(tmp_path: Path) -> None:
    from benchmarks.transition import ALL_ARMS

    arms: list[str] = []
    for part in ("1", "2"):
        (tmp_path / part).mkdir()
        for call in run_script(tmp_path / part, part):
            if call[2] == "benchmarks.transition":
                arms += parsed(call)[1].arms
    assert sorted(arms) == sorted(set(ALL_ARMS) - {"ema"})
