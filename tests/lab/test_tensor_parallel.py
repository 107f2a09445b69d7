"""Decisions of several ranks: what is logged, when they count as equal, and what the file holds."""

import json
import pkgutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.inject import rank_log_plugin
from benchmarks.inject.rank_log_plugin import (
    BLOCK_ROUNDS,
    JITTER,
    RATE_PER_STEP,
    Logger,
    RankLog,
    SkewedTimer,
)
from benchmarks.studies.tensor_parallel import (
    build_result,
    check_tensor_parallel,
    figure_table,
    ranks_of,
)
from sglang_adaptive_spec.tiers import CatchUp, Plan, chain_tier

PROVENANCE = {"git_sha": "0", "date": "2027-01-01"}


def log_rounds(folder: Path, rank: int, num_rounds: int, odd: int = -1) -> None:
    log = RankLog(folder, rank)
    for number in range(num_rounds):
        log.ticked(10.0 + rank)
        label = "7" if number == odd else str(number % 3)
        log.decided(4, label, number % 15 == 0)


def result_of(folder: Path) -> dict[str, Any]:
    raw = {"ranks": ranks_of(folder, 2), "seconds": 60.0}
    built: dict[str, Any] = json.loads(json.dumps(build_result(PROVENANCE, raw)))
    return built


def test_equal_logs_are_equal_and_only_whole_blocks_count(tmp_path: Path) -> None:
    for rank in (0, 1):
        log_rounds(tmp_path, rank, 3 * BLOCK_ROUNDS + 7)
    result = result_of(tmp_path)
    assert result["are_equal"]
    assert result["num_rounds"] == 3 * BLOCK_ROUNDS
    assert result["us_per_round"] == [10.0, 11.0]
    assert result["share_of_round"] == pytest.approx(11.0 / (60e6 / (3 * BLOCK_ROUNDS)), abs=1e-5)
    assert check_tensor_parallel(result) == []
    assert "MISSED" in figure_table(result)  # fewer rounds than wanted


def test_one_other_decision_is_found(tmp_path: Path) -> None:
    log_rounds(tmp_path, 0, BLOCK_ROUNDS)
    log_rounds(tmp_path, 1, BLOCK_ROUNDS, odd=BLOCK_ROUNDS - 2)
    result = result_of(tmp_path)
    assert not result["are_equal"]
    assert check_tensor_parallel(result) == ["the ranks took different decisions"]


def test_a_spoilt_figure_is_found(tmp_path: Path) -> None:
    for rank in (0, 1):
        log_rounds(tmp_path, rank, BLOCK_ROUNDS)
    result = result_of(tmp_path)
    result["share_of_round"] = 0.0
    assert any("share_of_round" in problem for problem in check_tensor_parallel(result))


def test_a_round_is_logged_as_it_was_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = Logger(tmp_path)
    logger._log = RankLog(tmp_path, 0)
    launch = SimpleNamespace(tier=chain_tier(3), plan=Plan(chain_tier(3), catch_up=CatchUp.WHOLE))
    batch = SimpleNamespace(size=5)
    for _ in range(BLOCK_ROUNDS):
        assert logger.around_decide(lambda _controller, _batch: launch, None, batch) is launch
        logger.around_share(lambda _times: None, None)
    lines = (tmp_path / "decisions-0.log").read_text().splitlines()
    assert lines == ["5 3 1"] * BLOCK_ROUNDS


@pytest.mark.parametrize("rank", [0, 1])
def test_all_that_another_rank_than_the_first_measures_is_askew(
    rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks that believe it part, and those that share do not: tests/policy/test_sharing.py."""
    skewed_clocks = []
    monkeypatch.setattr(rank_log_plugin, "tp_rank", lambda: rank)
    monkeypatch.setattr(rank_log_plugin, "device", lambda: "cpu")
    monkeypatch.setattr(rank_log_plugin, "skew_clock", lambda: skewed_clocks.append(rank))
    logger, deep = Logger(tmp_path), chain_tier(3)
    launch = SimpleNamespace(tier=deep, plan=Plan(deep))
    controller, clocks = SimpleNamespace(clock=None), []
    for _ in range(2):
        logger.around_decide(lambda *_: launch, controller, SimpleNamespace(size=1))
        clocks.append(controller.clock)
    assert isinstance(clocks[0], SkewedTimer) == (rank > 0)
    assert clocks[1] is clocks[0]
    assert skewed_clocks == [1] * rank
    seeds = [logger.around_seed(lambda *_: [10.0], None, Plan(deep), None)[0] for _ in range(50)]
    middle = 10.0 * RATE_PER_STEP**deep.num_steps
    if rank == 0:
        assert set(seeds) == {10.0}
    else:
        assert min(seeds) >= middle * (1 - JITTER) > 10.0
        assert max(seeds) <= middle * (1 + JITTER)
        assert len(set(seeds)) == 50


def test_the_plugin_hooks_the_measuring_at_the_start() -> None:
    owner, _, name = rank_log_plugin.SEED.rpartition(".")
    assert name in vars(pkgutil.resolve_name(owner))
