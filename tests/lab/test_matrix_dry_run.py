"""The matrix end to end on the CPU host: two servers alive, windows in turn, drawn verdicts."""

import subprocess
import sys
from collections import Counter
from typing import Any

import pytest

from benchmarks.stats.windows import luck
from benchmarks.studies.matrix.summary import merged
from sglang_adaptive_spec.trace.format import read_trace
from tests.hosts import REPO
from tests.lab.dry_run import dry_run

pytestmark = pytest.mark.e2e

SMALL = ("--max-total-tokens", "8192", "--prompt-tokens", "16",
         "--window-s", "2", "--windows", "1", "--settle-s", "0.5",
         "--repeats", "2")  # fmt: skip


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A matrix of two arms and two cells."""
    out = tmp_path_factory.mktemp("matrix-dry-run")
    cells = ("--batches", "4", "--acceptances", "0.7,mixed", "--record")
    record = dry_run(out, "matrix", "run", *SMALL, "--arms", "static-3,goodput", *cells)
    return {**merged([record]), "trace": read_trace(out / "matrix-1.goodput.trace")}


def test_every_cell_has_windows_of_every_arm(result: dict[str, Any]) -> None:
    assert [(cell["batch_size"], cell["acceptance"]) for cell in result["cells"]] == [
        (4, "0.7"),
        (4, "mixed"),
    ]
    for cell in result["cells"]:
        assert {arm: len(windows) for arm, windows in cell["windows"].items()} == {
            "static-3": 2,
            "goodput": 2,
        }


def test_what_was_accepted_is_what_was_to_be_injected(result: dict[str, Any]) -> None:
    for cell in result["cells"]:
        for arm in cell["windows"]:
            assert abs(luck(cell, arm)) < 5, (cell["acceptance"], arm)


def test_only_our_arm_loads_our_plugin(result: dict[str, Any]) -> None:
    plugins = {server["arm"]: server["plugin"] for server in result["servers"]}
    assert plugins["static-3"] is None
    assert plugins["goodput"]["mode"] == "adaptive"


def test_rounds_of_our_arm_are_kept(result: dict[str, Any]) -> None:
    rounds: Counter[str] = Counter()
    for cell in result["cells"]:
        for window in cell["windows"]["goodput"]:
            rounds.update(window["rounds"])
    kept = Counter(str(one.num_steps) for one in result["trace"].rounds)
    assert all(kept[steps] * 8 >= number for steps, number in rounds.items()), (kept, rounds)


def test_every_hook_of_the_injection_finds_its_target() -> None:
    script = (
        "import os\n"
        "from benchmarks.inject import inject_plugin as inject\n"
        "from benchmarks.inject.acceptance import OURS_ENV, SEED_ENV\n"
        "os.environ.update({OURS_ENV: '1', SEED_ENV: '1'})\n"
        "inject.register()\n"
        "from sglang.srt.plugins.hook_registry import HookRegistry\n"
        "HookRegistry.apply_hooks()\n"
        "targets = (inject.VERIFY, inject.SIMULATE, inject.PLAIN_VERIFY, inject.FIRST_DRAFT)\n"
        "print([target for target in targets if target not in HookRegistry._patched])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=REPO, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.splitlines()[-1:] == ["[]"], done.stdout + done.stderr
