"""Two ranks on the CPU host: askew clocks, measured round times, one and the same decision each."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.rank_log_plugin import BLOCK_ROUNDS
from tests.e2e.launches import MODELS, ensure_tiny_models
from tests.e2e.server import RANK_CORES, free_port
from tests.hosts import REPO

SMALL = ("--context-length", "1024", "--max-total-tokens", "8192", "--prompt-tokens", "16",
         "--num-rounds", "1", "--deadline", "800")  # fmt: skip


@pytest.mark.e2e
def test_both_ranks_take_the_same_decisions(tmp_path: Path) -> None:
    ensure_tiny_models()
    command = [sys.executable, "-m", "benchmarks.tensor_parallel", "run", "--dry-cpu", *SMALL]
    command += ["--target", str(MODELS / "target"), "--draft", str(MODELS / "eagle3")]
    command += ["--port", str(free_port()), "--out", str(tmp_path)]
    done = subprocess.run(
        command, cwd=REPO, env={**os.environ, **RANK_CORES},
        capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    first, second = json.loads((tmp_path / "tensor-parallel-1.json").read_text())["ranks"]
    assert first["sha256"] == second["sha256"]
    assert first["num_rounds"] == second["num_rounds"] >= BLOCK_ROUNDS
    assert len(first["rounds"]) > 1, "a policy that never switches agrees with any other"
    assert min(first["us_per_round"] + second["us_per_round"]) > 0  # both took part
