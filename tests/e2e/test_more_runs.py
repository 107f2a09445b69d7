"""Runs of decodes where tokens are drawn, memory is short, or the draft can catch up on few.

A policy that never leaves zero steps serves the drawn answers: on a CPU verification is greedy.
Among four tokens a position, samples of the server and of no speculation must come from one
distribution: chi-square of two samples, by position.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from tests.e2e.fleet import Fleet
from tests.e2e.launches import CONFIGS, forced
from tests.e2e.server import OURS, Launch, Server
from tests.e2e.test_kv_accounting import RETRACTED, SMALL_POOL, kv_answers
from tests.e2e.traffic import (
    PROMPTS,
    answers,
    check_identical,
    check_idle_and_whole,
    check_run_lengths,
)

CONFIG = CONFIGS / "runs.json"
NUM_SAMPLES, NUM_TOKENS, NUM_CHOICES = 480, 20, 4
AT_ONCE = 8
MIN_LONG_RUNS = 20
LEAST_P = 1e-3 / NUM_TOKENS  # of a position: one test in a thousand fails by chance
LEAST_SEEN = 10  # of a token, in both samples together, to stand by itself
Samples = list[list[int]]


def runs(name: str, plugin: str, *args: str, more: tuple[str, ...] = ()) -> Launch:
    """ADAPTIVE_EAGLE under a policy of the tests."""
    launch = forced("eagle3", overlap=True, config=CONFIG)
    arguments = (*launch.args, *args)
    return replace(launch, name=name, plugins=(OURS, plugin, *more), args=arguments)


DRAWN = [
    runs("eagle3-zero-runs", "zero_runs"),
    runs("eagle3-zero-runs-tp2", "zero_runs", "--tp-size", "2"),
]
NARROW = {
    runs(f"eagle3-runs-narrow-{width}", "runs", more=(f"narrow_{width}",)): lengths
    for width, lengths in ((7, {"1", "2", "4"}), (1, {"1"}))
}
RETRACTING = replace(runs("eagle3-runs-small-pool", "runs"), target=SMALL_POOL)

pytestmark = pytest.mark.e2e


def samples(server: Server) -> Samples:
    """Draws answers to one prompt, as many at once as the server runs: no run where one waits."""
    sampling = {
        "temperature": 2.0,
        "top_k": NUM_CHOICES,
        "max_new_tokens": NUM_TOKENS,
        "ignore_eos": True,
    }
    body = {"text": [PROMPTS[0]] * AT_ONCE, "sampling_params": sampling}
    drawn = [server.post("/generate", body) for _ in range(NUM_SAMPLES // AT_ONCE)]
    check_idle_and_whole(server)
    return [reply["output_ids"] for replies in drawn for reply in replies]


def p_value(one: Sequence[int], other: Sequence[int]) -> float:
    """Returns how likely two samples of one distribution differ as much; rare ones count as one."""
    first, second = Counter(one), Counter(other)
    common = [each for each in first | second if first[each] + second[each] >= LEAST_SEEN]
    table = [[counts[each] for each in common] for counts in (first, second)]
    for row, counts in zip(table, (first, second), strict=True):
        row.append(counts.total() - sum(row))
    observed = torch.tensor(table, dtype=torch.float64)
    observed = observed[:, observed.sum(dim=0) > 0]
    expected = observed.sum(dim=1, keepdim=True) * observed.sum(dim=0) / observed.sum()
    statistic = ((observed - expected) ** 2 / expected).sum()
    freedom = torch.tensor((observed.shape[1] - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, statistic / 2)) if freedom > 0 else 1.0


def p_values(some: Sequence[Sequence[int]], others: Sequence[Sequence[int]]) -> list[float]:
    """Returns `p_value` of two samples of answers, position by position; all are as long."""
    pairs = zip(zip(*some, strict=True), zip(*others, strict=True), strict=True)
    return [p_value(one, other) for one, other in pairs]


def test_two_samples_are_told_apart_where_they_differ() -> None:
    even, skewed = [1, 2, 3, 4] * 120, [1, 1, 1, 2, 3, 4] * 80
    assert p_value(even, even[::-1]) == 1.0
    assert p_value(even, skewed) < LEAST_P
    assert p_value([7] * 480, [7] * 480) == 1.0


@pytest.mark.parametrize("launch", DRAWN, ids=str, scope="module")
def test_drawn_answers_are_distributed_as_without_speculation(fleet: Fleet, launch: Launch) -> None:
    got, reference = fleet.compare(launch, samples)
    assert len({tuple(ids) for ids in got}) > NUM_SAMPLES / 4
    by_position = p_values(got, reference)
    assert len(by_position) == NUM_TOKENS
    assert min(by_position) >= LEAST_P, by_position
    spec = fleet.use(launch).internal_state()["adaptive_spec"]
    decodes = spec["zero_step_decodes"]
    check_run_lengths(spec)
    assert decodes["8"] >= MIN_LONG_RUNS, decodes
    assert {steps for steps, rounds in spec["rounds"].items() if rounds} == {"0"}


def test_retracted_requests_go_on_in_runs(fleet: Fleet) -> None:
    got, reference = fleet.compare(RETRACTING, kv_answers)
    check_identical(got["finished"], reference["finished"])
    assert any(meta["num_retractions"] for meta in got["meta"].values())
    assert RETRACTED in fleet.use(RETRACTING).log_text()
    spec = got["state"]["adaptive_spec"]
    assert spec["fallbacks"] == {"policy_error": 0, "feedback_mismatch": 0}
    check_run_lengths(spec)
    check_idle_and_whole(fleet.use(RETRACTING))


@pytest.mark.parametrize("launch", NARROW, ids=str, scope="module")
def test_a_run_is_no_longer_than_a_catch_up(fleet: Fleet, launch: Launch) -> None:
    check_identical(*fleet.compare(launch, answers))
    check_idle_and_whole(fleet.use(launch))
    spec = fleet.use(launch).internal_state()["adaptive_spec"]
    check_run_lengths(spec, NARROW[launch])
    assert max(map(int, spec["zero_step_decodes"])) == max(map(int, NARROW[launch]))
    assert spec["fallbacks"] == {"policy_error": 0, "feedback_mismatch": 0}
