"""Is matrix-h200-fa3.json.xz what it claims: cells complete, figures those of its windows?"""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.inject.acceptance import DEFAULT_NAMES, MIXED
from benchmarks.lab.settings import cells_of
from benchmarks.stats.differences import GPU, Gap, differences, gaps, keys, measured_on
from benchmarks.stats.windows import MATRIX_ARMS, build_cell, luck

Raw = Mapping[str, Any]

BATCH_SIZES = (1, 4, 16, 32, 64, 128)
SMALL_BATCH_SIZES = (1, 16, 64)  # of gpus.sh: small-a to small-d
CELL_KEYS = {
    "batch_size",
    "acceptance",
    "tokens_per_s",
    "stderr",
    "raw",
    "counted_tokens_per_s",
    "counted_stderr",
    "windows",
}
MIN_REPEATS = 3
# Standard deviations by which counted tokens may stray from the injected acceptance: beyond five
# in one of 300 (cell, arm) pairs there is one chance in 6,000 that nothing is wrong.
MAX_LUCK = 5.0


def check_matrix(
    result: Raw, batch_sizes: Sequence[int] = BATCH_SIZES, gpu: str = GPU
) -> list[str]:
    """Returns what is wrong with the shape or the figures of the matrix."""
    return check_cells(result, batch_sizes, DEFAULT_NAMES, MATRIX_ARMS, gpu)


def check_over_earlier(result: Raw, arm: str, gpu: str = GPU) -> list[str]:
    """Returns what is wrong with a file of ours beside an earlier commit's ``arm``."""
    return check_cells(result, (16, 64), ("0.4", "0.6", "0.8", MIXED), ("goodput", arm), gpu)


def check_two_kinds(result: Raw, arm: str, gpu: str = GPU) -> list[str]:
    """Returns what is wrong with a file of batches of two kinds beside an earlier ``arm``."""
    return check_cells(result, (24, 32, 48, 64, 96, 128), (MIXED,), ("goodput", arm), gpu)


def check_deeper(result: Raw, arm: str, gpu: str = GPU) -> list[str]:
    """Returns what is wrong with a file of ours beside an earlier ``arm`` and static 10 steps."""
    arms = ("goodput", arm, "static-7", "static-10")
    return check_cells(result, (16, 24, 32, 64, 96, 128), ("0.95", MIXED), arms, gpu)


def check_cells(
    result: Raw,
    batch_sizes: Sequence[int],
    acceptances: Sequence[str],
    arms: Sequence[str],
    gpu: str = GPU,
) -> list[str]:
    """Returns what is wrong with a file that should hold these cells of these arms."""
    problems = keys("file", result, {"provenance", "cells", "servers"})
    if problems:
        return problems
    problems += measured_on(result["provenance"], gpu)
    there = {f"{cell['batch_size']} {cell['acceptance']}": cell for cell in result["cells"]}
    wanted = {f"{size} {name}" for size, name in cells_of(batch_sizes, acceptances)}
    problems += gaps("cells", there, wanted)
    for where, cell in there.items():
        problems += _check_cell(where, cell, arms)
    return problems


def _check_cell(where: str, cell: Raw, arms: Sequence[str]) -> list[str]:
    problems = keys(where, cell, CELL_KEYS)
    if not problems:
        problems = keys(f"{where}.windows", cell["windows"], set(arms))
    if problems:
        return problems
    again = build_cell(cell["batch_size"], cell["acceptance"], cell["windows"])
    problems = differences(cell, again, where)
    for arm, windows in cell["windows"].items():
        if len(windows) < MIN_REPEATS:
            problems.append(Gap(f"{where} {arm}: {len(windows)} of {MIN_REPEATS} repeats"))
        stray = luck(cell, arm)
        if abs(stray) > MAX_LUCK:
            problems.append(
                f"{where} {arm}: counted tokens stray by {stray:.1f} standard deviations from "
                "the acceptance that was to be injected"
            )
    return problems
