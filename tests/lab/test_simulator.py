"""Simulator benchmark: cells are simulated as the matrix measures them, figures are recomputed."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.stats.provenance import RESULTS
from benchmarks.stats.result_file import read_result, write_result
from benchmarks.stats.tokens import expected_tokens
from benchmarks.studies.simulator import summary as simulator
from benchmarks.studies.simulator.server_costs import ServerCosts, keep_costs
from benchmarks.studies.simulator.summary import Visitor
from sglang_adaptive_spec.ladder import Ladder
from sglang_adaptive_spec.policy.acceptance.model import AcceptanceModel
from sglang_adaptive_spec.policy.goodput import GoodputPolicy
from sglang_adaptive_spec.simulate.synthetic import Phase, SyntheticWorkload
from sglang_adaptive_spec.tiers import PLAIN_TIER, DecodeBatch, chain_tier
from tests.lab.records import PROVENANCE

COMMAND = ["matrix.py", "run", "--arms", "goodput", "--settle-s", "0.5", "--out", "out"]
SHORT = SyntheticWorkload("short", 0.2, ((0, 4),), (Phase(0, (0.7,)),))


def cell(batch_size: int, acceptance: str, rate: float) -> dict[str, Any]:
    return {
        "batch_size": batch_size,
        "acceptance": acceptance,
        "tokens_per_s": {"goodput": rate, "none": 1.0},
        "stderr": {"goodput": 0.01, "none": 0.01},
        "raw": {"goodput": [rate] * 3, "none": [1.0] * 3},
        "windows": {"goodput": [{"rounds": {"3": 10, "packed": 4}}] * 3},
    }


@pytest.fixture(scope="module", autouse=True)
def small_work() -> Iterator[None]:
    """One short trace instead of the golden ones, two seeds instead of five."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulator, "golden_workloads", lambda: {"short": SHORT})
        patch.setattr(simulator, "SEEDS", (1, 2))
        yield


@pytest.fixture
def measured() -> dict[str, Any]:
    """The part of a matrix that is read: two cells, measured after the costs."""
    return matrix()


def matrix() -> dict[str, Any]:
    return {
        "provenance": {**PROVENANCE, "argv": [COMMAND, [*COMMAND, "--tag", "b1"]]},
        "cells": [cell(4, "0.7", 1000.0), cell(16, "mixed", 2000.0)],
        "servers": [{"arm": "goodput", "date": "2027-01-01T00:00:00+00:00"}],
    }


@pytest.fixture(scope="module")
def costs() -> ServerCosts:
    return ServerCosts(RESULTS / simulator.COSTS)


def test_a_batch_chooses_what_that_server_captured_for_it(costs: ServerCosts) -> None:
    """It captured 10 steps up to 8 requests."""
    none, seven, ten = map(chain_tier, (0, 7, 10))
    captured = costs.captured(Ladder({1: [none, seven, ten], 33: [none, seven], 257: [none]}))
    assert [captured.of(size) for size in (8, 9, 64, 300)] == [
        (none, seven, ten),
        *[(none, seven)] * 2,
        (none,),
    ]


@pytest.fixture
def folder(tmp_path: Path, measured: Any) -> Path:
    """The inputs of a check."""
    shutil.copy(RESULTS / simulator.COSTS, tmp_path)
    write_result(tmp_path / simulator.MATRIX, measured)
    return tmp_path


@pytest.fixture(scope="module")
def simulated(small_work: None) -> str:
    """A whole result, as in its file."""
    raw, costs_from = simulator.simulate(matrix())
    return json.dumps(simulator.build_result(PROVENANCE, raw, matrix(), costs_from))


@pytest.fixture
def result(simulated: str) -> dict[str, Any]:
    return dict(json.loads(simulated))


@pytest.mark.parametrize(
    ("rounds", "compared"),
    [
        ({"3": 10, "packed": 11}, ["4 0.7"]),
        ({"3": 10, "10": 11}, ["4 0.7"]),  # captured up to 8 requests by the server of the costs
        ({"3": 11, "10": 10}, ["4 0.7", "16 mixed"]),
    ],
)
def test_a_cell_whose_times_the_costs_do_not_hold_is_not_compared(
    simulated: str, rounds: dict[str, int], compared: list[str]
) -> None:
    whole, other = json.loads(simulated), matrix()
    for window in other["cells"][1]["windows"]["goodput"]:
        window["rounds"] = rounds
    result = simulator.build_result(PROVENANCE, whole["raw"], other, whole["costs_from"])
    assert list(result["agreement"]) == list(result["measured_error"]) == compared


@pytest.mark.parametrize(("num_steps", "name"), [(0, "0.3"), (3, "mixed")])
def test_a_visit_gives_the_expected_tokens_over_the_period(
    costs: ServerCosts, measured: Any, num_steps: int, name: str
) -> None:
    tier, size = chain_tier(num_steps), 16
    policy = GoodputPolicy(
        Ladder({1: [tier]}), costs.table_off_by(0.0, 1), AcceptanceModel(10), tier
    )
    args = simulator.windows_of(measured)
    rate = simulator.visit(Visitor(policy), cell(size, name, 0.0), costs, args, seed=1)

    rows = [0.3, 0.9] * 8 if name == "mixed" else [0.3] * 16
    tokens = expected_tokens(rows, {str(num_steps): 1})
    context = size * 128 + rate * 0.8  # in the middle of the windows, 0.5 to 1.1 s
    ms = costs.round_ms(tier, size, round(context))
    assert rate == pytest.approx(1e3 * tokens / ms, rel=0.01)


def test_a_policy_meets_new_requests_and_a_later_time_in_every_visit(costs: ServerCosts) -> None:
    seen: list[DecodeBatch] = []

    class Watched(GoodputPolicy):
        def choose(self, batch: DecodeBatch) -> Any:
            seen.append(batch)
            return super().choose(batch)

    ladder, table = Ladder({1: [PLAIN_TIER]}), costs.table_off_by(0.0, 1)
    policy = Watched(ladder, table, AcceptanceModel(10), PLAIN_TIER)
    visitor = Visitor(policy)
    for _ in range(2):
        visitor.choose(DecodeBatch(2, (0, 1), 256, 0.25))
        visitor.go_on(num_requests=2, duration_s=1.0)
    assert [tuple(batch.requests) for batch in seen] == [(0, 1), (2, 3)]
    assert [batch.now_s for batch in seen] == [0.25, 1.25]


def test_depths_that_a_server_did_not_capture_never_pay(costs: ServerCosts) -> None:
    for size, most_tokens in ((16, 1.4), (128, 1.4)):  # (1 - 0.95^11) / (1 - 0.95^8) < 1.4
        context = 300 * size
        captured = costs.round_ms(chain_tier(7), size, context)
        assert costs.round_ms(chain_tier(10), size, context) > most_tokens * captured


def test_another_seed_gives_another_error(costs: ServerCosts) -> None:
    where = (chain_tier(3), 8, 2048)
    exact = costs.table_off_by(0.0, 1).round_ms(*where)
    assert exact == costs.table_off_by(0.0, 2).round_ms(*where)
    assert costs.table_off_by(0.02, 1).round_ms(*where) != exact
    assert costs.table_off_by(0.02, 1).round_ms(*where) != costs.table_off_by(0.02, 2).round_ms(
        *where
    )


def test_a_result_is_the_same_when_everything_is_replayed_again(result: Any, folder: Path) -> None:
    assert simulator.check_simulator(result, folder) == []


def test_agreement_is_simulated_over_measured_and_regret_the_share_of_the_oracle(
    result: Any,
) -> None:
    simulated = result["raw"]["cells"]["4 0.7"]
    assert len(simulated) == len(simulator.SEEDS)
    assert result["agreement"]["4 0.7"] == round(sum(simulated) / len(simulated) / 1000.0, 4)
    short = result["raw"]["golden"]["short"]
    assert result["of_oracle"] == {"short": round(short["goodput"] / short["oracle"], 4)}
    assert 0.7 < result["of_oracle"]["short"] <= 1.1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda result: result["of_oracle"].update(short=0.5),
            "of_oracle.short: the file says 0.5",
        ),
        (lambda result: result["agreement"].update({"4 0.7": 1.0}), "agreement.4 0.7: the file"),
        (lambda result: result["agreement"].pop("16 mixed"), "agreement.16 mixed: the file"),
        (lambda result: result["raw"]["cells"]["4 0.7"].pop(), "raw.cells.4 0.7: the file"),
        (lambda result: result["costs_from"].update(gpu="cpu"), "costs_from.gpu: the file"),
        (lambda result: result.pop("costs_from"), "file: keys"),
    ],
)
def test_a_spoilt_result_is_found(result: Any, folder: Path, change: Any, message: str) -> None:
    change(result)
    assert any(message in problem for problem in simulator.check_simulator(result, folder))


def test_costs_of_the_measured_server_itself_are_refused(
    result: Any, folder: Path, measured: Any
) -> None:
    measured["servers"][0]["date"] = result["costs_from"]["date"]
    write_result(folder / simulator.MATRIX, measured)
    (problem,) = simulator.check_simulator(result, folder)
    assert "was measured by a server of" in problem


def test_a_result_without_its_inputs_is_refused(result: Any, folder: Path) -> None:
    (folder / simulator.COSTS).unlink()
    assert simulator.check_simulator(result, folder) == [
        f"{simulator.COSTS} is missing: the simulator's input"
    ]


def test_commands_with_different_windows_are_refused(measured: Any) -> None:
    measured["provenance"]["argv"].append([*COMMAND, "--window-s", "0.3"])
    with pytest.raises(ValueError, match="differ in one of settle_s, settle_request_s"):
        simulator.windows_of(measured)


def test_a_cell_whose_measured_rate_is_not_sure_is_neither_met_nor_missed(result: Any) -> None:
    result["of_oracle"] = {"steady-low-8": 0.96, "phases-2s-16": 0.94, simulator.REPORTED: 0.9}
    result["agreement"] = {"1 0.3": 0.97, "4 0.3": 1.08, "4 0.5": 0.91, "4 0.7": 1.09}
    result["measured_error"] = {
        name: {"stderr": stderr, "windows": 25}
        for name, stderr in (("1 0.3", 0.0), ("4 0.3", 0.001), ("4 0.5", 0.01), ("4 0.7", 0.03))
    }
    shown = simulator.figure_table(result)
    assert shown.count("MISSED") == 2
    assert "simulated over measured (4 0.5)" in shown
    assert "1 of 4 cells agree within 5% by value, 1 surely, 2 surely not" in shown


def test_kept_costs_are_what_the_server_of_a_run_knew_at_its_end(tmp_path: Path) -> None:
    costs = read_result(RESULTS / simulator.COSTS)["costs"]
    server = {"arm": "goodput", "date": "2027-01-01T00:00:00", "plugin": {"cost_table": costs}}
    others = [{"arm": "none", "date": "2027-01-01T00:01:00"}, {"arm": "ema", "plugin": {}}]
    run, target = tmp_path / "matrix-a1.json", tmp_path / "kept.json"
    run.write_text(json.dumps({"provenance": PROVENANCE, "servers": [*others, server]}))
    keep_costs(run, target)
    assert ServerCosts(target).origin["date"] == server["date"]
    assert json.loads(target.read_text())["costs"] == costs
    for servers in (others, [server, server]):
        run.write_text(json.dumps({"provenance": PROVENANCE, "servers": servers}))
        with pytest.raises(ValueError, match="servers of goodput with a cost table"):
            keep_costs(run, target)


def test_true_costs_hold_what_was_learned_and_another_start_s_do_not(tmp_path: Path) -> None:
    stored = read_result(RESULTS / simulator.COSTS)
    path = tmp_path / simulator.COSTS
    times = []
    for ratio in (1.0, 1.25):
        stored["costs"]["drift_ratios"] = [ratio] * 64
        write_result(path, stored)
        costs = ServerCosts(path)
        fresh = costs.table_off_by(0.0, seed=1)
        times.append(
            (costs.round_ms(costs.tiers[2], 4, 1024), fresh.round_ms(costs.tiers[2], 4, 1024))
        )
    assert times[1][0] == pytest.approx(times[0][0] * 1.25)
    assert times[1][1] == times[0][1]
