"""The benchmarks of what users get run on the CPU host, and judge what they find."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from benchmarks.stats.differences import Gap
from benchmarks.studies import context, penalties
from benchmarks.studies.defaults import summary as defaults
from tests.lab.dry_run import dry_run


def wave(*rounds: list[Any]) -> dict[str, Any]:
    return {"prompt_tokens": 100, "rounds": list(rounds)}


def test_a_round_may_lack_the_tokens_of_the_one_in_flight_and_no_more() -> None:
    rounds = [[200, [0, 1], [1, 2]], [200, [0, 1], [0, 0]], [205, [0, 1], [0, 0]]]
    assert context.compare(wave(*rounds))["num_wrong"] == 0
    assert context.compare(wave(*rounds))["num_without_the_round_in_flight"] == 2
    rounds[2][0] = 204
    assert context.compare(wave(*rounds))["num_wrong"] == 1
    assert context.compare(wave([0, [0], [0]]))["num_wrong"] == 1


def test_a_file_whose_rounds_were_told_another_context_is_wrong() -> None:
    result = context.build_result({}, [wave([0, [0], [0]])])
    assert context.check_context(result) == ["100: 1 rounds were told another context"]


def test_an_arm_that_answered_nothing_is_wrong_and_a_finding_if_it_is_none_of_ours() -> None:
    arms = [{"arm": "goodput", "num_answered": 0}, {"arm": "none", "num_answered": 2}]
    problems = penalties.check_penalties(penalties.build_result({}, arms))
    assert problems == [
        "goodput: the server did not survive",
        "none: the server did not survive",
    ]
    assert [isinstance(each, Gap) for each in problems] == [False, True]
    answered_none = [{"arm": "goodput", "num_answered": 0, "largest_batch": 8}]
    assert penalties.check_penalties(penalties.build_result({}, answered_none)) == problems[:1]


@pytest.mark.e2e
def test_the_context_is_told_on_the_cpu_host(tmp_path: Path) -> None:
    sizes = ("--lengths", "40", "--requests", "4", "--new-tokens", "24")
    record = dry_run(tmp_path, "context", "run", *sizes)
    result = context.build_result(record["provenance"], record["waves"])
    assert context.check_context(result) == []
    assert result["waves"]["40"]["largest_context_tokens"] >= 4 * 40


@pytest.mark.e2e
def test_requests_with_penalties_are_answered_on_the_cpu_host(tmp_path: Path) -> None:
    sizes = ("--arms", "goodput", "--requests", "10", "--new-tokens", "8", "--prompt-tokens", "8")
    record = dry_run(tmp_path, "penalties", "run", *sizes)
    assert record["arms"][0]["num_answered"] == 10
    assert penalties.check_penalties(penalties.build_result({}, record["arms"])) == []


@pytest.mark.e2e
def test_loads_are_served_on_the_cpu_host(tmp_path: Path) -> None:
    loads = ("--arms", "none,ours", "--beside", "--peaks", "6", "--repeats", "1")
    sizes = ("--seconds", "4", "--longest", "0.1", "--trace-s", "0.5")
    gpus = {"CUDA_VISIBLE_DEVICES": "0,1"}  # names alone
    record = dry_run(tmp_path, "defaults", "run", *loads, *sizes, environment=gpus)
    result = defaults.build_result(record["provenance"], record["starts"], record["passes"])
    assert [each["arm"] for each in result["starts"]] == ["none", "none", "ours", "ours"]
    assert {len(each["tiers"]) for each in result["starts"][2:]} == {7}
    passes = [(each["acceptance"], each["repeat"], each["arm"]) for each in result["passes"]]
    assert passes == list(itertools.product(defaults.CHANCES, (1, 2), ("none", "ours")))
    for each in result["passes"]:
        assert each.keys() == defaults.PASS_KEYS
        assert each["spent"]["prefill"][0] > 0
        assert any(kind.endswith("drafts, eager") for kind in each["spent"])
        assert each["spent"]["launch prefill"][0] > 0
    traced = {arm: {row[1] for row in rows} for arm, rows in record["stalls"].items()}
    every = {"pick", "launch prefill", "launch decode", "process prefill", "process decode"}
    # Taking lengths is nothing that stalls: it is listed or not.
    for phases in traced.values():
        phases.difference_update(("lengths prefill", "lengths decode"))
    assert traced == {"ours": every, "none": every}
