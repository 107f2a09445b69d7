"""Ranks with requests of their own: what a window is, whose plans are equal, what a file holds."""

import itertools
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.inject.engine import ForcedPolicy
from benchmarks.inject.joint_plugin import JointLog
from benchmarks.inject.rank_log_plugin import BLOCK_ROUNDS
from benchmarks.studies import attention_dp
from benchmarks.studies.attention_dp import (
    CELLS,
    UNEQUAL,
    agreement,
    build_result,
    check_attention_dp,
    figure_table,
    in_window,
    ranks_of,
    ratios,
)

MS = 1_000_000


def rounds(num_rounds: int, size: int, tokens: int) -> list[list[Any]]:
    """Rounds 10 ms apart."""
    return [[number * 10 * MS, size, tokens, 4, False, True] for number in range(num_rounds)]


def record(**rates: float) -> dict[str, Any]:
    """A run of two ranks and one cell: tokens/s of each arm, by repeat a little faster."""
    windows = []
    for arm, rate in rates.items():
        for repeat in (1, 2, 3):
            rank = {
                "num_tokens": rate * repeat / 2,
                "seconds": 1.0,
                "rounds": {"3": 100},
                "runs": {},
            }
            by_rank = [{**rank, "num_eager_rounds": 0}] * 2
            windows.append({"arm": arm, "cell": "two kinds", "repeat": repeat, "by_rank": by_rank})
    rank: dict[str, Any] = {"sha256": "a", "num_rounds": 500}
    rank |= {"rounds": {"3": 500}, "us_per_round": [20.0]}
    return {
        "num_ranks": 2,
        "layers": 16,
        "windows": windows,
        "ranks": [rank, dict(rank)],
        "disagreements": {"goodput": [0, 0]},
        "servers": [],
    }


def test_a_window_is_the_last_of_a_full_batch() -> None:
    window = in_window(rounds(200, 8, 24), 8, window_s=1.0)
    assert (window["num_tokens"], window["seconds"]) == (100 * 24, 1.0)
    assert window["rounds"] == {"3": 100}
    assert window["runs"] == {}
    assert window["round_ms"] == [10.0, 10.0, 10.0]


@pytest.mark.parametrize("wrong", [7, 0])  # a request that ended, a prompt that was read
def test_a_batch_that_was_not_full_is_no_window(wrong: int) -> None:
    every = rounds(200, 8, 24)
    every[150][1] = wrong
    with pytest.raises(ValueError, match="not full"):
        in_window(every, 8, window_s=1.0)
    every[50][1], every[150][1] = wrong, 8  # before the window
    assert in_window(every, 8, window_s=1.0)["num_tokens"] == 100 * 24


def test_ours_is_compared_with_the_best_depth_of_the_cell_and_with_the_votes() -> None:
    found = ratios(
        [record(goodput=110, **{"static-1": 80, "static-3": 100}, votes=88)], "two kinds"
    )
    assert {name: round(ratio.value, 3) for name, ratio in found.items()} == {
        "best static": 1.1,
        "votes": 1.25,
    }


def test_the_file_follows_from_its_windows_and_a_spoilt_one_does_not() -> None:
    run = record(goodput=110, none=50, votes=100, **{"static-3": 100})
    result = json.loads(json.dumps(build_result({"git_sha": "a"}, [run])))
    assert check_attention_dp(result) == []
    table = figure_table(result)
    assert "two kinds: smallest vote" in table
    assert "MISSED" not in table
    result["over"]["two kinds"]["best static"]["ratio"] = 2.0
    assert check_attention_dp(result) != []


def test_rows_are_compared_with_the_time_of_all_decodes_of_a_round() -> None:
    run = record(goodput=110)  # 100 rounds of 10 ms a window
    assert agreement(run)["share_of_round"] == pytest.approx(20.0 / 10_000)
    for window in run["windows"]:
        for rank in window["by_rank"]:
            rank |= {"rounds": {"0": 80, "3": 20}, "runs": {"8": 10}}
    assert agreement(run)["share_of_round"] == pytest.approx(20.0 / 33_333, rel=0.01)


def test_other_plans_of_a_rank_are_found() -> None:
    run = record(goodput=110)
    run["ranks"][1]["sha256"] = "b"
    assert not agreement(run)["are_equal"]
    assert "ranks ran different plans" in check_attention_dp(build_result({}, [run]))


def test_a_rank_logs_what_it_ran_and_what_its_rows_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sglang_adaptive_spec.loop.round import Round
    from sglang_adaptive_spec.tiers import CatchUp, DecodeBatch, Plan, chain_tier

    now_ns = itertools.count(0, 1000)
    monkeypatch.setattr("benchmarks.inject.joint_plugin.tp_rank", lambda: 0)
    monkeypatch.setattr(time, "perf_counter_ns", lambda: next(now_ns))  # each reading takes 1 us
    log = JointLog(tmp_path)
    launched = Round(0, DecodeBatch(1, ("a",)), Plan(chain_tier(0), 4, CatchUp.WHOLE))
    own, planted = SimpleNamespace(policy=None), SimpleNamespace(policy=ForcedPolicy(None))

    def gather() -> None:
        assert log.around_gather(lambda: "gather") == "gather"
        assert log.timed(lambda: "offer") == "offer"  # 1 us
        row = log.around_hook(lambda _, host: host(), None, lambda: "row")  # 3 us, the host's 1
        assert row == "row"
        assert log.timed(lambda: "rows") == "rows"  # 1 us

    for controller in (planted, own):
        for _ in range(BLOCK_ROUNDS + 3):
            for _ in range(5):  # the first three before nobody's round
                gather()
            assert log.around_decide(lambda *_: launched, controller, None) is launched
    (rank,) = ranks_of(tmp_path, 1)
    assert (rank["num_rounds"], rank["rounds"]) == (2 * BLOCK_ROUNDS, {"0": 2 * BLOCK_ROUNDS})
    assert rank["us_per_round"] == [8.0]
    assert (tmp_path / "plans-0.log").read_text().startswith("0 4 2\n")


def test_unequal_cells_are_cells() -> None:
    assert set(UNEQUAL) < set(CELLS)
    assert {len(loads) for loads in CELLS.values()} == {4}
    assert {arm.name for arm in attention_dp.arms()} == {
        *("none", "static-1", "static-3", "static-5", "goodput")
    }


def test_of_depths_in_different_runs_the_best_is_the_one_that_ours_is_least_ahead_of() -> None:
    slow = record(goodput=100.0, **{"static-1": 95.0})
    fast = record(goodput=200.0, **{"static-5": 150.0})  # more tokens, and further behind
    assert ratios([slow, fast], "two kinds")["best static"].value == pytest.approx(100 / 95)


def test_an_arm_without_ours_beside_it_is_left_out() -> None:
    alone = record(none=50.0)
    assert set(ratios([alone, record(goodput=100.0, votes=90.0)], "two kinds")) == {"votes"}
