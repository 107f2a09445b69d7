"""From the windows of a cell to its figures: one function, used to write and to verify.

A window's rate is its *expected* tokens over its seconds: the rounds that ran, each with the tokens
that the injected acceptance yields on average at its depth (inject/acceptance.py). A policy
chooses a round's depth before its draws, so this has the same mean as the counted tokens without
the luck of the draws, which at batch 1 would need minutes per cell. The counted rates stand beside
it, and a cell whose counted tokens stray further than the draws allow is refused. Of a round that
verifies another number of drafts for each request the depth tells no tokens: its counted ones are
taken.

The windows of a visit follow each other, and contexts grow: all arms slow down alike from one to
the next. That drift is common to the cell and no doubt about an arm's mean, so a standard error is
that of an arm's windows after the drift which the *other* arms show has been taken out.
"""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.inject.acceptance import probabilities
from benchmarks.stats.provenance import in_order
from benchmarks.stats.tokens import expected_tokens, tokens_variance

MATRIX_ARMS = ("none", "static-1", "static-3", "static-5", "static-7", "builtin", "ema", "goodput")
STATIC = ("none", "static-1", "static-3", "static-5", "static-7")
WINDOW_KEYS = ("repeat", "place", "num_tokens", "seconds", "rounds", "num_eager_rounds")
NUM_PACKED_TOKENS = "num_packed_tokens"  # of packed rounds; older windows have none
FEWEST_TO_HALVE = 6  # windows of an arm
RATE_DIGITS = 3
STDERR_DIGITS = 6
Raw = Mapping[str, Any]
Rates = Mapping[str, Sequence[float]]


def by_cell(
    records: Sequence[Raw], name: str, where: tuple[str, str]
) -> dict[tuple[Any, Any], dict[str, list[Raw]]]:
    """Returns what lies in the list ``name`` of all runs, by cell and arm, the earliest first.

    ``where`` names the two keys of an entry that say which cell it belongs to.
    """
    cells: dict[tuple[Any, Any], dict[str, list[Raw]]] = {}
    for record in in_order(records):
        for each in record[name]:
            cell = cells.setdefault((each[where[0]], each[where[1]]), {})
            cell.setdefault(each["arm"], []).append(each)
    return cells


def kept(entries: Sequence[Raw], wanted: Sequence[str]) -> list[dict[str, Any]]:
    """Returns of every entry what a result file keeps, and packed rounds' tokens if it has any."""
    return [
        {key: each[key] for key in (*wanted, NUM_PACKED_TOKENS) if key in wanted or each.get(key)}
        for each in entries
    ]


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
    """Returns a window's expected tokens per second, packed rounds' counted ones among them."""
    rows = probabilities(acceptance, batch_size)
    tokens = expected_tokens(rows, window["rounds"]) + float(window.get(NUM_PACKED_TOKENS, 0))
    return tokens / float(window["seconds"])


def rounds_of(windows: Iterable[Raw]) -> Counter[str]:
    """Returns the rounds of some windows together, by tier; packed ones apart."""
    rounds: Counter[str] = Counter()
    for window in windows:
        rounds.update(window["rounds"])
    return rounds


def luck(cell: Raw, arm: str) -> float:
    """Returns by how many standard deviations the counted tokens of an arm's windows stray.

    Servers beside each other draw the same verdicts: their windows of one repeat and place count
    as one.
    """
    rows = probabilities(cell["acceptance"], cell["batch_size"])
    drawn: dict[tuple[int, int], list[Raw]] = {}
    for each in cell["windows"][arm]:
        drawn.setdefault((each["repeat"], each["place"]), []).append(each)
    surplus = variance = 0.0
    for same in drawn.values():
        tokens = sum(
            each["num_tokens"]
            - each.get(NUM_PACKED_TOKENS, 0)
            - expected_tokens(rows, each["rounds"])
            for each in same
        )
        surplus += tokens / len(same)
        variance += sum(tokens_variance(rows, each["rounds"]) for each in same) / len(same)
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


def halves(cell: Raw) -> tuple[Raw, Raw]:
    """Returns a cell of its odd windows and one of its even ones.

    The fastest of several noisy arms is flattered by the windows that it was chosen by, so it is
    chosen by one half and compared on the other. Where an arm has too few windows, both are `cell`.
    """
    windows = cell["windows"]
    if min(map(len, windows.values())) < FEWEST_TO_HALVE:
        return cell, cell
    odd, even = (
        build_cell(
            cell["batch_size"],
            cell["acceptance"],
            {arm: mine[first::2] for arm, mine in windows.items()},
        )
        for first in (0, 1)
    )
    return odd, even


def best_static(cell: Raw, arms: Sequence[str] = STATIC) -> str:
    """Returns the arm of constant depth that was fastest in a cell, none included."""
    rates = cell["tokens_per_s"]
    return max((arm for arm in arms if arm in rates), key=lambda arm: float(rates[arm]))


def fair_best_static(cell: Raw) -> tuple[str, Raw]:
    """Returns the best static arm, and the windows to compare it on: not those that chose it."""
    odd, even = halves(cell)
    return best_static(odd), even
