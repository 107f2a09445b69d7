"""Two ranks on the CPU host: round times askew on the second, the same decisions."""

from pathlib import Path

import pytest

from benchmarks.inject.rank_log_plugin import BLOCK_ROUNDS
from tests.e2e.server import RANK_CORES
from tests.lab.dry_run import dry_run

pytestmark = pytest.mark.e2e

SMALL = ("--max-total-tokens", "8192", "--prompt-tokens", "16",
         "--num-rounds", "1", "--deadline", "800")  # fmt: skip


def test_both_ranks_take_the_same_decisions(tmp_path: Path) -> None:
    record = dry_run(tmp_path, "tensor_parallel", "run", *SMALL, environment=RANK_CORES)
    first, second = record["ranks"]
    assert first["sha256"] == second["sha256"]
    assert first["num_rounds"] == second["num_rounds"] >= BLOCK_ROUNDS
    assert len(first["rounds"]) > 1, "a policy that never switches agrees with any other"
    assert min(first["us_per_round"] + second["us_per_round"]) > 0  # both took part
    assert "ADAPTIVE_EAGLE is on" in (tmp_path / "tensor-parallel-1.log").read_text()
