"""The benchmark itself, end to end on the CPU host: real servers, real requests, small batches."""

from typing import Any

import pytest

from tests.benchmarks.dry_run import dry_run

pytestmark = [pytest.mark.e2e, pytest.mark.full]

SMALL = ("--repeats", "2", "--prompt-tokens", "16", "--batches", "3",
         "--new-tokens", "32", "--new-tokens-sim", "64",
         "--settle-tokens", "20", "--settle-tokens-sim", "20")  # fmt: skip


@pytest.fixture(scope="module")
def passes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One pass each over the host's own adaptive arm and our forced alternation."""
    out = tmp_path_factory.mktemp("dry-run")
    record = dry_run(out, "slice", "run", *SMALL, "--arms", "builtin,ema-alternate")
    return {each["arm"]: each for each in record["passes"]}


def cell(one: dict[str, Any], acceptance: str) -> dict[str, Any]:
    """The cell of one acceptance."""
    return dict(next(each for each in one["cells"] if each["acceptance"] == acceptance))


def test_both_arms_are_measured_between_the_same_two_points(passes: dict[str, Any]) -> None:
    for one in passes.values():
        assert 0 < one["tiers_s"] < one["ready_s"]
        assert one["captures"] == {"before_ready": 0, "after_ready": 0}  # a CPU captures nothing


def test_our_plugin_serves_in_our_arm_only(passes: dict[str, Any]) -> None:
    assert passes["builtin"]["plugin"] is None
    assert passes["ema-alternate"]["plugin"]["mode"] == "adaptive"


def test_the_alternation_runs_every_tier_and_switches_are_timed(passes: dict[str, Any]) -> None:
    one = passes["ema-alternate"]
    rounds = [set(repeat["rounds"]) for repeat in cell(one, "natural")["repeats"]]
    assert rounds == [{"0", "1", "3", "5", "7"}] * 2
    assert one["switch_us"] > 0
    assert passes["builtin"]["switch_us"] > 0
    assert set(cell(one, "natural")["took_us"]) == {"choose", "observe"}


def test_the_injected_accept_length_is_seen_and_the_natural_one_is_not_it(
    passes: dict[str, Any],
) -> None:
    (injected, natural) = (
        [
            repeat["num_tokens"] / 3 / sum(repeat["rounds"].values())
            for repeat in cell(passes["builtin"], acceptance)["repeats"]
        ]
        for acceptance in ("sim3.5", "natural")
    )
    assert all(3.0 <= length <= 4.0 for length in injected)
    assert all(length < 3.0 for length in natural)
