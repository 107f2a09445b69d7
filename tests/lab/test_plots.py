"""A plot holds every arm that was measured, and is the same file for the same result."""

from pathlib import Path

import pytest

from benchmarks.studies.matrix.summary import merged
from tests.lab.matrix_records import run_record

pytest.importorskip("matplotlib")
from benchmarks.studies.matrix.best_tier import most_run, plot_best_tier
from benchmarks.studies.matrix.plot import plot_matrix


def test_the_matrix_is_drawn_with_its_arms_and_twice_alike(tmp_path: Path) -> None:
    result = merged([run_record(batch_sizes=(4, 16), repeats=(1, 2))])
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        plot_matrix(result, tmp_path / name / "matrix.svg")
    drawn = (tmp_path / "one" / "matrix.svg").read_text()
    assert drawn == (tmp_path / "two" / "matrix.svg").read_text()
    for label in ("goodput", "builtin", "best static", "acceptance mixed"):
        assert f">{label}<" in drawn


def test_the_map_names_the_best_static_tier_and_what_the_policy_ran(tmp_path: Path) -> None:
    result = merged([run_record(batch_sizes=(4, 16), repeats=(1, 2))])
    for cell in result["cells"]:
        cell["tokens_per_s"]["static-5"] = 4 * cell["tokens_per_s"]["none"]
        cell["tokens_per_s"]["goodput"] = 9 * cell["tokens_per_s"]["none"]  # is no static arm
    plot_best_tier(result, "goodput", tmp_path / "best.svg")
    drawn = (tmp_path / "best.svg").read_text()
    assert ">5  x4.00<" in drawn
    assert ">5 (100%)<" in drawn
    assert "x9.00" not in drawn


def test_the_tier_run_most_is_counted_over_all_windows_of_a_cell() -> None:
    rounds = ({"3": 10, "5": 2}, {"5": 10}, {"0": 2})
    cell = {"windows": {"goodput": [{"rounds": each} for each in rounds]}}
    assert most_run(cell, "goodput") == ("5", 0.5)
