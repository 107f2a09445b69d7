"""The matrix: merged from several commands, recomputed, and every spoilt figure found."""

import copy
import json
from typing import Any

import pytest

from benchmarks.stats.figures import geometric_mean
from benchmarks.stats.tokens import tokens_per_round
from benchmarks.stats.windows import (
    MATRIX_ARMS,
    STATIC,
    best_static,
    driftless_stderr,
    halves,
    luck,
    relative_stderr,
)
from benchmarks.studies.matrix.check import check_matrix
from benchmarks.studies.matrix.summary import merged
from benchmarks.studies.matrix.tables import (
    cell_table,
    figure_table,
    figures,
    missed_cells,
    over_earlier,
    ratio_of,
)
from tests.lab.matrix_records import run_record

SMALL = (4, 16)


@pytest.fixture(scope="module")
def complete() -> dict[str, Any]:
    """A whole matrix, as read from its file."""
    return dict(json.loads(json.dumps(merged([run_record()]))))


@pytest.fixture(scope="module")
def small() -> dict[str, Any]:
    """Two batch sizes of it."""
    return merged([run_record(batch_sizes=SMALL)])


def cell_of(result: Any, batch_size: int, acceptance: str) -> dict[str, Any]:
    """One cell."""
    return next(
        cell
        for cell in result["cells"]
        if (cell["batch_size"], cell["acceptance"]) == (batch_size, acceptance)
    )


def test_a_complete_matrix_passes_and_has_every_cell_but_a_mixed_batch_of_one(
    complete: Any,
) -> None:
    assert check_matrix(complete) == []
    assert len(complete["cells"]) == 6 * 6 - 1


def test_a_rate_is_what_the_injected_acceptance_yields_at_the_depth_that_ran(small: Any) -> None:
    cell = cell_of(small, 16, "0.7")
    per_round = 16 * tokens_per_round(0.7, 5)
    assert cell["tokens_per_s"]["goodput"] == pytest.approx(per_round / 0.010, rel=0.002)
    assert cell["counted_tokens_per_s"]["goodput"] == pytest.approx(per_round / 0.010, rel=0.05)
    assert cell["stderr"]["goodput"] < cell["counted_stderr"]["goodput"]


def test_commands_with_some_arms_and_repeats_each_merge_to_the_same_matrix(small: Any) -> None:
    parts = [
        run_record(MATRIX_ARMS[:3], SMALL, (1, 2), date="2026-01-01T00:00:00+00:00"),
        run_record(MATRIX_ARMS[3:], SMALL, (1, 2, 3), date="2026-01-02T00:00:00+00:00"),
        run_record(MATRIX_ARMS[:3], SMALL, (3,), date="2026-01-03T00:00:00+00:00"),
    ]
    again = merged(parts[::-1])
    assert again["cells"] == small["cells"]
    assert len(again["provenance"]["argv"]) == 3


def test_ours_is_compared_with_an_earlier_commits_at_every_size() -> None:
    record = run_record(("goodput", "at-old"), SMALL)
    for window in record["windows"]:
        if window["arm"] == "at-old" and window["batch_size"] == 16:
            window["seconds"] *= 0.97
    result = merged([record])
    ratios = {
        each.claim: (each.ratio.value, each.verdict) for each in over_earlier(result, "at-old")
    }
    small, large, both = (f"goodput / at-old, {what}" for what in ("at 4", "at 16", "all cells"))
    assert ratios[small] == (pytest.approx(1.0), "met")
    assert ratios[large] == (pytest.approx(0.97), "MISSED")
    assert ratios[both][0] == pytest.approx(0.97 ** (6 / 12), rel=0.01)
    assert large in figure_table(result)
    assert cell_table(result) == "no constant depth was run"


def test_runs_of_different_code_do_not_merge() -> None:
    with pytest.raises(ValueError, match="differ in code_sha256"):
        merged([run_record(batch_sizes=(4,)), run_record(batch_sizes=(4,), code_sha256="other")])


def test_runs_merge_whatever_number_of_gpus_of_a_kind_the_machines_have() -> None:
    gpu = "NVIDIA H200, 580.1"
    first = run_record(batch_sizes=(4,), gpu=gpu)
    assert merged([first, run_record(batch_sizes=(4,), gpu=f"{gpu}\n{gpu}")])
    with pytest.raises(ValueError, match="differ in gpu"):
        merged([first, run_record(batch_sizes=(4,), gpu="NVIDIA H100, 580.1")])


def test_a_cell_without_an_arm_that_others_have_is_named() -> None:
    parts = [run_record(MATRIX_ARMS[:2], (4, 16)), run_record(MATRIX_ARMS[2:], (4,))]
    with pytest.raises(ValueError, match=r"cell \(16, '0.3'\) lacks \['builtin'"):
        merged(parts)


def test_a_drift_of_all_arms_is_no_doubt_about_any() -> None:
    rates = {
        "none": [100.0, 98.0, 96.04],
        "ema": [50.0, 49.0, 48.02],
        "goodput": [60.0, 58.0, 58.0],
    }
    stderr = driftless_stderr(rates, dict.fromkeys(rates, (0, 1, 2)))
    assert stderr["goodput"] is not None
    assert stderr["goodput"] > 0.005, "its windows stray from the common drift"
    again = driftless_stderr(
        {**rates, "goodput": [60.0, 58.8, 57.624]}, dict.fromkeys(rates, (0, 1, 2))
    )
    assert again == pytest.approx(dict.fromkeys(rates, 0.0), abs=1e-6)


def test_two_visits_that_differ_are_doubt_whatever_the_drift() -> None:
    rates = {"none": [100.0, 98.0], "goodput": [60.0, 58.8, 66.0, 64.68]}
    stderr = driftless_stderr(rates, {"none": (0, 1), "goodput": (0, 1, 0, 1)})
    assert stderr["goodput"] == pytest.approx(0.0275, rel=0.01)


def test_an_arm_alone_has_nobody_to_show_its_drift() -> None:
    assert driftless_stderr({"none": [99.0, 101.0]}, {"none": (0, 1)}) == {
        "none": pytest.approx(0.01, rel=0.01)
    }


def test_the_standard_error_of_one_repeat_is_unknown() -> None:
    assert relative_stderr([100.0]) is None
    assert relative_stderr([99.0, 101.0]) == pytest.approx(0.01)


def test_counted_tokens_agree_with_the_acceptance_that_was_drawn(small: Any) -> None:
    strays = [luck(cell, arm) for cell in small["cells"] for arm in MATRIX_ARMS]
    assert max(map(abs, strays)) < 4
    assert {luck(cell, "none") for cell in small["cells"]} == {0.0}


def test_servers_beside_each_other_that_draw_the_same_count_once(small: Any) -> None:
    cell = small["cells"][0]
    stray = luck(cell, "static-3")
    twice = {arm: [*windows, *windows] for arm, windows in cell["windows"].items()}
    assert stray != 0.0
    assert luck({**cell, "windows": twice}, "static-3") == pytest.approx(stray)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda cell: cell["tokens_per_s"].update(goodput=1e6), "16 0.7.tokens_per_s.goodput"),
        (lambda cell: cell["stderr"].update(none=0.0), "16 0.7.stderr.none: the file says"),
        (lambda cell: cell["raw"]["ema"].pop(), "16 0.7.raw.ema: the file says"),
        (lambda cell: cell["windows"]["ema"][0].update(seconds=1.9), "16 0.7.raw.ema"),
        (lambda cell: cell["windows"]["ema"][0]["rounds"].update({"3": 220}), "16 0.7.raw.ema"),
        (lambda cell: cell["windows"].pop("static-5"), "16 0.7.windows: keys"),
        (lambda cell: cell.pop("counted_stderr"), "16 0.7: keys"),
        (lambda cell: cell.update(acceptance="0.71"), "cells lacks ['16 0.7']"),
    ],
)
def test_a_spoilt_cell_is_found(complete: Any, change: Any, message: str) -> None:
    result = copy.deepcopy(complete)
    change(cell_of(result, 16, "0.7"))
    assert any(message in problem for problem in check_matrix(result))


def test_acceptance_that_was_not_injected_is_found() -> None:
    record = run_record(batch_sizes=(16,))
    for window in record["windows"]:
        if window["arm"] == "static-3" and window["acceptance"] == "0.7":
            window["num_tokens"] = int(window["num_tokens"] * 0.93)
    problems = check_matrix(merged([record]))
    assert any("16 0.7 static-3: counted tokens stray by -" in problem for problem in problems)


def test_two_repeats_are_too_few() -> None:
    problems = check_matrix(merged([run_record(repeats=(1, 2))]))
    assert "4 0.3 none: 2 of 3 repeats" in problems


def test_the_best_static_arm_may_be_none_but_never_an_adaptive_one(small: Any) -> None:
    cell = copy.deepcopy(cell_of(small, 16, "0.7"))
    assert best_static(cell) == "static-7"
    cell["tokens_per_s"].update(none=1e6, goodput=1e7, builtin=1e7)
    assert best_static(cell) == "none"


def test_the_best_static_arm_is_chosen_on_odd_windows_and_compared_on_even_ones() -> None:
    """Goodput ran 5 steps all the time; the static arm of 5 was luckier in odd windows."""
    record = run_record(batch_sizes=(16,), repeats=(1, 2, 3, 4, 5, 6))
    for window in record["windows"]:
        is_odd = window["repeat"] % 2 == 1
        if window["arm"] == "static-5":
            window["seconds"] *= 0.5 if is_odd else 0.8
    result = merged([record])
    claims = {each.claim: each.ratio.value for each in figures(result)}
    assert claims["goodput / best static, geometric mean"] == pytest.approx(0.8, rel=0.01)
    short = merged([run_record(batch_sizes=(16,), repeats=(1, 2, 3, 4, 5))])
    assert halves(short["cells"][0]) == (short["cells"][0], short["cells"][0])


def test_every_claim_is_judged_and_a_slow_cell_is_named() -> None:
    record = run_record(batch_sizes=SMALL)
    fast = merged([record])
    # All rounds take 10 ms, so the deepest static arm is best and 5 steps are a little slower.
    assert ratio_of(cell_of(fast, 16, "0.3"), "goodput", "static-7").value > 0.99
    for window in record["windows"]:
        if window["arm"] == "goodput":
            slow = window["acceptance"] == "0.95" and window["batch_size"] == 16
            window["seconds"] *= 2.0 if slow else 0.5
    claims = {each.claim: each for each in figures(merged([record]))}
    assert not claims["goodput / best static, worst cell (16 0.95)"].is_met
    assert claims["goodput / best static, geometric mean"].is_met
    assert claims["highest standard error of an arm's mean"].is_met
    assert claims["rounds without a graph"].is_met
    assert claims["captures after ready, our arms"].is_met
    *named, unknown = [row[0] for row in missed_cells(merged([record]))]
    assert "not known" in unknown
    assert named == ["16 0.95: goodput / static-7", "16 0.95: goodput / builtin"]


def test_a_capture_while_serving_and_a_round_without_a_graph_are_misses() -> None:
    record = run_record(batch_sizes=(4,))
    record["windows"][0]["num_eager_rounds"] = 3
    for server in record["servers"]:
        server["captures"]["after_ready"] = 1
    claims = {each.claim: each for each in figures(merged([record]))}
    assert claims["rounds without a graph"].ratio.value == 3
    assert not claims["rounds without a graph"].is_met
    # Of our two arms; the host's own may do as they like.
    assert claims["captures after ready, our arms"].ratio.value == 2


def test_the_share_of_the_ceiling_is_that_of_the_best_static_arms(small: Any) -> None:
    by_name = {each.claim: each.ratio for each in figures(small)}
    (share,) = (ratio for name, ratio in by_name.items() if "share of the ceiling" in name)
    assert share == pytest.approx(by_name["goodput / best static, geometric mean"])


def test_the_best_setting_for_all_cells_is_one_setting(small: Any) -> None:
    by_name = {each.claim: each.ratio.value for each in figures(small)}
    (single,) = (name for name in by_name if "in every cell" in name)
    of_each = {
        arm: geometric_mean([ratio_of(cell, "goodput", arm) for cell in small["cells"]]).value
        for arm in STATIC
    }
    assert by_name[single] == min(of_each.values())
    assert single.split()[2] == min(of_each, key=lambda arm: of_each[arm])
    assert by_name["goodput / none, geometric mean"] == of_each["none"]
    assert by_name[single] >= by_name["goodput / best static, geometric mean"]


def test_the_slowest_seeding_and_the_most_probing_are_judged() -> None:
    records = [run_record(batch_sizes=(4,)) for _ in range(2)]
    for server in records[1]["servers"]:
        server["plugin"]["seeding"]["seconds"] = 11.0
    claims = {each.claim: each for each in figures(merged(records))}
    assert not claims["seeding, s"].is_met
    assert claims["probing, share of time"].ratio.value == 0.004
    for record in records:  # a policy that states neither
        for server in record["servers"]:
            server["plugin"] = {"seeding": None}
    assert "seeding, s" not in {each.claim for each in figures(merged(records))}


def test_an_incomplete_matrix_keeps_its_cells_and_is_refused_by_the_check() -> None:
    parts = [run_record(MATRIX_ARMS, (4,)), run_record(MATRIX_ARMS[:2], (16,))]
    result = merged(parts, is_incomplete=True)
    assert {cell["batch_size"] for cell in result["cells"]} == {4, 16}
    assert any("16" in problem and "static-7" in problem for problem in check_matrix(result))
