"""The replay against measured periods: where they come from, and what the policy makes of them."""

import statistics
from typing import Any

import pytest

from benchmarks.stats.provenance import RESULTS
from benchmarks.stats.result_file import read_result
from benchmarks.studies.simulator import served
from benchmarks.studies.simulator.served import MeasuredCosts, best_static, periods_ms, shares
from benchmarks.studies.simulator.server_costs import ServerCosts
from benchmarks.studies.simulator.summary import COSTS, MATRIX
from sglang_adaptive_spec.tiers import chain_tier


def window(ms: float, **rounds: int) -> dict[str, Any]:
    named = {name.removeprefix("s"): number for name, number in rounds.items()}
    return {"seconds": ms * sum(named.values()) / 1e3, "rounds": named}


CELL = {
    "batch_size": 4,
    "acceptance": "0.5",
    "windows": {
        "none": [window(5.0, none=10)],  # another round than one of zero steps
        "static-1": [window(7.0, s1=10), window(8.0, s1=30)],
        "static-3": [window(9.5, s3=10)],
        "static-7": [window(12.0, s7=10)],
        "builtin": [window(99.0, s3=10)],
        "goodput": [window(5.2, s0=10), window(90.0, s0=5, s3=5), window(80.0, s3=9)],
        "ema": [window(5.4, s0=10)],
    },
}


@pytest.fixture
def costs() -> MeasuredCosts:
    return MeasuredCosts(periods_ms({"cells": [CELL]}), seed=1)


def test_periods_are_those_of_windows_that_ran_one_depth() -> None:
    assert periods_ms({"cells": [CELL]}) == pytest.approx(
        {(4, 0): 5.3, (4, 1): 7.5, (4, 2): 8.5, (4, 3): 9.5, (4, 7): 12.0}
    )


def test_zero_steps_that_never_ran_alone_are_as_much_slower_than_none_as_elsewhere() -> None:
    lone = {"none": [window(6.0, none=10)], "goodput": [window(7.0, s0=9, s3=1)]}
    other = {**CELL, "batch_size": 8, "windows": {**CELL["windows"], **lone, "ema": []}}
    assert periods_ms({"cells": [CELL, other]})[8, 0] == pytest.approx(6.0 * 5.3 / 5.0)


def test_a_depth_that_never_ran_is_too_slow_to_stay_at(costs: MeasuredCosts) -> None:
    assert costs.round_ms(chain_tier(10), 4, 0) == 36.0


def test_the_best_static_depth_is_that_of_the_same_periods(
    costs: MeasuredCosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = {"none": 0, "static-1": 1, "static-3": 3, "static-7": 7}
    monkeypatch.setattr(served, "STATIC_STEPS", steps)
    assert best_static(CELL, costs) == pytest.approx(4 * 1.5 / 7.5 * 1e3)


def test_every_visit_draws_anew(costs: MeasuredCosts) -> None:
    seen = []
    for _ in range(2):
        costs.next_visit()
        seen.append(costs.round_ms(chain_tier(3), 4, 0))
    assert seen[0] != seen[1]
    assert seen == pytest.approx([9.5, 9.5], rel=0.1)


def test_the_policy_finds_its_depth_though_its_seeds_are_another_server_s() -> None:
    """The first matrix to be replayed so showed 0.88 at batch 16."""
    measured = read_result(RESULTS / MATRIX)
    found = shares(measured, ServerCosts(RESULTS / COSTS), seeds=(1, 2, 3))
    assert min(found.values()) > 0.93
    assert statistics.geometric_mean(found.values()) > 0.99
