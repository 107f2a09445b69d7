"""Overhead: means over windows, the share of each window's own round, every figure recomputed."""

import copy
import json
from typing import Any

import pytest

from benchmarks.lab.fleet import Visit
from benchmarks.lab.load import Window
from benchmarks.studies.overhead import (
    as_record,
    build_result,
    check_overhead,
    figure_table,
    over_earlier,
)
from tests.lab.records import PROVENANCE


def window(batch_size: int, repeat: int, arm: str = "goodput") -> dict[str, Any]:
    """A window whose rounds take 10 ms and whose policy takes 30 us and a bit."""
    return {
        "arm": arm,
        "batch_size": batch_size,
        "acceptance": "0.7",
        "repeat": repeat,
        "took_us": {"choose": 20.0 + repeat, "observe": 10.0},
        "round_us": 10000.0,
        "rounds": {"3": 100},
    }


@pytest.fixture
def result() -> dict[str, Any]:
    """A whole result, as read from its file."""
    windows = [
        window(size, repeat, arm)
        for size in (1, 32, 128)
        for repeat in (1, 2, 3)
        for arm in ("goodput", "builtin")
    ]
    return dict(json.loads(json.dumps(build_result(PROVENANCE, windows))))


def test_only_the_calls_of_the_window_s_own_rounds_count() -> None:
    took_ns = {"choose": [90_000] * 5 + [1000, 1000, 10_000], "observe": [70_000] * 9 + [5000] * 3}
    made = as_record(
        "goodput",
        Visit("0.7", 4, 1, 0.1, 0.5),
        Window(20, 0.006, {"3": 3}, 0),
        {"took_ns": took_ns, "clock_ns": [100, 200, 9000]},
    )
    assert made["took_us"] == {"choose": 4.0, "observe": 5.0}
    assert made["clock_us"] == 0.2
    assert made["round_us"] == 2000.0


def test_the_figures_are_those_of_our_policy(result: Any) -> None:
    assert check_overhead(result) == []
    assert result["us_per_round"] == {"1": 32.0, "32": 32.0, "128": 32.0}
    assert result["share_of_round"]["128"] == 0.0032
    assert "met" in figure_table(result)


@pytest.mark.parametrize(("extra_us", "verdicts"), [(0.5, ["met", "met"]), (2.0, ["MISSED"] * 2)])
def test_an_earlier_commit_is_compared_in_pairs(
    result: Any, extra_us: float, verdicts: list[str]
) -> None:
    """31 to 33 us a round then."""
    assert over_earlier(result["raw"]) == []
    earlier = [
        {**copy.deepcopy(each), "arm": "at-15bedd4"}
        for each in result["raw"]
        if each["arm"] == "goodput"
    ]
    for each in result["raw"]:
        each["took_us"]["observe"] += extra_us
    found = over_earlier([*result["raw"], *earlier])
    assert [figure.verdict for figure in found] == [*verdicts, "met", "met"]
    assert found[0].claim == "us a round over those at-15bedd4, 9 pairs"
    assert found[2].claim == "ms a round of one tier over those at-15bedd4, 9 pairs"


def test_rounds_are_compared_where_both_ran_one_tier(result: Any) -> None:
    earlier = [
        {**copy.deepcopy(each), "arm": "at-15bedd4", "round_us": 9500.0}
        for each in result["raw"]
        if each["arm"] == "goodput"
    ]
    earlier[0] |= {"rounds": {"5": 100}, "round_us": 500.0}
    earlier[1] |= {"rounds": {"3": 99, "5": 1}, "round_us": 500.0}
    found = over_earlier([*result["raw"], *earlier])
    assert found[2].claim.endswith("7 pairs")
    assert found[2].ratio.value == pytest.approx(10000 / 9500)
    assert [figure.verdict for figure in found[2:]] == ["MISSED", "MISSED"]


def test_a_share_above_one_percent_is_printed_as_missed(result: Any) -> None:
    for each in result["raw"]:
        each["round_us"] = 1000.0
    assert figure_table(build_result(PROVENANCE, result["raw"])).count("MISSED") == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda result: result["us_per_round"].update({"32": 1.0}), "us_per_round.32: the file"),
        (lambda result: result["share_of_round"].update({"1": 0.0}), "share_of_round.1: the"),
        (lambda result: result["raw"].pop(0), "batch 1: 2 repeats"),
        (lambda result: result.pop("share_of_round"), "file: keys"),
        (lambda result: result["provenance"].update(gpu="cpu"), "measured on cpu"),
    ],
)
def test_a_spoilt_result_is_found(result: Any, change: Any, message: str) -> None:
    spoilt = copy.deepcopy(result)
    change(spoilt)
    assert any(message in problem for problem in check_overhead(spoilt))
