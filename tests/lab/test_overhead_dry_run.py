"""The study of the policy's own time, end to end on the CPU host: two servers, real requests."""

from pathlib import Path

import pytest

from tests.lab.dry_run import dry_run

pytestmark = pytest.mark.e2e

SMALL = ("--prompt-tokens", "16", "--batches", "2", "--acceptances", "0.7", "--repeats", "1",
         "--settle-s", "1", "--window-s", "2", "--max-total-tokens", "4096")  # fmt: skip


def test_choosing_and_observing_are_timed_in_both_arms(tmp_path: Path) -> None:
    record = dry_run(tmp_path, "overhead", "run", *SMALL, "--arms", "goodput,builtin")
    windows = {each["arm"]: each for each in record["windows"]}
    assert set(windows) == {"goodput", "builtin"}
    stages = {"goodput": {"describe", "choose", "observe"}, "builtin": {"choose", "observe"}}
    for arm, each in windows.items():
        assert set(each["took_us"]) == stages[arm]
        assert 0 < sum(each["took_us"].values()) < each["round_us"]
