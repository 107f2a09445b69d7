"""The study of zero-step rounds, whole on the CPU host: every part runs, figures mean nothing."""

from pathlib import Path

import pytest

from benchmarks.studies.never_below_none import NONE, ZERO
from tests.lab.dry_run import dry_run

pytestmark = pytest.mark.e2e

POOL = ("--max-total-tokens", "4096", "--prompt-tokens", "16")


def test_zero_steps_and_none_are_measured_in_turn(tmp_path: Path) -> None:
    windows = ("--batches", "2", "--repeats", "2", "--settle-s", "0.2", "--window-s", "0.5")
    stay = ("--stay-s", "0.3")
    record = dry_run(tmp_path, "never_below_none", "run", *windows, *stay, *POOL)
    found = [(each["arm"], each["repeat"]) for each in record["windows"]]
    assert found == [(NONE, 1), (ZERO, 1), (ZERO, 2), (NONE, 2)]
    for each in record["windows"]:
        assert each["num_tokens"] > 0
        if each["arm"] == NONE:
            assert set(each["decodes"]) == {"1"}
    assert [server["arm"] for server in record["servers"]] == [NONE, ZERO]
