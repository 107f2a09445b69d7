"""Does every start of a server find the best depth, at sizes between those of the matrix?

A belief about a round time that turned at one start kept a server at the wrong depth at sizes that
no cell of the matrix has. So each start is judged by itself, beside the constant depths of the same
machine. On a machine with four H200s, from the project's root (five servers a GPU, about 520 s):

    OUT=folder SHA=commit benchmarks/gpus.sh 0=starts-a 1=starts-b 2=starts-c 3=starts-d
    # then anywhere; every run file has one start:
    python3 -m benchmarks.studies.matrix.starts runs/matrix-n*.json \\
        --result benchmarks/results/current/matrix-starts-h200-fa3.json.xz
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.lab.run_files import merge_command
from benchmarks.lab.settings import cells_of
from benchmarks.stats.differences import Gap, gaps, keys
from benchmarks.stats.figures import HEADER, Figure, Ratio, geometric_mean, worst
from benchmarks.stats.provenance import in_order
from benchmarks.stats.tables import table
from benchmarks.stats.windows import STATIC, best_static, halves
from benchmarks.studies.matrix.check import check_cells
from benchmarks.studies.matrix.summary import merged
from benchmarks.studies.matrix.tables import name_of, ratio_of

BATCH_SIZES = (24, 48, 96)
ACCEPTANCES = ("0.4", "0.6", "0.8", "mixed")
OURS, START = "goodput", "start-"
NUM_STARTS = 3
OVER_BEST_STATIC = 0.97  # in every cell of every start; from the issue that asked for it

Raw = Mapping[str, Any]


def starts(records: Sequence[Raw]) -> dict[str, Any]:
    """Returns the result of runs with one start each: every start is an arm.

    Raises:
        ValueError: Two runs differ in code, host or GPU.
    """
    renamed = []
    for number, record in enumerate(in_order(records), 1):
        name = {OURS: f"{START}{number}"}
        windows = [
            {**each, "arm": name.get(each["arm"], each["arm"])} for each in record["windows"]
        ]
        renamed.append({**record, "windows": windows})
    return merged(renamed, is_incomplete=True)


def names_of_starts(result: Raw) -> list[str]:
    """Returns the arms that are starts, in their order."""
    arms = {arm for cell in result["cells"] for arm in cell["windows"]}
    numbers = sorted(int(arm.removeprefix(START)) for arm in arms if arm.startswith(START))
    return [f"{START}{number}" for number in numbers]


def figures(result: Raw) -> list[Figure]:
    """Returns the worst cell and the mean of every start."""
    made = []
    for start in names_of_starts(result):
        cells = list(cells_of_start(result, start).values())
        mean = geometric_mean([each.ratio for each in cells])
        made += [worst(cells), Figure(f"{start}: geometric mean", mean, OVER_BEST_STATIC)]
    return made


def cells_of_start(result: Raw, start: str) -> dict[str, Figure]:
    """Returns every cell that a start served over the best static arm, by its name."""
    made = {}
    for cell in result["cells"]:
        if start in cell["windows"]:
            best, ratio = over_best_static(cell, start)
            claim = f"{start}, {name_of(cell)} / {best}"
            made[name_of(cell)] = Figure(claim, ratio, OVER_BEST_STATIC)
    return made


def over_best_static(cell: Raw, start: str) -> tuple[str, Ratio]:
    """Returns the best constant depth, and a start over it.

    A depth chosen by half of the windows is compared on the other half, and the other way round, so
    that none is flattered by the windows that chose it. Where both halves choose the same one, that
    is the comparison on all windows.
    """
    odd, even = halves(cell)
    first, second = best_static(odd), best_static(even)
    if first == second:
        return first, ratio_of(cell, start, first)
    ratios = [ratio_of(even, start, first), ratio_of(odd, start, second)]
    return f"{first} or {second}", geometric_mean(ratios)


def cell_table(result: Raw) -> str:
    """Returns per cell the best static arm and every start over it, with the interval."""
    names = names_of_starts(result)
    columns = [cells_of_start(result, start) for start in names]
    rows = []
    for cell in result["cells"]:
        shown = [_shown(figures.get(name_of(cell))) for figures in columns]
        best = over_best_static(cell, next(iter(cell["windows"])))[0]
        rows.append((name_of(cell), best, *shown))
    return table(("cell", "best static", *names), rows)


def _shown(figure: Figure | None) -> str:
    if figure is None:
        return "-"
    low, high = figure.ratio.interval
    return f"{figure.ratio.value:.3f} ({low:.3f} to {high:.3f}) {figure.verdict}"


def figure_table(result: Raw) -> str:
    """Returns every target with its verdict, and the cells."""
    rows = [figure.row() for figure in figures(result)]
    whole = ", ".join(start for start in names_of_starts(result) if is_whole(result, start))
    return "\n".join((table(HEADER, rows), cell_table(result), f"served every cell: {whole}"))


def check_starts(result: Raw) -> list[str]:
    """Returns what is wrong with the shape or the figures of the result."""
    problems = keys("file", result, {"provenance", "cells", "servers"})
    if problems:
        return problems
    cells = result["cells"]
    there = {name_of(cell): cell for cell in cells}
    wanted = {f"{size} {name}" for size, name in cells_of(BATCH_SIZES, ACCEPTANCES)}
    problems += gaps("cells", there, wanted)
    for where, cell in there.items():
        problems += gaps(where, cell["windows"], {*STATIC, *names_of_starts(result)})
        alone = {**result, "cells": [cell]}
        problems += check_cells(
            alone, [cell["batch_size"]], [cell["acceptance"]], list(cell["windows"])
        )
    whole = [start for start in names_of_starts(result) if is_whole(result, start)]
    if len(whole) < NUM_STARTS:
        problems.append(Gap(f"{len(whole)} of {NUM_STARTS} starts have every cell"))
    return problems


def is_whole(result: Raw, start: str) -> bool:
    """Returns whether a start served every cell; a time limit may have cut it off."""
    return all(start in cell["windows"] for cell in result["cells"])


def main() -> int:
    """Writes the result file from run files of the matrix."""
    return merge_command(__doc__, starts, figure_table)


if __name__ == "__main__":
    sys.exit(main())
