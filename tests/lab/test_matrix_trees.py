"""Trees beside chains in the matrix: what the file must hold, and how its claims are judged."""

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.inject import acceptance
from benchmarks.inject.acceptance import DEFAULT_NAMES, TREES, lifted, probabilities, shape_of
from benchmarks.lab.settings import cells_of
from benchmarks.stats.windows import best_static
from benchmarks.studies.matrix.summary import merged
from benchmarks.studies.matrix.trees import (
    ARMS,
    BATCH_SIZES,
    check_matrix_trees,
    figure_table,
    figures,
)
from tests.lab.records import PROVENANCE

NUM_ROUNDS = 100
# What every arm runs at, all the time, by number of drafts; and the ms of its rounds.
KEYS = {"none": "none", "static-3": "3", "static-5": "5", "goodput": "3", "goodput-trees": "15"}
KEYS |= {f"static-{label}": key for key, label in TREES.items() if f"static-{label}" in ARMS}


@pytest.fixture(autouse=True, scope="module")
def half_a_logit() -> Iterator[None]:
    """Every tree lifts by half a logit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(acceptance, "tree_lifts", lambda: dict.fromkeys(TREES.values(), 0.5))
        yield


def window(arm: str, size: int, name: str, repeat: int, round_ms: float) -> dict[str, Any]:
    rng = random.Random(f"{arm} {size} {name} {repeat}")
    num_steps, lift = shape_of(KEYS[arm])
    tokens = 0
    for chance in probabilities(name, size):
        for _ in range(NUM_ROUNDS):
            tokens += 1
            left = num_steps
            while left and rng.random() < lifted(chance, lift):
                tokens, left = tokens + 1, left - 1
    where = {"arm": arm, "batch_size": size, "acceptance": name, "repeat": repeat, "place": 0}
    ran = {"rounds": {KEYS[arm]: NUM_ROUNDS}, "num_eager_rounds": 0}
    seconds = NUM_ROUNDS * round_ms / 1e3 * (1 + 0.001 * (repeat % 3))
    return {**where, **ran, "num_tokens": tokens, "seconds": seconds}


def result_of(tree_ms: float) -> dict[str, Any]:
    """The matrix of chains at 10 ms a round and trees at ``tree_ms``."""
    windows = [
        window(arm, size, name, repeat, tree_ms if KEYS[arm] in TREES else 10.0)
        for size, name in cells_of(BATCH_SIZES, DEFAULT_NAMES)
        for repeat in (1, 2, 3)
        for arm in ARMS
    ]
    record = {"purpose": "matrix", "provenance": PROVENANCE, "servers": [], "windows": windows}
    built: dict[str, Any] = json.loads(json.dumps(merged([record])))
    return built


@pytest.fixture(scope="module")
def paying() -> str:
    return json.dumps(result_of(10.2))


@pytest.fixture
def result(paying: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(paying)
    return loaded


def test_a_whole_result_passes_and_trees_that_pay_are_met(result: Any) -> None:
    assert check_matrix_trees(result) == []
    assert [figure.is_met for figure in figures(result)] == [True, True]
    shown = figure_table(result)
    assert "MISSED" not in shown
    assert all(f"{size} 0.7" in shown for size in BATCH_SIZES)


def test_trees_that_cost_more_than_they_bring_are_missed() -> None:
    found = figures(result_of(14.0))
    assert [figure.is_met for figure in found] == [False, False]


def test_an_arm_or_a_cell_that_lacks_is_found(result: Any) -> None:
    del result["cells"][0]["windows"]["goodput-trees"]
    del result["cells"][-1]
    problems = check_matrix_trees(result)
    assert any("windows" in problem for problem in problems)
    assert any(problem.startswith("cells") for problem in problems)


def test_tokens_that_the_trees_could_not_have_accepted_are_found(result: Any) -> None:
    cell = result["cells"][3]
    for each in cell["windows"]["goodput-trees"]:
        each["num_tokens"] = int(each["num_tokens"] * 1.3)
    problems = check_matrix_trees(result)
    assert any("standard deviations" in problem for problem in problems)
    assert best_static(cell, ("none", "static-3")) == "static-3"
