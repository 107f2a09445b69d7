"""The demo's figures, checks and plot, from hand-made answers and counters."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from examples.demo.prompts import PHASES
from examples.demo.report import (
    EMA,
    GOODPUT,
    REFERENCE,
    ArmResult,
    best_static,
    checks_of,
    digest_of,
    figures_of,
    last_line,
    num_identical,
    report_json,
    rounds_by_phase,
    table,
    tier_shares,
    wall_time_lines,
    wall_times,
)
from examples.demo.timeline import draw, phase_spans, rates
from examples.demo.traffic import Answer, Snapshot

GOOD_ROUNDS = {"1": 40, "3": 25, "5": 20}
STEADY_SPEC: dict[str, Any] = {"rounds": {"1": 0, "3": 85, "5": 0}, "switches": {"policy": 0}}
SPEC: dict[str, Any] = {"rounds": GOOD_ROUNDS, "switches": {"policy": 4, "batch_size": 1}}


def answers(num_rounds: int = 10, num_correct: int = 0, seconds: float = 0.5) -> list[Answer]:
    return [
        Answer(phase, f"{phase} {n}", (n, n + 1, n + 2), seconds, num_rounds, num_correct)
        for phase in PHASES
        for n in range(2)
    ]


def snapshots() -> list[Snapshot]:
    """Ten seconds a phase; one tier per phase, the last phase like the first."""
    counts = [{"1": 0, "3": 0, "5": 0}, {"1": 20, "3": 0, "5": 0}, {"1": 20, "3": 25, "5": 0}]
    counts += [{"1": 20, "3": 25, "5": 20}, GOOD_ROUNDS]
    phases = [*PHASES, PHASES[-1]]
    steps = [3, 1, 3, 5, 1]
    return [
        Snapshot(10.0 * n, phase, steps[n], counts[n], 30 * n) for n, phase in enumerate(phases)
    ]


def arms(spec: dict[str, Any] | None = None) -> list[ArmResult]:
    static = [ArmResult(f"static {n}", [], 20.0, answers(8, 16), [], None) for n in (1, 3, 5)]
    return [
        ArmResult(REFERENCE, ["server"], 20.0, answers(), [], None),
        *static,
        ArmResult(EMA, ["server"], 20.0, answers(5, 10), snapshots(), spec or SPEC),
        # Keeping to one tier is no failure of a policy that counts what rounds cost.
        ArmResult(GOODPUT, ["server"], 20.0, answers(5, 10, 0.4), snapshots(), STEADY_SPEC),
    ]


def failed(results: list[ArmResult]) -> list[str]:
    return [check.claim for check in checks_of(results) if not check.is_met]


def test_a_good_run_passes_and_says_identical() -> None:
    assert failed(arms()) == []
    assert last_line(arms()) == "identical: yes (16 answers, 48 tokens)"


@pytest.mark.parametrize(
    ("spec", "claim"),
    [
        ({**SPEC, "rounds": {"1": 40, "3": 25, "5": 19}}, "ema: at least 3 tiers"),
        ({**SPEC, "rounds": {"1": 40, "3": 25}}, "ema: at least 3 tiers"),
        ({**SPEC, "switches": {"policy": 3, "batch_size": 1}}, "ema: at least 5 switches"),
    ],
)
def test_too_few_tiers_rounds_or_switches_fail(spec: dict[str, Any], claim: str) -> None:
    assert [text[: len(claim)] for text in failed(arms(spec))] == [claim]


def test_a_server_without_our_worker_fails() -> None:
    plain = [replace(arm, adaptive_spec=None) for arm in arms()]
    assert len(failed(plain)) == 2


@pytest.mark.parametrize("idx", [-2, -1])
def test_one_other_token_of_either_policy_fails_and_changes_the_hash(idx: int) -> None:
    results = arms()
    arm = results[idx]
    other = replace(arm.answers[3], output_ids=(1, 2, 4))
    changed = [*arm.answers[:3], other, *arm.answers[4:]]
    results[idx] = replace(arm, answers=changed)
    claim = f"{arm.name}: every answer equals no speculation, token for token"
    assert failed(results) == [claim]
    assert last_line(results) == "identical: no (1 of 16 answers differ)"
    assert digest_of(changed) != digest_of(results[0].answers)
    assert num_identical(results[idx], results[0]) == 7
    assert not report_json(results, {})["passed"]


def test_wall_times_are_compared_with_every_arm() -> None:
    times = wall_times(arms())
    assert times.keys() == {arm.name for arm in arms()}
    assert times["static 3"] == {"seconds": 4.0, "goodput_share": pytest.approx(0.8)}
    assert times[GOODPUT]["goodput_share"] == 1
    report = report_json(arms(), {})
    assert report["wall_times"] == times


def test_the_best_static_arm_is_the_fastest_that_never_adapts() -> None:
    results = arms()
    results[2] = replace(results[2], answers=answers(8, 16, 0.45))
    results[-2] = replace(results[-2], answers=answers(5, 10, 0.1))
    assert best_static(results) == "static 3"
    assert wall_time_lines(results)[0].endswith("0.889 of the best static arm, static 3")
    assert report_json(results, {})["best_static"] == "static 3"


def test_a_goodput_arm_slower_than_a_static_one_says_by_how_much() -> None:
    results = arms()
    results[0] = replace(results[0], answers=answers(seconds=0.25))
    lines = wall_time_lines(results)
    assert lines[0].endswith("1.600 of the best static arm, none: SLOWER by 0.600")
    assert [line.split()[0] for line in lines[1:]] == ["none", "static", "static", "static", "ema"]


def test_no_answers_are_not_identical_answers() -> None:
    empty = [replace(arm, answers=[]) for arm in arms()]
    assert last_line(empty).startswith("identical: no")


def test_token_boundaries_matter_to_the_hash() -> None:
    one = [Answer("prose", "a", (1, 23), 1, 1, 0)]
    assert digest_of(one) != digest_of([replace(one[0], output_ids=(12, 3))])
    assert digest_of(one) != digest_of([replace(one[0], output_ids=(1,)), one[0]])


def test_figures_follow_their_definitions() -> None:
    figures = figures_of(answers(num_rounds=10, num_correct=15))
    assert figures.tokens_per_s == 24 / 4.0
    assert figures.accept_length == 1 + 15 / 10
    assert figures_of(answers()).accept_length == 1


def test_rounds_of_a_phase_are_counter_differences() -> None:
    assert rounds_by_phase(snapshots()) == {
        "prose": {"1": 20, "3": 0, "5": 0},
        "code": {"1": 0, "3": 25, "5": 0},
        "JSON": {"1": 0, "3": 0, "5": 20},
        "prose again": {"1": 20, "3": 0, "5": 0},
    }
    shares = tier_shares(arms()[-2])
    assert shares[1] == {"1": 0, "3": 1, "5": 0}
    assert sum(shares[-1].values()) == pytest.approx(1)


def test_the_table_has_a_row_and_a_hash_per_arm() -> None:
    text = table(arms())
    for arm in arms():
        assert arm.name in text
        assert digest_of(arm.answers) in text
    assert "6.0 (3.00)" in text
    assert "rounds of ema" in text
    assert "rounds of goodput" in text
    assert all(phase in text for phase in PHASES)


def test_the_report_is_json_with_provenance_and_raw_answers() -> None:
    report = json.loads(json.dumps(report_json(arms(), {"new_tokens": 3})))
    assert {"git_sha", "versions", "argv", "machine", "date"} <= report["provenance"].keys()
    assert report["provenance"]["versions"].keys() >= {"python", "sglang", "torch"}
    adaptive = report["arms"][EMA]
    assert adaptive["all"]["tokens_per_s"] == 6
    assert len(adaptive["answers"]) == 8
    assert adaptive["rounds_by_phase"]["code"]["3"] == 25


def test_rates_come_from_windows_of_counters() -> None:
    points = rates(snapshots())
    assert points[0] == (10.0, 1 + 30 / 20, (20 + 30) / 10)
    assert [time_s for time_s, _, _ in points] == [10.0, 20.0, 30.0, 40.0]


def test_spans_cover_the_run_without_gaps() -> None:
    spans = list(phase_spans(snapshots()))
    assert [phase for phase, _, _ in spans] == list(PHASES)
    assert [(start, end) for _, start, end in spans] == [(0, 10), (10, 20), (20, 30), (30, 40)]


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_the_plot_is_written(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"timeline.{suffix}"
    draw(arms(), path)
    assert path.stat().st_size > 5000
