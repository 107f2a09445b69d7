"""The demo's figures, checks and plot, from hand-made answers and counters."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from examples.demo.prompts import PHASES
from examples.demo.report import (
    ADAPTIVE,
    REFERENCE,
    ArmResult,
    checks_of,
    digest_of,
    figures_of,
    last_line,
    num_identical,
    report_json,
    rounds_by_phase,
    table,
    tier_shares,
)
from examples.demo.timeline import draw, phase_spans, rates
from examples.demo.traffic import Answer, Snapshot

GOOD_ROUNDS = {"1": 40, "3": 25, "5": 20}
SPEC: dict[str, Any] = {"rounds": GOOD_ROUNDS, "switches": {"policy": 4, "batch_size": 1}}


def answers(num_rounds: int = 10, num_correct: int = 0) -> list[Answer]:
    return [
        Answer(phase, f"{phase} {n}", (n, n + 1, n + 2), 0.5, num_rounds, num_correct)
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
        ArmResult(ADAPTIVE, ["server"], 20.0, answers(5, 10), snapshots(), spec or SPEC),
    ]


def failed(results: list[ArmResult]) -> list[str]:
    return [check.claim for check in checks_of(results) if not check.is_met]


def test_a_good_run_passes_and_says_identical() -> None:
    assert failed(arms()) == []
    assert last_line(arms()) == "identical: yes (8 answers, 24 tokens)"


@pytest.mark.parametrize(
    ("spec", "claim"),
    [
        ({**SPEC, "rounds": {"1": 40, "3": 25, "5": 19}}, "at least 3 tiers"),
        ({**SPEC, "rounds": {"1": 40, "3": 25}}, "at least 3 tiers"),
        ({**SPEC, "switches": {"policy": 3, "batch_size": 1}}, "at least 5 switches"),
    ],
)
def test_too_few_tiers_rounds_or_switches_fail(spec: dict[str, Any], claim: str) -> None:
    assert [text[: len(claim)] for text in failed(arms(spec))] == [claim]


def test_a_server_without_our_worker_fails() -> None:
    plain = [replace(arm, adaptive_spec=None) for arm in arms()]
    assert len(failed(plain)) == 2


def test_one_other_token_fails_and_changes_the_hash() -> None:
    results = arms()
    other = replace(results[-1].answers[3], output_ids=(1, 2, 4))
    changed = [*results[-1].answers[:3], other, *results[-1].answers[4:]]
    results[-1] = replace(results[-1], answers=changed)
    assert failed(results) == ["every ADAPTIVE_EAGLE answer equals no speculation, token for token"]
    assert last_line(results) == "identical: no (1 of 8 answers differ)"
    assert digest_of(changed) != digest_of(results[0].answers)
    assert num_identical(results[-1], results[0]) == 7
    assert not report_json(results, {})["passed"]


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
    shares = tier_shares(arms()[-1])
    assert shares[1] == {"1": 0, "3": 1, "5": 0}
    assert sum(shares[-1].values()) == pytest.approx(1)


def test_the_table_has_a_row_per_arm_and_both_hashes() -> None:
    text = table(arms())
    for arm in arms():
        assert arm.name in text
        assert digest_of(arm.answers) in text
    assert "6.0 (3.00)" in text
    assert all(phase in text for phase in PHASES)


def test_the_report_is_json_with_provenance_and_raw_answers() -> None:
    report = json.loads(json.dumps(report_json(arms(), {"new_tokens": 3})))
    assert {"git_sha", "versions", "argv", "machine", "date"} <= report["provenance"].keys()
    assert report["provenance"]["versions"].keys() >= {"python", "sglang", "torch"}
    adaptive = report["arms"][ADAPTIVE]
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
