"""Zero steps beside none: from rounds to windows, from windows to ratios."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.inject.engine import SINGLE
from benchmarks.studies.never_below_none import (
    BEFORE,
    NONE,
    ZERO,
    arms_of,
    build_result,
    check_never_below_none,
    figure_table,
    gap_p99_ms,
    text_of,
    visits_of,
    window_of,
)

MS = 1_000_000
SIZE = 4
ORIGIN = {"git_sha": "a", "gpu": "NVIDIA H200"}


def rounds(num_rounds: int, ms: float, decodes: int = 1) -> list[list[Any]]:
    """Rounds of a full batch, so many ms apart."""
    return [
        [int(number * ms * MS), SIZE, SIZE * decodes, 1, False, True]
        for number in range(num_rounds)
    ]


def test_a_window_counts_the_tokens_of_runs_and_the_gaps_between_them() -> None:
    window = window_of(rounds(103, 10.0, decodes=8), SIZE, settle_s=0.0)
    assert window["num_tokens"] == 99 * 8 * SIZE
    assert window["seconds"] == pytest.approx(0.99)
    assert window["decodes"] == {"8": 100}
    assert window["gaps_ms"] == [10.0] * 99


@pytest.mark.parametrize(
    ("num_windows", "decodes", "expected"), [(1, 1, 31.0), (4, 1, 1.0), (1, 4, 1.0)]
)
def test_one_gap_in_fifty_tokens_is_seen_and_one_in_two_hundred_is_not(
    num_windows: int, decodes: int, expected: float
) -> None:
    late = rounds(53, 1.0, decodes)
    windows = [window_of(late, SIZE, 0.0) for _ in range(num_windows - 1)]
    late[-1][0] += 30 * MS
    assert gap_p99_ms([*windows, window_of(late, SIZE, 0.0)]) == expected


def test_a_batch_without_a_pair_is_left_out() -> None:
    window = {"batch": SIZE, "repeat": 1, **window_of(rounds(53, 1.0), SIZE, 0.0)}
    windows = [{"arm": arm, **window} for arm in (NONE, ZERO)]
    alone = {"arm": NONE, **window, "batch": 128}
    result = build_result(ORIGIN, [{"model": "8b", "windows": [*windows, alone]}], {})
    assert list(result["zero_over_none"]["8b"]) == [str(SIZE)]
    assert "batch 128" not in figure_table(result)


def test_a_window_that_is_too_short_says_so() -> None:
    with pytest.raises(ValueError, match=r"batch 4: 0 rounds after 5\.0 s; run longer"):
        window_of(rounds(20, 1.0), SIZE, settle_s=5.0)


def record(model: str, ratio: float) -> dict[str, Any]:
    windows = []
    for arm, seconds in ((NONE, 1.0), (ZERO, 1.0 / ratio)):
        for repeat in (1, 2, 3):
            place = {"arm": arm, "batch": 16, "repeat": repeat}
            window = {"num_tokens": 1600, "seconds": seconds, "decodes": {"4": 100}}
            windows.append({**place, **window, "gaps_ms": [10.0 * seconds] * 99})
    return {"model": model, "windows": windows, "servers": []}


def test_one_decode_a_round_is_served_beside_an_earlier_commit(tmp_path: Path) -> None:
    for name in ("sglang_adaptive_spec", "benchmarks/inject"):
        (tmp_path / name).mkdir(parents=True)
    assert [arm.name for arm in arms_of(None)] == [NONE, ZERO]
    servers = arms_of(f"abc={tmp_path}")
    assert [arm.name for arm in servers] == [NONE, ZERO, BEFORE]
    assert str(tmp_path) in (servers[-1].environment or {})["PYTHONPATH"]
    visits = visits_of([arm.name for arm in servers])
    assert [name for name, _, _ in visits] == [NONE, ZERO, SINGLE, BEFORE]
    assert visits[2][1:] == (ZERO, SINGLE)
    assert [name for name, _, _ in visits_of([NONE, ZERO])] == [NONE, ZERO]


def test_one_decode_a_round_is_compared_with_before() -> None:
    both = record("8b", 0.995)
    for each in [each for each in both["windows"] if each["arm"] != NONE]:
        seconds = each["seconds"]
        both["windows"] += [{**each, "arm": SINGLE, "seconds": seconds}]
        both["windows"] += [{**each, "arm": BEFORE, "seconds": seconds * 1.25}]
    result = build_result(ORIGIN, [both], {})
    assert result["single_over_before"]["8b"]["16"]["ratio"] == pytest.approx(1.25)
    assert check_never_below_none(result) == []
    assert "one decode a round over before" in figure_table(result)


def test_ratios_are_of_pairs_by_model_and_batch() -> None:
    records = [record("8b", 0.995), record("smollm2", 0.5)]
    result = build_result(ORIGIN, records, {"mixed-text": {"2": {"none": 1.0}}})
    assert result["zero_over_none"]["8b"]["16"]["ratio"] == pytest.approx(0.995)
    assert result["zero_over_none"]["smollm2"]["16"]["ratio"] == pytest.approx(0.5)
    assert result["decodes"]["8b"]["16"] == {"4": 300}
    assert result["gap_p99_ms"]["smollm2"]["16"] == {ZERO: 20.0, NONE: 10.0}
    assert check_never_below_none(result) == []
    shown = figure_table(result)
    assert "MISSED" in shown
    assert shown.count("met") == 1
    result["decodes"]["8b"]["16"]["4"] = 1
    assert check_never_below_none(result)


def test_text_comes_from_the_cells_of_a_transition(tmp_path: Path) -> None:
    path = tmp_path / "transition.json"
    cell = {"workload": "mixed-text", "concurrency": 2, "tokens_per_s": {"none": 3.0}}
    path.write_text(json.dumps({"cells": [cell]}))
    assert text_of(path) == {"mixed-text": {"2": {"none": 3.0}}}
    assert text_of(None) == {}
