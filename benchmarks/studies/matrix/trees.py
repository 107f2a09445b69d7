"""Do trees pay beside chains? The matrix's small batches, with trees in the ladder and without.

Runs are those of the matrix; acceptance of trees is injected, too: the chain's draws, raised by the
lift that each shape showed with a real pair (inject/acceptance.py). On the machine with the H200,
from the project's root:

    OUT=folder SHA=commit benchmarks/gpus.sh 0=trees-settled    # or trees-1 and trees-2: all arms
    # then anywhere:
    python3 -m benchmarks.studies.matrix.trees runs/matrix-t3.json \\
        --result benchmarks/results/current/matrix-trees-settled-h200.json.xz
"""

import sys
from collections.abc import Mapping
from typing import Any

from benchmarks.inject.acceptance import DEFAULT_NAMES
from benchmarks.lab.run_files import merge_command
from benchmarks.stats.differences import at_least, gaps
from benchmarks.stats.figures import HEADER, Figure, lowest
from benchmarks.stats.tables import table
from benchmarks.stats.windows import best_static
from benchmarks.studies.matrix.check import check_cells
from benchmarks.studies.matrix.summary import merged
from benchmarks.studies.matrix.tables import name_of, ratio_of

BATCH_SIZES = (1, 4, 8)
CHAINS = ("none", "static-3", "static-5")
TREES = ("static-1-4-5", "static-3-4-16", "static-5-4-12")
WITHOUT, WITH = "goodput", "goodput-trees"
ARMS = (*CHAINS, *TREES, WITHOUT, WITH)
# A choice: nowhere below the ladder without by more than 1 %, 5 % better where a tree should pay.
LEAST, LEAST_GAIN = 0.99, 1.05
SHOULD_PAY = ("0.5", "0.7")

Raw = Mapping[str, Any]


def figures(result: Raw) -> list[Figure]:
    """Returns every claim about the ladder with trees."""
    cells = result["cells"]
    gains = [(name_of(cell), ratio_of(cell, WITH, WITHOUT)) for cell in cells]
    pay = [
        (name_of(cell), ratio_of(cell, WITH, WITHOUT))
        for cell in cells
        if cell["acceptance"] in SHOULD_PAY
    ]
    return [
        lowest(f"{WITH} / {WITHOUT}, lowest cell", gains, LEAST),
        lowest(f"{WITH} / {WITHOUT}, lowest cell at 0.5 and 0.7", pay, LEAST_GAIN),
    ]


def cell_table(result: Raw) -> str:
    """Returns per cell the best chain and the best tree, and the ladder with trees over both."""
    rows = []
    for cell in result["cells"]:
        rates = cell["tokens_per_s"]
        chain, tree = (
            best_static(cell, arms) if set(arms) & set(rates) else None for arms in (CHAINS, TREES)
        )
        best = max((rates[arm] for arm in (chain, tree) if arm), default=None)
        rows.append(
            (
                name_of(cell),
                f"{chain} {rates[chain]:.0f}" if chain else "-",
                f"{tree} {rates[tree]:.0f}" if tree else "-",
                f"{rates[tree] / rates[chain]:.3f}" if chain and tree else "-",
                f"{rates[WITH] / rates[WITHOUT]:.3f}",
                f"{rates[WITH] / best:.3f}" if best else "-",
            )
        )
    header = ("cell", "best chain", "best tree", "tree / chain", "trees / without", "/ best static")
    return table(header, rows)


def figure_table(result: Raw) -> str:
    """Returns every target with its verdict, and the cells."""
    rows = [figure.row() for figure in figures(result)]
    return "\n".join((table(HEADER, rows), cell_table(result)))


def check_matrix_trees(result: Raw) -> list[str]:
    """Returns what is wrong with the shape or the figures of the result."""
    there = {arm: None for cell in result.get("cells", []) for arm in cell["windows"]}
    problems = at_least("arms", there, {WITHOUT, WITH})
    problems += gaps("arms", there, set(ARMS))
    return problems + check_cells(result, BATCH_SIZES, DEFAULT_NAMES, sorted(there))


def main() -> int:
    """Writes the result file from run files of the matrix."""
    return merge_command(__doc__, merged, figure_table)


if __name__ == "__main__":
    sys.exit(main())
