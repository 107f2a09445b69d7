"""The matrix of a small model that drafts: claims follow from windows, and arms are complete."""

from typing import Any

from benchmarks.studies.matrix.standalone import (
    ARMS,
    BATCH_SIZES,
    check_standalone,
    figure_table,
    figures,
)
from benchmarks.studies.matrix.summary import merged
from tests.lab.matrix_records import run_record


def result_of(slower: str | None = None) -> dict[str, Any]:
    """Every arm's rounds take as long, but for one arm's, which take twice as long."""
    record = run_record(ARMS, BATCH_SIZES)
    for each in record["windows"]:
        if each["arm"] == slower:
            each["seconds"] *= 2
    return merged([record])


def test_ours_is_held_to_each_cell_s_best_and_to_every_single_depth() -> None:
    result = result_of()
    assert check_standalone(result) == []
    claims = {figure.claim: figure.ratio.value for figure in figures(result)}
    singles = [name for name in claims if name.endswith("mean of all cells")]
    assert len(singles) == 1 + 5  # the best of each cell; none and four depths
    assert claims["goodput / static-5, mean of all cells"] < 1.01  # what ours runs here
    assert claims["goodput / none, mean of all cells"] > 1.5
    assert "goodput / best" in figure_table(result)
    slow = {figure.claim: figure.ratio.value for figure in figures(result_of("goodput"))}
    assert 0.49 < slow["goodput / static-5, mean of all cells"] < 0.51


def test_a_result_without_an_arm_is_refused() -> None:
    record = run_record(tuple(arm for arm in ARMS if arm != "static-7"), BATCH_SIZES)
    assert any("static-7" in problem for problem in check_standalone(merged([record])))
