"""Accept lengths of shapes: the lift that follows from them, and what the file must hold."""

import json
import math
from typing import Any

import pytest

from benchmarks.studies import tree_acceptance
from benchmarks.studies.tree_acceptance import (
    PHASES,
    SHAPES,
    TREES,
    build_result,
    check_tree_acceptance,
    hazard_of,
    logit_of,
    static_shape,
)

PROVENANCE = {"git_sha": "0", "date": "2027-01-01"}


def tokens_of(hazard: float, num_steps: int) -> float:
    return sum(hazard**step for step in range(num_steps + 1))


@pytest.fixture
def result() -> dict[str, Any]:
    """Chains at 0.5 and trees one logit above, as whole numbers of rounds."""
    raw = {}
    for name, tier in SHAPES.items():
        hazard = 0.5 if tier.topk == 1 else math.e / (1 + math.e)
        tokens = round(tokens_of(hazard, tier.num_steps) * 100_000)
        raw[name] = {phase: [tokens, 100_000] for phase in PHASES}
    built: dict[str, Any] = json.loads(json.dumps(build_result(PROVENANCE, raw)))
    return built


@pytest.mark.parametrize("num_steps", [1, 3, 5])
@pytest.mark.parametrize("hazard", [0.05, 0.5, 0.95])
def test_a_hazard_is_found_again_from_its_accept_length(hazard: float, num_steps: int) -> None:
    length = tokens_of(hazard, num_steps)
    assert hazard_of(length, num_steps) == pytest.approx(hazard, abs=1e-6)
    assert logit_of(length, num_steps) == pytest.approx(math.log(hazard / (1 - hazard)), abs=1e-4)


def test_a_lift_is_the_trees_logit_above_that_of_its_chain(result: Any) -> None:
    assert set(result["lift"]) == {tier.label for tier in TREES}
    assert all(lift == pytest.approx(1.0, abs=1e-3) for lift in result["mean_lift"].values())
    assert check_tree_acceptance(result) == []


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda result: result["mean_lift"].update({"3-4-8": 2.0}), "mean_lift.3-4-8"),
        (lambda result: result["raw"].pop("3"), "raw lacks ['3']"),
        (lambda result: result.pop("lift"), "file: keys"),
    ],
)
def test_a_spoilt_file_is_found(result: Any, spoil: Any, problem: str) -> None:
    spoil(result)
    assert any(problem in found for found in check_tree_acceptance(result))


def test_a_shape_is_the_hosts_own_three_flags() -> None:
    arguments = " ".join(static_shape(SHAPES["3-4-8"]).speculative)
    assert "--speculative-num-steps 3 --speculative-eagle-topk 4" in arguments
    assert arguments.endswith("--speculative-num-draft-tokens 8")


def test_the_table_names_every_shape(result: Any) -> None:
    shown = tree_acceptance.shape_table(result)
    assert all(f"\n{name} " in shown for name in SHAPES)
