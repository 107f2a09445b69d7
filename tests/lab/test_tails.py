"""Stalls and choices: every kind is replayed, and spoilt figures are found."""

import copy
import json
from pathlib import Path

import pytest

from benchmarks.studies import tails as study


def test_every_kind_is_replayed_and_spoilt_figures_are_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["run", "--traces", "steady-high-1", "--seeds", "1,2", "--shares", "0.1", "--out"]
    assert study.run(study.parser().parse_args([*arguments, str(tmp_path)])) == 0
    assert "0.1 of reading-spells, lowest: steady-high-1" in capsys.readouterr().out
    record = json.loads((tmp_path / "tails-1.json").read_text())
    assert [set(each["with"]["0.1"]) for each in record["replays"]] == [set(study.KINDS)] * 2
    result = study.build_result(record["provenance"], record["replays"])
    assert study.check_tails(result) == []
    spoilt = copy.deepcopy(result)
    spoilt["left"]["0.1"]["rounds"]["steady-high-1"]["lowest"] -= 0.1
    assert any("left" in each for each in study.check_tails(spoilt))


def test_a_trace_below_its_limit_is_missed() -> None:
    replays = [
        {"trace": "a", "seed": seed, "without": 100.0, "with": {"0.1": {"rounds": rate}}}
        for seed, rate in ((1, 100.0), (2, 96.0))
    ]
    mean, lowest = study.figures(study.build_result({}, replays))
    assert (mean.ratio.value, mean.verdict) == (0.98, "MISSED")
    assert (lowest.ratio.value, lowest.verdict) == (0.96, "MISSED")
