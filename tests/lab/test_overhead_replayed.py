"""The calls are timed in both kinds of replay; the file is recomputed."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.studies import overhead_replayed as study


def run_once(folder: Path) -> dict[str, Any]:
    arguments = ["run", "--batches", "1,2", "--repeats", "1", "--seconds", "0.1", "--out"]
    assert study.run(study.parser().parse_args([*arguments, str(folder)])) == 0
    return dict(json.loads((folder / "overhead-replayed-1.json").read_text()))


def test_every_cell_is_replayed_both_ways_and_spoilt_means_are_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = run_once(tmp_path)
    cells = [
        (each["batch_size"], each["hazards"], each["is_emptied"]) for each in record["replays"]
    ]
    assert len(cells) == 2 * (2 + 3)  # one request cannot be mixed
    assert (2, [0.3, 0.9], True) in cells
    assert all(us > 0 for each in record["replays"] for us in each["took_us"].values())
    assert "caches kept" in capsys.readouterr().out
    result = study.build_result(record["provenance"], record["replays"])
    assert study.check_overhead_replayed(result) == []
    spoilt = copy.deepcopy(result)
    spoilt["us_per_round"]["2"]["kept"] += 1
    assert any("us_per_round" in each for each in study.check_overhead_replayed(spoilt))


def test_emptying_the_caches_writes_to_all_of_the_memory() -> None:
    emptier = study.CacheEmptier()
    emptier.record(None, 0, 0.0)
    assert emptier._memory.nbytes == study.EMPTIED_MB * 2**20
    assert emptier._memory.min() == 1
