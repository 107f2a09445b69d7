"""From windows to the figures of matrix-h200.json: one function, used to write and to verify.

A window's rate is its *expected* tokens over its seconds: the rounds that ran, each with the tokens
that the injected acceptance yields on average at its depth (benchmarks/acceptance.py). A policy
chooses a round's depth before its draws, so this has the same mean as the counted tokens without
the luck of the draws, which at batch 1 would need minutes per cell. The counted rates stand beside
it, and a cell whose counted tokens stray further than the draws allow is refused.

The windows of a visit follow each other, and contexts grow: all arms slow down alike from one to
the next. That drift is common to the cell and no doubt about an arm's mean, so a standard error is
that of an arm's windows after the drift which the *other* arms show has been taken out.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.acceptance import expected_tokens, probabilities, tokens_variance

ARMS = ("none", "static-1", "static-3", "static-5", "static-7", "builtin", "ema", "goodput")
STATIC = ("none", "static-1", "static-3", "static-5", "static-7")
WINDOW_KEYS = ("repeat", "place", "num_tokens", "seconds", "rounds", "num_eager_rounds")
SAME_IN_ALL_RUNS = ("code_sha256", "host_version", "torch_version", "gpu")
RATE_DIGITS = 3
STDERR_DIGITS = 6

Raw = Mapping[str, Any]
Rates = Mapping[str, Sequence[float]]


def check_same_code(records: Sequence[Raw]) -> dict[str, Any]:
    """Returns the common provenance of several runs, with every command that made them.

    Raises:
        ValueError: Two runs differ in code, host or GPU.
    """
    for key in SAME_IN_ALL_RUNS:
        values = {record["provenance"][key] for record in records}
        if len(values) > 1:
            raise ValueError(f"the runs differ in {key}: {sorted(values)}; merge runs of one.")
    ordered = sorted((record["provenance"] for record in records), key=lambda one: one["date"])
    return {**ordered[0], "argv": [one["argv"] for one in ordered]}


def merged(records: Sequence[Raw], is_incomplete: bool = False) -> dict[str, Any]:
    """Returns the result of several runs of the same code on the same machine kind.

    ``is_incomplete`` keeps cells that lack an arm; `make verify-results` names and refuses them.

    Raises:
        ValueError: Two runs differ in code, host or GPU, or a cell lacks an arm that others have.
    """
    by_cell: dict[tuple[int, str], dict[str, list[Raw]]] = {}
    for record in sorted(records, key=lambda record: str(record["provenance"]["date"])):
        for window in record["windows"]:
            cell = by_cell.setdefault((window["batch_size"], window["acceptance"]), {})
            kept = {key: window[key] for key in WINDOW_KEYS}
            cell.setdefault(window["arm"], []).append(kept)
    if not is_incomplete:
        check_arms(by_cell)
    servers = [server for record in records for server in record["servers"]]
    cells = [
        build_cell(batch_size, acceptance, _in_order(by_cell[batch_size, acceptance]))
        for batch_size, acceptance in sorted(by_cell)
    ]
    return {"provenance": check_same_code(records), "cells": cells, "servers": servers}


def check_arms(by_cell: Mapping[tuple[int, str], Mapping[str, Any]]) -> None:
    """Refuses cells without an arm.

    Raises:
        ValueError: A cell lacks an arm that others have.
    """
    wanted = set().union(*by_cell.values())
    for where, cell in by_cell.items():
        if set(cell) != wanted:
            raise ValueError(f"cell {where} lacks {sorted(wanted - set(cell))}: run them.")


def _in_order(arms: Mapping[str, list[Raw]]) -> dict[str, list[Raw]]:
    others = sorted(set(arms) - set(ARMS))
    return {name: arms[name] for name in (*ARMS, *others) if name in arms}


def build_cell(
    batch_size: int, acceptance: str, windows: Mapping[str, Sequence[Raw]]
) -> dict[str, Any]:
    """Returns one cell with its figures, from its windows by arm."""
    rates = {
        arm: [round(expected_rate(batch_size, acceptance, each), RATE_DIGITS) for each in mine]
        for arm, mine in windows.items()
    }
    counted = {
        arm: [round(each["num_tokens"] / each["seconds"], RATE_DIGITS) for each in mine]
        for arm, mine in windows.items()
    }
    places = {arm: [each["place"] for each in mine] for arm, mine in windows.items()}
    return {
        "batch_size": batch_size,
        "acceptance": acceptance,
        "tokens_per_s": {arm: _mean(values) for arm, values in rates.items()},
        "stderr": driftless_stderr(rates, places),
        "raw": rates,
        "counted_tokens_per_s": {arm: _mean(values) for arm, values in counted.items()},
        "counted_stderr": {arm: relative_stderr(values) for arm, values in counted.items()},
        "windows": {arm: list(mine) for arm, mine in windows.items()},
    }


def expected_rate(batch_size: int, acceptance: str, window: Raw) -> float:
    """Returns a window's expected tokens per second."""
    rows = probabilities(acceptance, batch_size)
    return expected_tokens(rows, window["rounds"]) / float(window["seconds"])


def luck(cell: Raw, arm: str) -> float:
    """Returns by how many standard deviations the counted tokens of an arm's windows stray."""
    rows = probabilities(cell["acceptance"], cell["batch_size"])
    windows = cell["windows"][arm]
    surplus = sum(each["num_tokens"] - expected_tokens(rows, each["rounds"]) for each in windows)
    variance = sum(tokens_variance(rows, each["rounds"]) for each in windows)
    if variance:
        return float(surplus / math.sqrt(variance))
    return math.copysign(math.inf, surplus) if surplus else 0.0


def _mean(values: Sequence[float]) -> float:
    return round(statistics.fmean(values), RATE_DIGITS)


def relative_stderr(values: Sequence[float]) -> float | None:
    """Returns the standard error of the mean over the mean; None if one value says nothing."""
    if len(values) < 2:
        return None
    spread = statistics.stdev(values) / math.sqrt(len(values))
    return round(spread / statistics.fmean(values), STDERR_DIGITS)


def driftless_stderr(rates: Rates, places: Mapping[str, Sequence[int]]) -> dict[str, float | None]:
    """Returns every arm's relative standard error beside the drift that the other arms show.

    Args:
        rates: by arm, one per window.
        places: the place of each window in its visit.
    """
    steps = {arm: _log_steps(values) for arm, values in rates.items()}
    by_place: dict[int, dict[str, float]] = {}
    for arm, at in places.items():
        for place in set(at):
            mine = [step for step, where in zip(steps[arm], at, strict=True) if where == place]
            by_place.setdefault(place, {})[arm] = statistics.fmean(mine)

    def drift(arm: str, place: int) -> float:
        others = [step for other, step in by_place[place].items() if other != arm]
        return statistics.fmean(others) if others else 0.0

    return {
        arm: relative_stderr(
            [math.exp(step - drift(arm, place)) for step, place in zip(steps[arm], at, strict=True)]
        )
        for arm, at in places.items()
    }


def _log_steps(values: Sequence[float]) -> list[float]:
    """Returns the logs of ``values`` beside their mean."""
    logs = [math.log(value) for value in values]
    return [log - statistics.fmean(logs) for log in logs]


def settle_s_of(args: Any, batch_size: int) -> float:
    """Returns how long a batch runs before its first window, in every arm."""
    return float(max(args.settle_s, args.settle_request_s / batch_size))


def best_static(cell: Raw, arms: Sequence[str] = STATIC) -> str:
    """Returns the arm of constant depth that was fastest in a cell, none included."""
    rates = cell["tokens_per_s"]
    return max((arm for arm in arms if arm in rates), key=lambda arm: float(rates[arm]))
