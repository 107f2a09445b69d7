"""The studies of round times, run whole on the CPU host: every part runs, figures mean nothing."""

from pathlib import Path

import pytest

from benchmarks.studies.long_context import NUM_MEASURED
from benchmarks.studies.never_below_none import NONE, ZERO
from tests.lab.dry_run import dry_run

pytestmark = pytest.mark.e2e

POOL = ("--max-total-tokens", "4096", "--prompt-tokens", "16")


def test_zero_steps_and_none_are_measured_in_turn(tmp_path: Path) -> None:
    windows = ("--batches", "2", "--repeats", "2", "--settle-s", "0.2", "--window-s", "0.5")
    stay = ("--stay-s", "0.3")
    trace = ("--trace-s", "0.3")  # has no kernels on a CPU
    record = dry_run(tmp_path, "never_below_none", "run", *windows, *stay, *trace, *POOL)
    assert record["kernels"] == {"2": {NONE: {}, ZERO: {}}}
    found = [(each["arm"], each["repeat"]) for each in record["windows"]]
    assert found == [(NONE, 1), (ZERO, 1), (ZERO, 2), (NONE, 2)]
    for each in record["windows"]:
        assert each["num_tokens"] > 0
        if each["arm"] == NONE:
            assert set(each["decodes"]) == {"1"}
    assert [server["arm"] for server in record["servers"]] == [NONE, ZERO]


def test_long_and_growing_contexts_are_measured(tmp_path: Path) -> None:
    arms = ("--arms", "none,goodput", "--acceptances", "0.7", "--max-total-tokens", "4096")
    windows = ("--cells", "2x200", "--windows", "1", "--window-s", "2")
    record = dry_run(tmp_path, "long_context", "run", *arms, *windows)
    assert [each["arm"] for each in record["windows"]] == ["none", "goodput"]
    record = dry_run(tmp_path, "long_context", "grow", *arms, "--cells", "2x20-420")
    places = [(each["arm"], each["place"]) for each in record["windows"]]
    assert places[:NUM_MEASURED] == [("none", place) for place in range(NUM_MEASURED)]
    assert [arm for arm, _ in places[NUM_MEASURED:]] == ["goodput"] * (len(places) - NUM_MEASURED)
    assert len(places) > NUM_MEASURED
