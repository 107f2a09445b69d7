"""From counted tokens to the figures of sampling-h200.json.xz: one function to write and to verify.

Each arm is tested against `none` at every output position of a cell but the first, which the
prefill samples alike in every arm. A position's tokens are compared over all histories, and over
all prompts in one test (benchmarks/stats/homogeneity.py).

In `HOST_CELLS` the host's own verification is no sampler of `none` (sglang 0.5.21):
eagle_utils.py:eagle_sample never reads min_p, and with top_k and top_p together cuts the second
from what the first left, where sampler.py:Sampler._sample_from_probs asks both of the whole
distribution ("joint"). Zero-step rounds sample as no speculation does.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.stats.homogeneity import MIN_EXPECTED, REST, distance, holm, homogeneity
from benchmarks.stats.provenance import check_same_code

Raw = Mapping[str, Any]
Counts = list[list[dict[str, int]]]  # [prompt][position] -> how often each token

CELLS: dict[str, dict[str, float]] = {
    "t0.8": {"temperature": 0.8},
    "t1": {"temperature": 1.0},
    "top_p": {"temperature": 1.0, "top_p": 0.9},
    "top_k": {"temperature": 1.0, "top_k": 20},
    "min_p": {"temperature": 1.0, "min_p": 0.1},
    "top_k_top_p": {"temperature": 1.0, "top_k": 20, "top_p": 0.9},
}
HOST_CELLS = ("min_p", "top_k_top_p")
LOSSLESS_CELLS = tuple(name for name in CELLS if name not in HOST_CELLS)
NONE, CONTROL, STATIC, OURS, WRONG = "none", "none-again", "static-3", "ema-alternate", "wrong"
SLIGHTLY_WRONG = "wrong-slightly"
STATIC_REJECTION, OURS_REJECTION = "static-3-rejection", "alternate-rejection"
BY_LENGTHS, BY_CONFIDENCE = "packed-lengths", "packed-confidence"
PACKED_REJECTION = "packed-rejection"
ARMS = (
    *(NONE, CONTROL, STATIC, OURS, WRONG, SLIGHTLY_WRONG, STATIC_REJECTION, OURS_REJECTION),
    *(BY_LENGTHS, BY_CONFIDENCE, PACKED_REJECTION),
)
FIRST_POSITION = 1  # the token before it is the prefill's
DIGITS = 6  # significant ones, of what is recomputed


def merged(records: Sequence[Raw]) -> dict[str, Any]:
    """Returns the result of several runs of the same code on the same machine kind.

    Raises:
        ValueError: Two runs differ in code, host, GPU or prompts, or draw the same samples.
    """
    samples: dict[str, dict[str, list[Raw]]] = {}
    for record in records:
        for each in record["samples"]:
            samples.setdefault(each["cell"], {}).setdefault(each["arm"], []).append(each)
    cells = [build_cell(name, samples[name]) for name in CELLS if name in samples]
    greedy = [each for record in records for each in record["greedy"]]
    return {
        "provenance": check_same_code(records),
        "cells": cells,
        "greedy": build_greedy(greedy),
        "servers": [server for record in records for server in record["servers"]],
    }


def build_cell(name: str, samples: Mapping[str, Sequence[Raw]]) -> dict[str, Any]:
    """Returns one cell with its tests, from its samples by arm."""
    arms = [arm for arm in ARMS if arm in samples]
    prompts = {tuple(each["prompts"]) for mine in samples.values() for each in mine}
    if len(prompts) > 1:
        raise ValueError(f"cell {name}: samples of different prompts: {sorted(prompts)}.")
    for arm in arms:
        seeds = [each["seed"] for each in samples[arm]]
        if len(set(seeds)) < len(seeds):
            raise ValueError(f"cell {name} {arm}: runs of the same seed {seeds}: take another.")
    whole = {arm: _added([each["counts"] for each in samples[arm]]) for arm in arms}
    counts = without_rare(whole)
    return {
        "name": name,
        "sampling": CELLS[name],
        "prompts": list(prompts.pop()),
        "seeds": {arm: [each["seed"] for each in samples[arm]] for arm in arms},
        "num_samples": {arm: num_samples(counts[arm]) for arm in arms},
        "rounds": {arm: _total([each["rounds"] for each in samples[arm]]) for arm in arms},
        "num_switches": {arm: sum(each["num_switches"] for each in samples[arm]) for arm in arms},
        "counts": counts,
        "tests": compared_with_none(counts),
    }


def _added(counted: Iterable[Counts]) -> Counts:
    """Returns the sums of several samples of the same prompts."""
    return [
        [_total(position) for position in zip(*prompt, strict=True)]
        for prompt in zip(*counted, strict=True)
    ]


def _total(counted: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in counted:
        total.update(each)
    return dict(sorted(total.items()))


def without_rare(counts: Mapping[str, Counts]) -> dict[str, Counts]:
    """Returns counts in which tokens too rare for any test of two arms share one entry."""

    def trimmed(prompt: int, position: int, arm: str) -> dict[str, int]:
        mine = counts[arm][prompt][position]
        often = {
            token
            for each in counts.values()
            for token, count in each[prompt][position].items()
            if count >= MIN_EXPECTED and token != REST
        }
        kept = {token: mine[token] for token in sorted(often, key=int) if token in mine}
        rest = sum(mine.values()) - sum(kept.values())
        return {**kept, REST: rest} if rest else kept

    return {
        arm: [
            [trimmed(prompt, position, arm) for position in range(len(mine[prompt]))]
            for prompt in range(len(mine))
        ]
        for arm, mine in counts.items()
    }


def num_samples(counts: Counts) -> int:
    """Returns how many tokens each position has, over all prompts."""
    return sum(sum(positions[0].values()) for positions in counts)


def compared_with_none(counts: Mapping[str, Counts]) -> dict[str, list[dict[str, float]]]:
    """Returns, by arm, the test against `none` at each position."""
    if NONE not in counts:
        return {}
    none = counts[NONE]
    made: dict[str, list[dict[str, float]]] = {}
    for arm, mine in counts.items():
        if arm == NONE:
            continue
        made[arm] = []
        for position in range(FIRST_POSITION, len(none[0])):
            pairs = list(zip(none, mine, strict=True))
            strata = [(theirs[position], ours[position]) for theirs, ours in pairs]
            found = homogeneity(strata)
            made[arm].append(
                {
                    "position": position,
                    "chi_square": _rounded(found.value),
                    "freedom": found.freedom,
                    "p_value": _rounded(found.p_value),
                    "distance": _rounded(distance(strata)),
                }
            )
    return made


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def build_greedy(compared: Sequence[Raw]) -> dict[str, Any]:
    """Returns the shares of requests whose greedy text is that of `none`."""
    by_arm: dict[str, list[Raw]] = {}
    for each in compared:
        by_arm.setdefault(each["arm"], []).append(each)
    return {
        "identical": {
            arm: _rounded(sum(same) / len(same))
            for arm, mine in by_arm.items()
            if (same := [flag for each in mine for flag in identical(each)])
        },
        "raw": {arm: by_arm[arm] for arm in ARMS if arm in by_arm},
    }


def identical(compared: Raw) -> list[bool]:
    """Returns, per request, whether its text is the other's, to the last token."""
    return [same == length == other for same, length, other in compared["agreed"]]


def corrected(result: Raw, arm: str) -> list[tuple[str, int, float]]:
    """Returns (cell, position, corrected p-value) of all lossless cells of an arm."""
    tests = [
        (cell["name"], each["position"], each["p_value"])
        for cell in result["cells"]
        if cell["name"] in LOSSLESS_CELLS
        for each in cell["tests"].get(arm, [])
    ]
    p_values = holm([p_value for *_, p_value in tests])
    return [(*test[:2], p_value) for test, p_value in zip(tests, p_values, strict=True)]


def agreement(text: Sequence[int], reference: Sequence[int]) -> list[int]:
    """Returns how many tokens two texts begin with alike, and the length of either."""
    pairs = enumerate(zip(text, reference, strict=False))
    differs_at = (place for place, (one, other) in pairs if one != other)
    return [next(differs_at, min(len(text), len(reference))), len(text), len(reference)]
