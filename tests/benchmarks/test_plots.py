"""A plot holds every arm that was measured, and is the same file for the same result."""

from pathlib import Path

import pytest

from benchmarks.matrix_summary import merged
from tests.benchmarks.matrix_records import run_record

pytest.importorskip("matplotlib")
from benchmarks.plots import plot_matrix


def test_the_matrix_is_drawn_with_its_arms_and_twice_alike(tmp_path: Path) -> None:
    result = merged([run_record(batch_sizes=(4, 16), repeats=(1, 2))])
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        plot_matrix(result, tmp_path / name / "matrix.svg")
    drawn = (tmp_path / "one" / "matrix.svg").read_text()
    assert drawn == (tmp_path / "two" / "matrix.svg").read_text()
    for label in ("goodput", "builtin", "best static", "acceptance mixed"):
        assert f"<!-- {label} -->" in drawn
