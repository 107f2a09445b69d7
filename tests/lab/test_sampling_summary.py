"""Sampling: a wrong sampler is found, a right one is not, and every figure follows from counts."""

import copy
import json
from typing import Any

import numpy as np
import pytest

from benchmarks.stats.differences import Gap
from benchmarks.stats.homogeneity import REST
from benchmarks.studies.sampling.check import MIN_PACKED, PACKED, check_packed, check_sampling
from benchmarks.studies.sampling.summary import (
    ARMS,
    CELLS,
    CONTROL,
    HOST_CELLS,
    NONE,
    OURS,
    STATIC,
    WRONG,
    compared_with_none,
    corrected,
    merged,
    without_rare,
)
from benchmarks.studies.sampling.tables import (
    ALPHA,
    cell_table,
    figure_table,
    found_distance,
    greedy_figures,
)
from tests.lab.records import PROVENANCE

PROMPTS = ["prose 0", "code 0", "json 0", "low 0"]
NUM_POSITIONS = 8
PER_PROMPT = 5120
SERVED = ARMS[:5]
FORCED = (OURS, WRONG, *PACKED)
FORCED_ROUNDS = {"0": 200, "1": 100, "3": 100, "5": 100, "7": 100}


def chances(prompt: int, position: int, is_wrong: bool) -> Any:
    """A distribution of 200 tokens; a wrong sampler takes the likeliest one more often."""
    weights = np.random.default_rng([prompt, position]).pareto(1.0, 200)
    weights /= weights.sum()
    if is_wrong and position:
        weights = 0.85 * weights
        weights[weights.argmax()] += 0.15
    return weights


def counts_of(arm: str, cell: str, seed: int, is_wrong: bool) -> list[list[dict[str, int]]]:
    """Samples of one arm."""
    rng = np.random.default_rng([seed, ARMS.index(arm), list(CELLS).index(cell)])
    made = []
    for prompt in range(len(PROMPTS)):
        drawn = [
            rng.multinomial(PER_PROMPT, chances(prompt, position, is_wrong))
            for position in range(NUM_POSITIONS)
        ]
        made.append([{str(t): int(n) for t, n in enumerate(one) if n} for one in drawn])
    return made


def run_record(
    arms: tuple[str, ...] = SERVED, wrong: tuple[str, ...] = (WRONG,), seed: int = 1
) -> dict[str, Any]:
    """The record of one command over all cells."""
    samples = [
        {
            "cell": cell,
            "arm": arm,
            "seed": 1000 * seed + ARMS.index(arm),
            "prompts": PROMPTS,
            "counts": counts_of(arm, cell, seed, arm in wrong),
            "rounds": FORCED_ROUNDS if arm in FORCED else {"3": 600},
            "num_switches": 480 if arm in FORCED else 0,
        }
        for cell in CELLS
        for arm in arms
    ]
    greedy = [
        {"arm": arm, "seed": seed, "concurrency": 8, "agreed": agreed(arm)}
        for arm in arms
        if arm != NONE
    ]
    return {
        "purpose": "sampling",
        "provenance": dict(PROVENANCE),
        "samples": samples,
        "greedy": greedy,
        "servers": [],
    }


def agreed(arm: str) -> list[list[int]]:
    """Greedy texts of 80 requests: the control's all agree, some of the others' do not."""
    differing = {CONTROL: 0}.get(arm, 4)
    return [[20, 128, 128]] * differing + [[128, 128, 128]] * (80 - differing)


@pytest.fixture(scope="module")
def complete() -> dict[str, Any]:
    """A whole result, as read from its file."""
    return dict(json.loads(json.dumps(merged([run_record()]))))


def test_a_complete_result_passes(complete: Any) -> None:
    assert check_sampling(complete) == []


@pytest.mark.parametrize(("num_packed", "is_enough"), [(MIN_PACKED, True), (0, False)])
def test_packed_rounds_are_to_have_run(num_packed: int, is_enough: bool) -> None:
    record = run_record(arms=(NONE, CONTROL, STATIC, WRONG, *PACKED)) | {"greedy": []}
    plugin = {"packed_rounds": {"3": num_packed}}
    record["servers"] = [{"arm": arm, "plugin": plugin} for arm in PACKED]
    faults = [each for each in check_packed(merged([record])) if not isinstance(each, Gap)]
    assert len(faults) == (0 if is_enough else len(PACKED))


def test_the_wrong_sampler_is_found_and_no_other(complete: Any) -> None:
    lowest = {arm: min(p for *_, p in corrected(complete, arm)) for arm in SERVED[1:]}
    assert lowest[WRONG] < 1e-10
    assert min(lowest[arm] for arm in (CONTROL, STATIC, OURS)) > ALPHA


def test_only_cells_in_which_the_host_is_lossless_are_claimed(complete: Any) -> None:
    tests = corrected(complete, OURS)
    assert len(tests) == 4 * (NUM_POSITIONS - 1)
    assert not {cell for cell, *_ in tests} & set(HOST_CELLS)
    assert "min_p ema-alternate (host)" in cell_table(complete)


def test_a_fault_of_ours_is_a_missed_claim_and_no_problem_of_the_file() -> None:
    result = merged([run_record(wrong=(WRONG, OURS))])
    assert check_sampling(result) == []
    (row,) = (line for line in figure_table(result).splitlines() if f"{OURS}: lowest" in line)
    assert row.endswith("MISSED")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [((), "wrong: not found in every cell"), ((WRONG, CONTROL), "none-again: differs from none")],
)
def test_tests_that_cannot_be_believed_are_a_problem(wrong: Any, message: str) -> None:
    problems = check_sampling(merged([run_record(wrong=wrong)]))
    assert [message in problem for problem in problems] == [True]


def test_the_stated_distance_shrinks_with_more_samples(complete: Any) -> None:
    more = merged([run_record(), run_record(seed=2), run_record(seed=3)])
    assert more["cells"][0]["num_samples"][OURS] == 3 * 4 * PER_PROMPT
    assert 0.02 < found_distance(more, OURS) < found_distance(complete, OURS) < 0.08


def test_runs_of_the_same_seed_or_of_other_prompts_are_refused() -> None:
    with pytest.raises(ValueError, match="same seed"):
        merged([run_record(), run_record()])
    other = run_record(seed=2)
    for each in other["samples"]:
        each["prompts"] = PROMPTS[:2]
    with pytest.raises(ValueError, match="different prompts"):
        merged([run_record(), other])


def test_leaving_out_rare_tokens_changes_no_test() -> None:
    record = run_record((NONE, OURS, WRONG))
    whole = {each["arm"]: each["counts"] for each in record["samples"] if each["cell"] == "t1"}
    trimmed = without_rare(whole)
    assert compared_with_none(trimmed) == compared_with_none(whole)
    assert len(trimmed[NONE][0][0]) < len(whole[NONE][0][0])
    assert sum(trimmed[NONE][0][0].values()) == PER_PROMPT
    assert REST in trimmed[NONE][0][0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda cell: cell["tests"][OURS][2].update(p_value=0.9), "t0.8.tests.ema-alternate: the"),
        (lambda cell: cell["counts"][OURS][0][1].update(rest=1), "positions of different numbers"),
        (lambda cell: cell["counts"].pop(CONTROL), "t0.8.counts lacks ['none-again']"),
        (lambda cell: cell["rounds"][OURS].pop("0"), "t0.8 ema-alternate rounds lacks ['0']"),
        (lambda cell: cell["num_switches"].update(wrong=100), "t0.8 wrong: 100 switches in 600"),
        (lambda cell: cell["num_samples"].update(none=7), "t0.8 none: 20480 samples"),
        (lambda cell: cell.update(name="t2"), "cells lacks ['t0.8']"),
        (lambda cell: cell.pop("seeds"), "t0.8: keys"),
    ],
)
def test_a_spoilt_cell_is_found(complete: Any, change: Any, message: str) -> None:
    result = copy.deepcopy(complete)
    change(result["cells"][0])
    assert any(message in problem for problem in check_sampling(result))


def test_cells_of_the_host_alone_claim_nothing_and_lack_the_rest() -> None:
    record = run_record()
    kept = [each for each in record["samples"] if each["cell"] in HOST_CELLS]
    result = merged([{**record, "samples": kept, "greedy": []}])
    problems = check_sampling(result)
    assert problems
    assert all(isinstance(problem, Gap) for problem in problems)
    without_greedy = merged([{**record, "greedy": []}])
    assert any(
        "greedy" in each and not isinstance(each, Gap) for each in check_sampling(without_greedy)
    )
    result["cells"][0]["tests"]["extra"] = {}
    assert any(not isinstance(problem, Gap) for problem in check_sampling(result))


def test_a_greedy_share_that_its_requests_do_not_give_is_found(complete: Any) -> None:
    result = copy.deepcopy(complete)
    result["greedy"]["identical"][OURS] = 1.0
    assert any("greedy.identical.ema-alternate" in each for each in check_sampling(result))


@pytest.mark.parametrize(
    ("differing", "verdict"), [(4, "not known"), (7, "not known"), (20, "MISSED")]
)
def test_greedy_text_must_not_surely_be_rarer_than_static_eagles(
    complete: Any, differing: int, verdict: str
) -> None:
    result = copy.deepcopy(complete)
    texts = [[128, 128, 128]] * (80 - differing) + [[3, 128, 128]] * differing
    result["greedy"]["raw"][OURS][0]["agreed"] = texts
    (claim,) = greedy_figures(result)
    assert claim.verdict == verdict
    assert claim.ratio.value == pytest.approx((80 - differing) / 76)


def test_a_text_of_another_length_is_not_the_same(complete: Any) -> None:
    result = copy.deepcopy(complete)
    result["greedy"]["raw"][OURS][0]["agreed"] = [[100, 100, 128]] * 80
    (claim,) = greedy_figures(result)
    assert claim.ratio.value == 0.0
