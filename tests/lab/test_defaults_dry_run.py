"""The study of what users get runs on the CPU host; every part leaves its figures."""

import itertools
from pathlib import Path

import pytest

from benchmarks.studies.defaults import summary as defaults
from tests.lab.dry_run import dry_run


@pytest.mark.e2e
def test_loads_are_served_on_the_cpu_host(tmp_path: Path) -> None:
    loads = ("--arms", "none,ours", "--beside", "--peaks", "6", "--repeats", "1")
    sizes = ("--seconds", "4", "--longest", "0.1")
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
