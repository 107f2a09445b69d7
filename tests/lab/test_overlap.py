"""Overlap: arms differ in the schedule alone, figures follow from windows, losses are named."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.lab.settings import fleet_plan
from benchmarks.stats.differences import Gap
from benchmarks.studies.overlap.__main__ import (
    DEFAULT_ARMS,
    GRAMMAR_ARMS,
    NO_TOKENIZER,
    OVERLAP_ARMS,
    last_error,
    parser,
    with_tokenizer,
)
from benchmarks.studies.overlap.summary import (
    OTHER_PAIRS,
    PAIRS,
    cell_table,
    check_overlap,
    figure_table,
    figures,
    merged,
)
from tests.lab.matrix_records import window
from tests.lab.records import PROVENANCE

# Milliseconds of a round of depth 3: the schedule without overlap adds one and a half.
ROUND_MS = {"static-3": 10.0, "static-3-no-overlap": 11.5, "goodput": 10.0,
            "goodput-no-overlap": 11.5}  # fmt: skip


def injected(arm: str, batch_size: int, repeat: int, round_ms: float) -> dict[str, Any]:
    """A window of depth 3 under an arm's name."""
    return {**window("static-3", batch_size, "0.7", repeat, round_ms), "arm": arm}


def constrained(arm: str, batch_size: int, kind: str, repeat: int, ms: float) -> dict[str, Any]:
    """A window of real acceptance."""
    return {
        "arm": arm,
        "batch_size": batch_size,
        "kind": kind,
        "repeat": repeat,
        "num_tokens": 300 * batch_size,
        "seconds": 100 * ms / 1e3 * (1 + 0.001 * repeat),
        "rounds": {"3": 100},
        "num_eager_rounds": 0,
    }


def run_record(round_ms: dict[str, float] = ROUND_MS) -> dict[str, Any]:
    """The record of a run of both parts."""
    return {
        "purpose": "overlap",
        "provenance": dict(PROVENANCE),
        "windows": [
            injected(arm, size, repeat, took)
            for size in (1, 4, 32)
            for repeat in (1, 2, 3)
            for arm, took in round_ms.items()
        ],
        "grammar": [
            constrained(arm, size, kind, repeat, took)
            for size in (1, 8, 32)
            for kind in ("schema", "free")
            for repeat in (1, 2, 3)
            for arm, took in round_ms.items()
        ],
        "refused": {"none-no-overlap": "NotImplementedError"},
        "servers": [],
    }


@pytest.fixture(scope="module")
def complete() -> dict[str, Any]:
    """A whole result, as read from its file."""
    return dict(json.loads(json.dumps(merged([run_record()]))))


def test_a_complete_result_passes(complete: Any) -> None:
    assert check_overlap(complete) == []


def test_a_run_of_the_other_pairs_alone_lacks_parts_and_is_not_wrong() -> None:
    none_alone = {"none": 10.0, "none-no-overlap": 10.5}
    problems = check_overlap(merged([run_record(none_alone)]))
    assert problems
    assert all(isinstance(problem, Gap) for problem in problems)


@pytest.mark.parametrize("part", ["cells", "grammar"])
def test_one_command_alone_lacks_the_other_and_is_not_wrong(complete: Any, part: str) -> None:
    result = {**complete, part: []}
    (problem,) = check_overlap(result)
    assert isinstance(problem, Gap)
    assert problem.startswith(f"{part} lacks")


def test_a_file_without_any_cell_is_wrong(complete: Any) -> None:
    problems = check_overlap({**complete, "cells": [], "grammar": []})
    assert problems
    assert not any(isinstance(problem, Gap) for problem in problems)


def test_the_time_of_a_token_is_the_batch_over_the_rate(complete: Any) -> None:
    (cell,) = (
        one for one in complete["grammar"] if one["batch_size"] == 8 and one["kind"] == "free"
    )
    # 100 rounds of 10 ms give each request 300 tokens.
    assert cell["ms_per_token"]["goodput"] == pytest.approx(10 / 3, rel=0.01)
    assert cell["tokens_per_s"]["goodput"] == pytest.approx(2400, rel=0.01)


def test_ours_gains_from_the_overlap_as_much_as_static_eagle(complete: Any) -> None:
    made = figures(complete)
    assert [each.is_met for each in made] == [True] * 4
    assert made[0].ratio.value == pytest.approx(1.15, rel=0.01)
    assert "none-no-overlap refused: NotImplementedError" in figure_table(complete)
    assert "1 0.7 static-3 / static-3-no-overlap" in cell_table(complete)


@pytest.mark.parametrize(
    ("goodput_ms", "is_met"),
    # no loss, but half of static EAGLE's gain; then a loss
    [(10.8, [True, False] * 2), (12.0, [False, False] * 2)],
)
def test_a_schedule_that_overlaps_less_misses_its_claims(
    goodput_ms: float, is_met: list[bool]
) -> None:
    result = merged([run_record({**ROUND_MS, "goodput": goodput_ms})])
    assert check_overlap(result) == []
    assert [each.is_met for each in figures(result)] == is_met


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        ("cells", lambda cell: cell["tokens_per_s"].update(goodput=1.0), "tokens_per_s.goodput"),
        ("cells", lambda cell: cell["ms_per_token"].update(goodput=1.0), "ms_per_token.goodput"),
        ("cells", lambda cell: cell["windows"].pop("goodput"), "lacks ['goodput']"),
        ("cells", lambda cell: cell.update(batch_size=2), "cells lacks ['1 0.7']"),
        (
            "cells",
            lambda cell: [each.update(num_tokens=9) for each in cell["windows"]["goodput"]],
            "1 0.7 goodput: other acceptance",
        ),
        ("grammar", lambda cell: cell["stderr"].update(goodput=0.0), "1 free.stderr.goodput"),
        (
            "grammar",
            lambda cell: cell["windows"]["goodput"].pop(),
            "1 free goodput: 2 of 3 windows",
        ),
        ("grammar", lambda cell: cell.update(kind="schema"), "grammar lacks ['1 free']"),
    ],
)
def test_a_spoilt_cell_is_found(complete: Any, part: str, change: Any, message: str) -> None:
    result = copy.deepcopy(complete)
    change(result[part][0])
    assert any(message in problem for problem in check_overlap(result))


def test_the_arms_of_a_pair_differ_in_what_they_compare() -> None:
    for arm, other in {**PAIRS, **OTHER_PAIRS}.items():
        one, two = OVERLAP_ARMS[arm], OVERLAP_ARMS[other]
        assert (one.speculative, one.config) == (two.speculative, two.config)
        assert (one.extra, two.extra) == ((), ("--disable-overlap-schedule",))
    assert set(DEFAULT_ARMS) == {arm for pair in PAIRS.items() for arm in pair}
    assert set(GRAMMAR_ARMS) <= set(OVERLAP_ARMS)


def test_a_grammar_gets_a_tokenizer_and_real_acceptance(tmp_path: Path) -> None:
    args = parser().parse_args(["grammar", "--prompts", "p.json", "--out", "out"])
    plan = fleet_plan(args, tmp_path)
    changed = with_tokenizer(plan)
    assert NO_TOKENIZER in plan.common
    assert NO_TOKENIZER not in changed.common
    assert (plan.inject_seed, changed.inject_seed) == (1, None)


def test_a_run_visits_the_cells_of_the_result() -> None:
    args = parser().parse_args(["run", "--out", "out"])
    assert (args.batches, args.acceptances) == ((1, 4, 32), ("0.7",))
    assert args.repeats * args.windows >= 3
    assert args.port < 32000


def test_the_error_of_a_refused_server_is_its_last_one(tmp_path: Path) -> None:
    log = tmp_path / "arm.log"
    log.write_text(
        "ValueError: first\n  File x\nmodule.NotImplementedError: no stream\nbye Error\n"
    )
    assert last_error(log) == "module.NotImplementedError: no stream"
    log.write_text("all is well\n")
    assert last_error(log) == "no error in its log"
    assert last_error(tmp_path / "missing.log") == "no error in its log"
