"""Every figure of a result follows from the raw passes, by the rule that the docs state."""

import copy

import pytest

from benchmarks import summary
from tests.benchmarks.records import arm_pass, cell, records


def test_throughput_is_the_median_over_the_repeats_of_all_passes() -> None:
    runs = records()
    disturbed = arm_pass("ema", 100.0, (1,), "natural")
    disturbed["cells"] = [cell("natural", 1, [1.0, 101.0], 12.0)]
    runs[0]["passes"].append(disturbed)
    result = summary.merged(runs)
    # 90, 100, 120 and then 1, 101: the median is 100
    assert result["arms"]["ema"]["tokens_per_s"]["natural"]["1"] == 100.0
    assert result["arms"]["builtin"]["tokens_per_s"]["sim3.5"]["48"] == 4800.0


def test_a_start_is_the_median_of_its_passes() -> None:
    runs = records()
    for ready_s in (10.0, 50.0):
        runs[0]["passes"].append({**arm_pass("none", 100.0, ()), "ready_s": ready_s})
    assert summary.merged(runs)["arms"]["none"]["ready_s"] == 30.0


def test_overhead_is_choose_plus_observe_and_switches_are_ours() -> None:
    runs = records()
    runs[0]["passes"][2]["switch_us"] = 900.0  # builtin
    result = summary.merged(runs)
    assert result["overhead_us_per_round"]["64"] == 12.0
    assert result["switch_us"] == 1.5


def test_captures_after_ready_are_summed_over_all_our_servers_and_no_others() -> None:
    runs = records()
    for record in runs:
        for each in record["passes"]:
            each["captures"]["after_ready"] = 1
    # ema and ema-alternate; plain twice; ema of the small pair
    assert summary.merged(runs)["captures_after_ready"] == 5


def test_plain_over_none_compares_the_interleaved_run_only() -> None:
    assert summary.merged(records())["plain_over_none"] == {
        size: 0.95 for size in ("1", "16", "64", "128")
    }


def test_the_small_pair_s_accept_length_counts_the_bonus_token() -> None:
    assert summary.merged(records())["smollm2"]["ema"] == {
        phase: {"tokens_per_s": 150.0, "accept_length": 3.0} for phase in ("prose", "json")
    }


def test_a_result_built_from_its_own_raw_parts_is_the_same_result() -> None:
    result = summary.merged(records())
    passes = {name: arm["raw"] for name, arm in result["arms"].items()}
    assert summary.build_result(result["provenance"], passes, result["raw"]) == result


def test_runs_of_different_code_are_not_merged() -> None:
    runs = records()
    runs[1]["provenance"]["code_sha256"] = "0ther"
    with pytest.raises(ValueError, match="differ in code_sha256"):
        summary.merged(runs)


def test_a_missing_arm_is_named() -> None:
    runs = copy.deepcopy(records())
    runs[0]["passes"] = [each for each in runs[0]["passes"] if each["arm"] != "builtin"]
    with pytest.raises(ValueError, match="no run of \\['builtin'\\]"):
        summary.merged(runs)
