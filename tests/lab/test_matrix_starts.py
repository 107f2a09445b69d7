"""Starts of a server beside constant depths: every start is judged by itself."""

from typing import Any

import pytest

from benchmarks.inject.acceptance import probabilities
from benchmarks.lab.settings import cells_of
from benchmarks.stats.differences import Gap
from benchmarks.stats.tokens import expected_tokens
from benchmarks.studies.matrix.starts import (
    ACCEPTANCES,
    BATCH_SIZES,
    check_starts,
    figure_table,
    figures,
    starts,
)
from tests.lab.records import PROVENANCE

# Rounds of every arm: what it drafts, and its ms at any batch size.
RAN = {"none": ("none", 5.0), "static-1": ("1", 7.0), "static-3": ("3", 9.0)}
RAN |= {"static-5": ("5", 12.0), "static-7": ("7", 15.0)}
NUM_ROUNDS, NUM_REPEATS = 100, 6


def window(arm: str, size: int, name: str, repeat: int, ran: tuple[str, float]) -> dict[str, Any]:
    key, round_ms = ran
    rounds = {key: NUM_ROUNDS}
    return {
        "arm": arm,
        "batch_size": size,
        "acceptance": name,
        "repeat": repeat,
        "place": repeat % 3,
        "num_tokens": round(expected_tokens(probabilities(name, size), rounds)),
        "seconds": NUM_ROUNDS * round_ms / 1e3 * (1 + 0.001 * (repeat % 2)),
        "rounds": rounds,
        "num_eager_rounds": 0,
    }


def rate(size: int, name: str, ran: tuple[str, float]) -> float:
    return expected_tokens(probabilities(name, size), {ran[0]: 1}) / ran[1]


def record(date: str, ours: dict[str, tuple[str, float]]) -> dict[str, Any]:
    """A run with one start, which runs what ``ours`` says in a cell, else the best depth."""
    windows = []
    for size, name in cells_of(BATCH_SIZES, ACCEPTANCES):
        where = f"{size} {name}"
        best = max(RAN.values(), key=lambda ran: rate(size, name, ran))
        arms = {**RAN, "goodput": ours.get(where, best)}
        windows += [
            window(arm, size, name, repeat, ran)
            for arm, ran in arms.items()
            for repeat in range(NUM_REPEATS)
        ]
    return {"provenance": {**PROVENANCE, "date": date}, "windows": windows, "servers": []}


GOOD = record("2026-11-27T00:00:00", {})
# A belief that turned: too shallow in one cell of the second start.
TURNED = record("2026-11-27T00:01:00", {"24 0.8": RAN["none"]})
THIRD = record("2026-11-27T00:02:00", {})


def test_every_start_is_an_arm_and_a_turned_one_is_missed() -> None:
    result = starts([GOOD, TURNED, THIRD])
    assert check_starts(result) == []
    worst = {figure.claim: figure.verdict for figure in figures(result)[::2]}
    assert [verdict for _, verdict in sorted(worst.items())] == ["met", "MISSED", "met"]
    assert any(claim.startswith("start-2, 24 0.8") for claim in worst)
    assert "start-3" in figure_table(result)


def test_constant_depths_of_all_runs_count_together() -> None:
    result = starts([GOOD, TURNED, THIRD])
    for cell in result["cells"]:
        assert len(cell["windows"]["static-3"]) == 3 * NUM_REPEATS
        assert len(cell["windows"]["start-1"]) == NUM_REPEATS


@pytest.mark.parametrize("records", [[GOOD], [GOOD, TURNED]])
def test_fewer_than_three_starts_are_named(records: list[Any]) -> None:
    assert f"{len(records)} of 3 starts" in str(check_starts(starts(records))[-1])


def test_a_start_that_was_cut_off_is_shown_and_named() -> None:
    short = [
        each for each in THIRD["windows"] if (each["arm"], each["batch_size"]) != ("goodput", 96)
    ]
    result = starts([GOOD, TURNED, {**THIRD, "windows": short}])
    problems = check_starts(result)
    assert all(isinstance(problem, Gap) for problem in problems)
    assert any("start-3" in problem for problem in problems)
    assert "served every cell: start-1, start-2" in figure_table(result)


def test_a_lost_depth_is_named() -> None:
    lost = [each for each in GOOD["windows"] if each["arm"] != "static-7"]
    result = starts([{**each, "windows": lost} for each in (GOOD, TURNED, THIRD)])
    assert any("static-7" in problem for problem in check_starts(result))
