"""The benchmark of cores: slow slices are told from fast ones, and recomputed."""

import argparse
import json
import os
from pathlib import Path

from benchmarks.studies import cores
from tests.lab.records import PROVENANCE

# Two cores: one always at full speed, one at half of it in every other sweep.
SWEEPS = [[1000, 1000], [1000, 500]] * 10
MACHINE = {"stolen_ticks": 3, "ticks": 300, "sweeps": SWEEPS}


def test_slow_slices_are_told_by_core() -> None:
    result = cores.build_result(PROVENANCE, [MACHINE])
    (found,) = result["machines"]
    assert found == {
        "num_cores": 2,
        "share_below_0.9": 0.25,
        "share_below_0.7": 0.25,
        "least_of_a_core": 0.0,
        "most_of_a_core": 0.5,
        "slowest": 0.5,
        "stolen_share": 0.01,
    }
    assert cores.check_cores(json.loads(json.dumps(result))) == []
    spoilt = {**result, "machines": [{**found, "slowest": 0.9}]}
    assert cores.check_cores(spoilt) == ["machines is not what raw gives"]


def test_every_core_is_watched_and_given_back(tmp_path: Path) -> None:
    allowed = os.sched_getaffinity(0)
    args = argparse.Namespace(seconds=0.0, out=tmp_path, tag="1", git_sha="abc")
    assert cores.run(args) == 0
    assert os.sched_getaffinity(0) == allowed
    (machine,) = json.loads((tmp_path / "cores-1.json").read_text())["machines"]
    assert [len(sweep) for sweep in machine["sweeps"]] == [len(allowed)]
    assert min(machine["sweeps"][0]) > 0
