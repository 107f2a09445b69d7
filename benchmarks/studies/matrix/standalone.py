"""A small model drafts: does its depth change for the better? The matrix with another drafter.

Runs are those of the matrix, of Llama 3.1 8B's shapes beside Llama 3.2 1B's: dummy weights and
injected acceptance. On a machine with two H200s, from the project's root; the second command has
other draws, and the GPUs swapped:

    OUT=folder SHA=commit benchmarks/gpus.sh 0=standalone-a 1=standalone-b
    OUT=folder SHA=commit VISIT=2 benchmarks/gpus.sh 1=standalone-a 0=standalone-b
    # then anywhere:
    python3 -m benchmarks.studies.matrix.standalone runs/matrix-d*.json \\
        --result benchmarks/results/current/matrix-standalone-h200.json.xz
"""

import sys
from collections.abc import Mapping
from typing import Any

from benchmarks.inject.acceptance import DEFAULT_NAMES
from benchmarks.lab.run_files import merge_command
from benchmarks.stats.figures import HEADER, Figure, geometric_mean, lowest
from benchmarks.stats.tables import table
from benchmarks.stats.windows import STATIC, fair_best_static
from benchmarks.studies.matrix.check import check_cells
from benchmarks.studies.matrix.summary import merged
from benchmarks.studies.matrix.tables import cell_table, name_of, over_each_static, ratio_of

BATCH_SIZES = (1, 4, 16, 32, 64)
OURS = "goodput"
ARMS = (*STATIC, OURS)
OVER_BEST_STATIC, OVER_NONE, OVER_SINGLE = 0.97, 0.98, 1.05

Raw = Mapping[str, Any]


def figures(result: Raw) -> list[Figure]:
    """Returns every claim: over the best static setting of a cell, over none, over one for all."""
    cells = result["cells"]
    chosen = [fair_best_static(cell) for cell in cells]
    best = [(name_of(even), ratio_of(even, OURS, arm)) for arm, even in chosen]
    none = [(name_of(cell), ratio_of(cell, OURS, "none")) for cell in cells]
    single = [
        Figure(f"{OURS} / {arm}, mean of all cells", ratio, OVER_SINGLE)
        for arm, ratio in over_each_static(cells).items()
    ]
    mean = geometric_mean([ratio for _, ratio in best])
    return [
        lowest(f"{OURS} / best static setting, worst cell", best, OVER_BEST_STATIC),
        Figure(f"{OURS} / best static setting, mean of all cells", mean, OVER_BEST_STATIC),
        lowest(f"{OURS} / none, worst cell", none, OVER_NONE),
        *single,
    ]


def figure_table(result: Raw) -> str:
    """Returns every target with its verdict, and the cells."""
    rows = [figure.row() for figure in figures(result)]
    return "\n".join((table(HEADER, rows), cell_table(result)))


def check_standalone(result: Raw) -> list[str]:
    """Returns what is wrong with the shape or the figures of the result."""
    return check_cells(result, BATCH_SIZES, DEFAULT_NAMES, ARMS)


def main() -> int:
    """Writes the result file from run files of the matrix."""
    return merge_command(__doc__, merged, figure_table)


if __name__ == "__main__":
    sys.exit(main())
