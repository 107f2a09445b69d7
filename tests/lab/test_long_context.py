"""Long contexts: a cell's name, the spans of a batch that grows, pairs of windows."""

import copy
import json
from typing import Any

import pytest

from benchmarks.lab.arms import ARMS as every_arm
from benchmarks.lab.load import SKIPPED_ROUNDS
from benchmarks.studies.long_context import (
    NUM_MEASURED,
    build_result,
    check_long_context,
    figure_table,
    ratio,
    ratios,
    size_of,
    spans,
    undrafted,
)
from tests.lab.records import PROVENANCE

MS = 1_000_000
ARMS = {"none": (None, 6.0), "static-3": (3, 9.0), "goodput": (3, 9.1)}  # depth, ms a round


def test_a_cell_names_requests_and_contexts() -> None:
    assert size_of("4x16384") == (4, 16384, 16384)
    assert size_of("16x1024-16384") == (16, 1024, 16384)
    with pytest.raises(ValueError, match="'4 x 16'; allowed"):
        size_of("4 x 16")


def test_a_growing_batch_is_cut_where_a_tenth_of_its_tokens_are_written() -> None:
    """Two requests of 1,000 tokens; a round gives 2 tokens each and gets slower."""
    rounds = [
        ((index * 10 + index * index // 100) * MS, 2, 4, 4, False, True)
        for index in range(SKIPPED_ROUNDS + 500)
    ]
    found = spans(rounds, 2, 1000)
    assert len(found) == NUM_MEASURED
    assert [sum(each.rounds.values()) for each in found] == [49] + [50] * 8
    assert found[0].seconds < found[-1].seconds
    assert sum(each.num_tokens for each in found) == 4 * 449


def test_a_batch_that_ends_early_has_the_spans_that_it_completed() -> None:
    rounds = [(index * 10 * MS, 2, 4, 4, False, True) for index in range(SKIPPED_ROUNDS + 260)]
    assert len(spans(rounds, 2, 1000)) == 5


def window(arm: str, place: int) -> dict[str, Any]:
    """A window of 100 rounds, slower the later it is."""
    depth, ms = ARMS[arm]
    return {
        "arm": arm,
        "cell": "16x4096",
        "acceptance": "0.5",
        "repeat": 1,
        "place": place,
        "num_tokens": 16 * (188 if depth else 100),
        "seconds": ms / 10 * (1 + place / 50),
        "rounds": {"none" if depth is None else str(depth): 100},
        "num_eager_rounds": 0,
    }


@pytest.fixture
def result() -> dict[str, Any]:
    """One cell of three arms, as read from its file."""
    windows = [window(arm, place) for arm in ARMS for place in range(6)]
    record = {"provenance": PROVENANCE, "windows": windows, "servers": []}
    return dict(json.loads(json.dumps(build_result(PROVENANCE, [record]))))


def test_an_arm_without_drafts_is_measured_once_whatever_the_acceptance() -> None:
    windows = [window(arm, place) for arm in ("none", "static-3") for place in range(2)]
    again = undrafted(windows, every_arm["none"], "16x4096", "0.8")
    assert again == [{**each, "acceptance": "0.8"} for each in windows[:2]]
    assert undrafted(windows + again, every_arm["none"], "16x4096", "mixed") == [
        {**each, "acceptance": "mixed"} for each in windows[:2]
    ]
    assert undrafted(windows, every_arm["none"], "64x2048", "0.8") == []
    assert undrafted(windows, every_arm["static-3"], "16x4096", "0.8") == []


def test_windows_at_the_same_place_are_compared(result: Any) -> None:
    (cell,) = result["cells"]
    assert ratio(cell, "goodput", "static-3").value == pytest.approx(9.0 / 9.1, rel=1e-6)
    assert ratio(cell, "goodput", "static-3").stderr == pytest.approx(0.0, abs=1e-6)
    ((name, best, even),) = ratios(result)
    assert (name, best) == ("16x4096 0.5", "static-3")
    assert even.freedom == 2, "of six windows the even three"
    assert "met" in figure_table(result)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda result: result.pop("cells"), "file: keys"),
        (lambda result: result["cells"][0]["tokens_per_s"].update(none=1.0), "tokens_per_s.none"),
        (lambda result: result["cells"][0]["windows"]["none"].pop(), "raw.none"),
        (lambda result: result["provenance"].update(gpu="cpu"), "measured on cpu"),
    ],
)
def test_a_spoilt_result_is_found(result: Any, change: Any, message: str) -> None:
    spoilt = copy.deepcopy(result)
    change(spoilt)
    assert any(message in problem for problem in check_long_context(spoilt))


def test_a_cell_that_was_not_measured_is_named(result: Any) -> None:
    assert any("64x2048 mixed" in problem for problem in check_long_context(result))
