"""SGLang's defaults: figures that follow from requests, claims by load, what a file must hold."""

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.studies.defaults.__main__ import ARM_OF, CHANCES, Seat, parser, turns
from benchmarks.studies.defaults.summary import (
    DEFAULT_ARMS,
    FIGURES,
    LEAST_TOKENS,
    LOADS,
    MIN_PASSES,
    MOST_FIRST,
    MOST_PER_TOKEN,
    PEAKS,
    build_result,
    check_defaults,
    figure_table,
    figures,
    figures_of_load,
    time_spent,
    with_figures,
)
from tests.lab.records import PROVENANCE

# Arrived, first token, last token in ms; output tokens. Waits of 10, 30, 60 ms and 10, 20, 40 ms
# per token after the first; 43 tokens in 1 s.
REQUESTS = [[60.0, 70.0, 170.0, 11], [100.0, 130.0, 330.0, 11], [200.0, 260.0, 1060.0, 21]]


def one_pass(arm: str, peak: int, chance: float, repeat: int) -> dict[str, Any]:
    """A pass as its run file has it."""
    return {
        **{"arm": arm, "peak": peak, "acceptance": chance, "repeat": repeat},
        **{"requests": REQUESTS, "served": [43], "largest_batch": 3, "spent": {}},
    }


def whole() -> list[dict[str, Any]]:
    """Every pass that a result needs, in no good order."""
    repeats = reversed(range(MIN_PASSES))
    made = itertools.product(repeats, reversed(DEFAULT_ARMS), reversed(LOADS))
    return [one_pass(arm, *load, repeat) for repeat, arm, load in made]


def start(arm: str) -> dict[str, Any]:
    """What is measured of a server's start."""
    tiers = [{"num_steps": steps, "graph_batch_sizes": [1, 256]} for steps in (0, 1, 3)]
    return {
        **{"arm": arm, "max_total_tokens": 900_000},
        "max_running_requests": 48 if arm == "builtin" else 3515,  # 900,000 / 131,072 * 512
        **{"ready_s": 40.0, "tiers_s": 9.0, "tiers_gb": 1.5, "captures": {}},
        "plugin": {"tiers": tiers, "skipped_tiers": {}, "rounds": {}} if arm == "ours" else None,
    }


@pytest.fixture
def result() -> Any:
    """A whole result, as read from its file."""
    starts = [start(arm) for arm in reversed(DEFAULT_ARMS)]
    return json.loads(json.dumps(build_result(PROVENANCE, starts, whole())))


def test_the_figures_of_a_pass_follow_from_its_requests() -> None:
    made = with_figures(one_pass("ours", 40, 0.3, 1))
    assert {name: made[name] for name in FIGURES} == {
        "tokens_per_s": 43.0,
        "first_token_ms_p50": 30.0,
        "first_token_ms_p99": 60.0,
        "ms_per_token_p50": 20.0,
    }
    assert "served" not in made


def test_a_period_belongs_to_the_batch_that_ends_it() -> None:
    """Time, size, tokens, width, whether one finished, whether a graph was replayed."""
    prefill, decode = (0, 0, None, False, False), (8, 8, 1, False, True)
    rounds = [
        (0, *prefill),
        (5_000_000, *decode),
        (7_000_000, *decode),
        (17_000_000, *prefill),
        (23_500_000, 8, 20, 4, True, False, False),
    ]
    assert time_spent(rounds) == {
        "0 drafts, graph": [2, 7.0],
        "prefill": [1, 10.0],
        "3 drafts, eager": [1, 6.5],
    }


def test_a_result_lists_the_arms_of_a_load_side_by_side(result: Any) -> None:
    repeats = itertools.product(LOADS, range(MIN_PASSES), DEFAULT_ARMS)
    assert [
        ((each["peak"], each["acceptance"]), each["repeat"], each["arm"])
        for each in result["passes"]
    ] == list(repeats)


def test_arms_beside_each_other_swap_their_gpus_and_go_on_with_other_arrivals(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(16)))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    command = ["run", "--out", "out", "--arms", "ours,none"]
    ours, none = ARM_OF["ours"], ARM_OF["none"]
    found = turns(parser().parse_args([*command, "--beside"]))
    low, high = frozenset(range(8)), frozenset(range(8, 16))
    assert found == [
        [Seat(ours, 0, "2", low, 1), Seat(none, 1, "3", high, 1)],
        [Seat(ours, 0, "3", high, 4), Seat(none, 1, "2", low, 4)],
    ]
    assert turns(parser().parse_args(command)) == [[Seat(ours, 0)], [Seat(none, 0)]]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    with pytest.raises(ValueError, match="need one GPU each"):
        turns(parser().parse_args([*command, "--beside"]))


# -- what is claimed --


def arm_of(tokens: float, first: float, per_token: float) -> list[dict[str, float]]:
    """An arm's passes of one load: all alike."""
    figures_ = {"tokens_per_s": tokens, "first_token_ms_p50": first, "ms_per_token_p50": per_token}
    return [figures_] * MIN_PASSES


@pytest.mark.parametrize("peak", PEAKS)
@pytest.mark.parametrize(("share", "verdict"), [(0.999, "met"), (1.001, "MISSED")])
def test_each_claim_is_met_up_to_its_limit_and_missed_beyond(
    peak: int, share: float, verdict: str
) -> None:
    none = arm_of(1000.0, 20.0, 10.0)
    first = MOST_FIRST * 20.0 + 10.0  # one round of none's comes on top
    per_token = MOST_PER_TOKEN.get(peak, 1.0) * 10.0
    ours = arm_of(LEAST_TOKENS[peak] * 1000.0 / share, first * share, per_token * share)
    found = figures_of_load("load", peak, ours, none)
    assert [each.limit for each in found] == [
        LEAST_TOKENS[peak],
        1.0,
        *([MOST_PER_TOKEN[peak]] if peak in MOST_PER_TOKEN else []),
    ]
    assert {each.verdict for each in found} == {verdict}


def test_passes_that_scatter_are_no_verdict() -> None:
    none = arm_of(1000.0, 20.0, 10.0)
    ours = [
        {name: value * factor for name, value in each.items()}
        for each, factor in zip(none, (0.5, 1.0, 2.0), strict=True)
    ]
    found = figures_of_load("load", PEAKS[0], ours, none)
    assert {each.verdict for each in found} == {"not known"}


def test_every_load_is_claimed_that_both_arms_served_as_often(result: Any) -> None:
    per_load = len(figures(result)) / len(LOADS)
    assert per_load == 2 + len(MOST_PER_TOKEN) / len(PEAKS)
    assert "to 120 a second at 0.7: tokens/s over none's" in figure_table(result)
    result["passes"] = [
        each
        for each in result["passes"]
        if (each["peak"], each["arm"], each["repeat"]) != (PEAKS[1], "none", 0)
    ]
    assert len(figures(result)) == len(CHANCES) * (2 + (PEAKS[0] in MOST_PER_TOKEN))


# -- what a file must hold --


def test_a_whole_result_is_without_problems(result: Any) -> None:
    assert check_defaults(result) == []


FIRST = dict(zip(("peak", "acceptance"), LOADS[0], strict=True))


def without(result: Any, **fields: Any) -> None:
    """Removes the passes with these fields."""
    kept = [each for each in result["passes"] if not fields.items() <= each.items()]
    result["passes"] = kept


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda result: without(result, repeat=0, **FIRST), f"{LOADS[0]}: {MIN_PASSES - 1} passes"),
        (lambda result: without(result, **FIRST), f"{LOADS[0]}: 0 passes of none"),
        (
            lambda result: without(result, arm="builtin", repeat=1, **FIRST),
            f"{LOADS[0]}: {MIN_PASSES - 1} passes of builtin",
        ),
        (
            lambda result: without(result, arm="none", repeat=1, **FIRST),
            f"({LOADS[0][0]}, {LOADS[0][1]}, 1): no pass of none",
        ),
        (lambda result: result["passes"].append(result["passes"][0]), "one too many of none"),
        (lambda result: result["passes"][0].update(peak=41), "one too many of none, (41, "),
        (
            lambda result: result["passes"][0].update(requests=REQUESTS[:2]),
            "the arms got other requests",
        ),
        (lambda result: result["passes"][0].update(tokens_per_s=44.0), "the file says"),
        (lambda result: result["passes"].reverse(), "the file says"),
        (lambda result: result["passes"][0].pop("largest_batch"), "passes.0: keys"),
        (lambda result: result["starts"].pop(), "starts: none of ours"),
        (
            lambda result: result["starts"][2].update(max_running_requests=48),
            "starts.2: 48 running requests, without speculation its KV pool lets 3515 run",
        ),
        (
            lambda result: result["starts"][2].update(max_total_tokens=800_000),
            "starts.2: 3515 running requests, without speculation its KV pool lets 3125 run",
        ),
        (lambda result: result["starts"][2].update(tiers=[]), "starts.2: graphs up to 0 requests"),
        (
            lambda result: result["starts"][2]["skipped_tiers"].update({"5": "memory"}),
            "starts.2: no tier 5",
        ),
        (
            lambda result: result["starts"].append(
                {
                    **result["starts"][2],
                    "arm": "at-15bedd4",
                    "tiers": result["starts"][2]["tiers"][1:],
                }
            ),
            "at-15bedd4: other graphs than ours: [(1, None, (1, 256)), ",
        ),
        (lambda result: result["starts"][0].pop("ready_s"), "starts.0: keys"),
        (lambda result: result.update(notes=""), "file: keys"),
        (lambda result: result.pop("passes"), "file: keys"),
        (lambda result: result["provenance"].update(gpu="NVIDIA H100"), "not on an H200"),
    ],
)
def test_a_spoilt_result_is_found(result: Any, spoil: Callable[[Any], None], problem: str) -> None:
    spoil(result)
    assert any(problem in each for each in check_defaults(result))
