"""Transition: the oracle of phases, figures that follow from their passes, misses by name."""

import copy
import json
from pathlib import Path
from statistics import harmonic_mean
from typing import Any

import pytest

from benchmarks.inject.acceptance import probability_of
from benchmarks.stats.windows import MATRIX_ARMS
from benchmarks.studies.transition.__main__ import (
    WORKLOADS,
    Loop,
    cycled,
    injected_ids,
    parser,
    prompts_of,
)
from benchmarks.studies.transition.summary import (
    best_static,
    check_transition,
    figures,
    merged,
    oracle_arms,
    oracle_rates,
    over,
    rates,
)
from tests.lab.records import PROVENANCE

TOKENS = 1000
# Rates by arm in phases that accept little and much.
LOW = {"none": 100.0, "static-1": 90.0, "static-3": 80.0, "static-5": 60.0, "static-7": 50.0,
       "builtin": 85.0, "ema": 88.0, "goodput": 99.0}  # fmt: skip
HIGH = {"none": 100.0, "static-1": 150.0, "static-3": 200.0, "static-5": 240.0, "static-7": 300.0,
        "builtin": 220.0, "ema": 230.0, "goodput": 295.0}  # fmt: skip


def run_record(repeats: tuple[int, ...] = (1, 2, 3)) -> dict[str, Any]:
    """A run of all cells; only the phases named high accept much."""
    passes = [
        {
            "arm": arm,
            "concurrency": concurrency,
            "workload": workload,
            "repeat": repeat,
            "phases": {
                name: {
                    "num_tokens": TOKENS,
                    "seconds": TOKENS / (HIGH if source == "high" or source == "0.95" else LOW)[arm]
                    * (1 + 0.001 * repeat),
                    "num_rounds": 500,
                }
                for name, source in phases
            },
        }
        for concurrency in (2, 16, 64)
        for workload, phases in WORKLOADS.items()
        for repeat in repeats
        for arm in MATRIX_ARMS
    ]  # fmt: skip
    return {"purpose": "transition", "provenance": dict(PROVENANCE), "passes": passes}


@pytest.fixture(scope="module")
def complete() -> dict[str, Any]:
    """A whole result, as read from its file."""
    return dict(json.loads(json.dumps(merged([run_record()]))))


def test_a_complete_result_passes(complete: Any) -> None:
    assert check_transition(complete) == []


def test_the_oracle_takes_each_phase_at_its_best_constant_depth(complete: Any) -> None:
    cell = complete["cells"][0]
    assert oracle_arms(cell) == {
        "low_1": "none", "high_1": "static-7", "low_2": "none", "high_2": "static-7"
    }  # fmt: skip
    # Equal tokens in every phase: half of them at 100, half at 300 tokens/s.
    assert oracle_rates(cell) == {
        repeat: pytest.approx(150.0 / (1 + 0.001 * repeat)) for repeat in (1, 2, 3)
    }


def test_a_slow_machine_in_some_passes_of_one_arm_alone_changes_no_ratio() -> None:
    records = run_record((1, 2, 3)), run_record((4, 5, 6))
    records[1]["passes"] = [one for one in records[1]["passes"] if one["arm"] != "builtin"]
    for one in records[1]["passes"]:
        for phase in one["phases"].values():
            phase["seconds"] *= 2
    cell = merged(records, is_incomplete=True)["cells"][0]
    both = [harmonic_mean((LOW[arm], HIGH[arm])) for arm in ("goodput", "builtin")]
    assert over(cell, rates(cell, "builtin")).value == pytest.approx(both[0] / both[1])
    assert over(cell, rates(cell, "none")).value == pytest.approx(both[0] / 100)
    assert len(cell["raw"]["none"]) == 6


def test_the_best_single_depth_is_that_of_the_whole_and_never_an_adaptive_arm(
    complete: Any,
) -> None:
    cell = copy.deepcopy(complete["cells"][0])
    cell["tokens_per_s"].update(goodput=1e6)
    # Harmonic means of two phases: none 100, static-3 114, static-7 86.
    assert best_static(cell) == "static-3"


def test_every_cell_has_its_claims_and_a_slow_policy_misses_them(complete: Any) -> None:
    met = {each.claim: each.is_met for each in figures(complete)}
    num_of_oracle = 3 * 2  # injected alone: of it, and of the best single depth
    assert len(met) == 9 * 2 + num_of_oracle + 1
    assert met["2 alternating: goodput / none"]
    assert met["2 injected: goodput / oracle"]
    assert met["2 alternating: goodput / builtin"]
    record = run_record()
    for one in record["passes"]:
        if one["arm"] == "goodput":
            for phase in one["phases"].values():
                phase["seconds"] *= 1.2
    met = {each.claim: each.is_met for each in figures(merged([record]))}
    assert not met["2 injected: goodput / oracle"]
    assert met["2 alternating: goodput / builtin"]


def test_where_the_oracle_is_worth_much_more_is_asked(complete: Any) -> None:
    by_claim = {each.claim: each for each in figures(complete)}
    (injected,) = (one for name, one in by_claim.items() if name.startswith("2 injected") and
                   "static-3" in name)  # fmt: skip
    assert (injected.limit, by_claim["2 mixed-text: goodput / none"].limit) == (1.12, 1.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda cell: cell["tokens_per_s"].update(ema=1.0), "tokens_per_s.ema: the file says"),
        (lambda cell: cell["phases"]["none"].update(low_1=1.0), "phases.none.low_1: the file"),
        (lambda cell: cell["stderr"].update(ema=0.0), "stderr.ema: the file says"),
        (
            lambda cell: cell["raw"]["ema"][0]["phases"]["low_1"].update(num_tokens=900),
            "phases of different numbers of tokens",
        ),
        (lambda cell: cell["raw"].pop("static-1"), "raw lacks"),
        (lambda cell: cell["raw"]["none"].pop(), "none: 2 of 3 repeats in pairs"),
        (lambda cell: cell.update(concurrency=3), "cells lacks"),
    ],
)
def test_a_spoilt_cell_is_found(complete: Any, change: Any, message: str) -> None:
    result = copy.deepcopy(complete)
    change(result["cells"][0])
    assert any(message in problem for problem in check_transition(result))


def test_prompts_run_in_turn_until_there_are_enough() -> None:
    assert cycled([[1], [2], [3]], 5) == [[1], [2], [3], [1], [2]]


def test_the_plot_shows_every_cell(complete: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from benchmarks.studies.transition.plot import plot_transition

    plot_transition(complete, tmp_path / "transition.svg")
    drawn = (tmp_path / "transition.svg").read_text()
    assert ">alternating, 64 in flight<" in drawn
    assert ">goodput<" in drawn


def test_injected_requests_carry_their_acceptance_and_are_drawn_anew_per_phase_and_repeat() -> None:
    loops = [Loop(16, 2, 192, repeat) for repeat in (1, 2)]
    ids = [
        injected_ids(probability, name, 32, loop)
        for loop in loops
        for name, probability in WORKLOADS["injected"]
    ]
    assert len({each for some in ids for each in some}) == 8 * 32
    assert {probability_of(each) for each in ids[0]} == {0.3}
    assert {probability_of(each) for each in ids[1]} == {0.95}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--prompts is missing"),
        (("--workloads", "injected,alternating"), "needs servers of its own"),
    ],
)
def test_acceptance_is_either_real_or_injected(arguments: Any, message: str) -> None:
    args = parser().parse_args(["run", "--out", "x", *arguments])
    with pytest.raises(SystemExit, match=message):
        prompts_of(args)


def test_injected_phases_share_prompts_enough_for_the_largest_loop() -> None:
    args = parser().parse_args(["run", "--out", "x", "--workloads", "injected"])
    prompts = prompts_of(args)
    assert set(prompts) == {"0.3", "0.95"}
    assert len(prompts["0.3"]) == 4 * 64
    assert {len(prompt) for prompt in prompts["0.3"]} == {128}
