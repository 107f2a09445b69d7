"""From windows to the figures of overlap-h200.json.xz: one function, used to write and to verify.

Rates of cells with injected acceptance are expected ones, as in the matrix; those of a grammar are
counted: its greedy texts are the same in every repeat. `ms_per_token` is what one request waits for
a token: the batch size over the rate.
"""

import statistics
from collections.abc import Container, Mapping, Sequence
from typing import Any

from benchmarks.stats.differences import Gap, at_least, differences, gaps, keys, measured_on
from benchmarks.stats.figures import (
    HEADER,
    Figure,
    Ratio,
    geometric_mean,
    lowest,
    of_one_repeat,
)
from benchmarks.stats.provenance import check_same_code, in_order
from benchmarks.stats.tables import table
from benchmarks.stats.windows import (
    RATE_DIGITS,
    WINDOW_KEYS,
    build_cell,
    by_cell,
    kept,
    luck,
    relative_stderr,
)
from benchmarks.studies.matrix.check import MAX_LUCK
from benchmarks.studies.matrix.tables import ratio_of

Raw = Mapping[str, Any]

BATCH_SIZES, ACCEPTANCE = (1, 4, 32), "0.7"
GRAMMAR_BATCH_SIZES, KINDS = (1, 8, 32), ("schema", "free")
PAIRS = {"static-3": "static-3-no-overlap", "goodput": "goodput-no-overlap"}
NEEDED = {arm for pair in PAIRS.items() for arm in pair}
OTHER_PAIRS = {"none": "none-no-overlap"}
GRAMMAR_KEYS = {"batch_size", "kind", "tokens_per_s", "stderr", "raw", "ms_per_token", "windows"}
REPEAT_KEYS = ("repeat", "num_tokens", "seconds", "rounds", "num_eager_rounds")
MIN_WINDOWS = 3
# What static EAGLE gains from the overlap, a depth that changes must gain, too.
GAIN_OVER_STATIC = 0.97
MS_DIGITS = 4


def merged(records: Sequence[Raw]) -> dict[str, Any]:
    """Returns the result of several runs of the same code on the same machine kind.

    Raises:
        ValueError: Two runs differ in code, host or GPU.
    """
    ordered = in_order(records)
    injected = by_cell(records, "windows", ("batch_size", "acceptance"))
    grammar = by_cell(records, "grammar", ("batch_size", "kind"))
    refused = {arm: error for record in ordered for arm, error in record["refused"].items()}
    return {
        "provenance": check_same_code(records),
        "cells": [injected_cell(*where, injected[where]) for where in sorted(injected)],
        "grammar": [grammar_cell(*where, grammar[where]) for where in sorted(grammar)],
        "refused": refused,
        "servers": [server for record in ordered for server in record["servers"]],
    }


def injected_cell(
    batch_size: int, acceptance: str, windows: Mapping[str, Sequence[Raw]]
) -> dict[str, Any]:
    """Returns a cell as the matrix has it, and the time of a token."""
    by_arm = {arm: kept(mine, WINDOW_KEYS) for arm, mine in sorted(windows.items())}
    cell = build_cell(batch_size, acceptance, by_arm)
    return {**cell, "ms_per_token": ms_per_token(batch_size, cell["tokens_per_s"])}


def grammar_cell(
    batch_size: int, kind: str, windows: Mapping[str, Sequence[Raw]]
) -> dict[str, Any]:
    """Returns a cell of real acceptance with its counted rates."""
    by_arm = {arm: kept(mine, REPEAT_KEYS) for arm, mine in sorted(windows.items())}
    rates = {
        arm: [round(each["num_tokens"] / each["seconds"], RATE_DIGITS) for each in mine]
        for arm, mine in by_arm.items()
    }
    means = {arm: round(statistics.fmean(values), RATE_DIGITS) for arm, values in rates.items()}
    return {
        "batch_size": batch_size,
        "kind": kind,
        "tokens_per_s": means,
        "stderr": {arm: relative_stderr(values) for arm, values in rates.items()},
        "raw": rates,
        "ms_per_token": ms_per_token(batch_size, means),
        "windows": by_arm,
    }


def ms_per_token(batch_size: int, rates: Mapping[str, float]) -> dict[str, float]:
    """Returns by arm how long one request waits for a token."""
    return {arm: round(batch_size / rate * 1e3, MS_DIGITS) for arm, rate in rates.items()}


def check_overlap(result: Raw) -> list[str]:
    """Returns what is wrong with the shape or the figures of the result."""
    problems = keys("file", result, {"provenance", "cells", "grammar", "refused", "servers"})
    if problems:
        return problems
    problems += measured_on(result["provenance"])
    # Two commands: perhaps only one was run.
    injected = {_name(cell, "acceptance"): cell for cell in result["cells"]}
    grammar = {_name(cell, "kind"): cell for cell in result["grammar"]}
    wanted = {f"{size} {ACCEPTANCE}" for size in BATCH_SIZES}
    lacking = at_least("cells", injected, wanted)
    wanted = {f"{size} {kind}" for size in GRAMMAR_BATCH_SIZES for kind in KINDS}
    lacking += at_least("grammar", grammar, wanted)
    problems += map(Gap, lacking) if injected or grammar else lacking
    for where, cell in injected.items():
        problems += _check_rates(where, cell, injected_cell, "acceptance")
        for arm in cell["windows"]:
            if abs(luck(cell, arm)) > MAX_LUCK:
                problems.append(f"{where} {arm}: other acceptance than was to be injected")
    for where, cell in grammar.items():
        problems += keys(where, cell, GRAMMAR_KEYS)
        problems += _check_rates(where, cell, grammar_cell, "kind")
    return problems


def _check_rates(where: str, cell: Raw, build: Any, key: str) -> list[str]:
    is_of_other_pairs = NEEDED.isdisjoint(cell["windows"]) and _has_pair(cell["windows"])
    lacking = gaps if is_of_other_pairs else at_least
    problems = lacking(f"{where}.windows", cell["windows"], NEEDED)
    again = build(cell["batch_size"], cell[key], cell["windows"])
    problems += differences(cell, again, where)
    return problems + [
        Gap(f"{where} {arm}: {len(windows)} of {MIN_WINDOWS} windows")
        for arm, windows in cell["windows"].items()
        if len(windows) < MIN_WINDOWS
    ]


def _has_pair(arms: Container[str]) -> bool:
    return any(arm in arms and other in arms for arm, other in OTHER_PAIRS.items())


def _name(cell: Raw, key: str) -> str:
    return f"{cell['batch_size']} {cell[key]}"


def figures(result: Raw) -> list[Figure]:
    """Returns what is claimed: the overlap is no loss, and ours gains what static EAGLE does."""
    made = []
    for part, key in (("cells", "acceptance"), ("grammar", "kind")):
        cells = [cell for cell in result[part] if set(cell["tokens_per_s"]) >= NEEDED]
        if not cells:
            continue
        gains = {
            arm: [(_name(cell, key), ratio_of(cell, arm, without)) for cell in cells]
            for arm, without in PAIRS.items()
        }
        ours, static = (
            geometric_mean([ratio for _, ratio in gains[arm]]) for arm in ("goodput", "static-3")
        )
        name = "injected" if part == "cells" else "grammar"
        made += [
            lowest(f"{name}: goodput with overlap / without, lowest", gains["goodput"], 1.0),
            Figure(
                f"{name}: gain of the overlap, goodput {ours.value:.3f} / static-3 "
                f"{static.value:.3f}",
                _over(ours, static),
                GAIN_OVER_STATIC,
            ),
        ]
    return made


def _over(one: Ratio, other: Ratio) -> Ratio:
    value, freedom = one.value / other.value, one.freedom + other.freedom
    if one.stderr is None or other.stderr is None:
        return of_one_repeat(value)
    return Ratio(value, (one.stderr**2 + other.stderr**2) ** 0.5, freedom)


def figure_table(result: Raw) -> str:
    """Returns the claims with their verdicts, then what refused to start."""
    rows: list[tuple[Any, ...]] = [each.row() for each in figures(result)]
    refused = (f"{arm} refused: {error}" for arm, error in result["refused"].items())
    return "\n".join([table(HEADER, rows), *refused])


def cell_table(result: Raw) -> str:
    """Returns tokens/s and time per token of every pair of arms, and their ratio."""
    rows = []
    cells = [(cell, "acceptance") for cell in result["cells"]]
    cells += [(cell, "kind") for cell in result["grammar"]]
    for cell, key in cells:
        rates, times = cell["tokens_per_s"], cell["ms_per_token"]
        for arm, other in {**PAIRS, **OTHER_PAIRS}.items():
            if arm not in rates or other not in rates:
                continue
            low, high = ratio_of(cell, arm, other).interval
            pair = (rates[arm], rates[other], times[arm], times[other])
            ratio = f"{rates[arm] / rates[other]:.3f}"
            where = f"{_name(cell, key)} {arm} / {other}"
            rows.append((where, *pair, ratio, f"{low:.3f} .. {high:.3f}"))
    header = ("batch kind arms", "tok/s", "other", "ms/token", "other", "ratio", "95 % interval")
    return table(header, rows)
