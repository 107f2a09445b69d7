"""Requests of unlike acceptance in one batch: what does another length for each row gain?

Runs are those of the matrix, with dummy weights and injected acceptance: half of the rows at 0.95
and half at 0.3, say, and one kind beside them, where nothing may be lost. On a machine with two
H200s, from the project's root; the second command has other draws, and the GPUs swapped:

    OUT=folder SHA=commit benchmarks/gpus.sh 0=kinds-a 1=kinds-b
    OUT=folder SHA=commit VISIT=2 benchmarks/gpus.sh 1=kinds-a 0=kinds-b
    # then anywhere:
    python3 -m benchmarks.studies.matrix.kinds runs/matrix-k*.json \\
        --result benchmarks/results/current/matrix-kinds-h200-fa3.json.xz

On FlashInfer one GPU has shown packed rounds beside tiers alone and two of the depths, in 530 s:

    python3 -m benchmarks.studies.matrix run --at-once --context-length 131072 --windows 4 \\
        --max-total-tokens 83968 --attention-backend flashinfer --batches 64,128,16 \\
        --acceptances 0.95/0.3~3,0.9/0.3~3,0.7~3 --repeats 3 --deadline 510 --git-sha SHA \\
        --arms goodput-packed,goodput-tiers,static-1,static-3 --tag kf --out $OUT
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.lab.run_files import merge_command
from benchmarks.stats.figures import HEADER, Figure, Ratio
from benchmarks.stats.tables import table
from benchmarks.stats.windows import STATIC, fair_best_static
from benchmarks.studies.matrix.check import check_cells
from benchmarks.studies.matrix.summary import merged
from benchmarks.studies.matrix.tables import name_of, ratio_of

BATCH_SIZES = (16, 64, 128)
PACKED, TIERS_ALONE = "goodput-packed", "goodput-tiers"
CONFIDENT = "goodput-confident"
ARMS = (*STATIC, TIERS_ALONE, PACKED, CONFIDENT)
# Limits of the larger batches by acceptance, from the issue that asked for packed rounds.
OVER_BEST_STATIC = {
    **{"0.95/0.3~3": 1.15, "0.9/0.3~3": 1.10, "0.3/0.5/0.7/0.9~3": 1.02},
    **{"0.7~3": 0.98, "0.7": 0.98},
}
SMALL, OF_SMALL = 16, 0.98  # requests, and their limit
# On FlashInfer, over tiers alone: packed rounds lose at most 2 %.
FLASHINFER_ARMS = ("static-1", "static-3", TIERS_ALONE, PACKED)
FLASHINFER_KINDS = ("0.95/0.3~3", "0.9/0.3~3", "0.7~3")
OVER_TIERS = 0.98

Raw = Mapping[str, Any]


def figures(result: Raw) -> list[Figure]:
    """Returns packed rounds over the best constant depth of every cell."""
    made = []
    for cell in result["cells"]:
        best, even = fair_best_static(cell)
        limit = OF_SMALL if cell["batch_size"] <= SMALL else OVER_BEST_STATIC[cell["acceptance"]]
        for arm in (PACKED, CONFIDENT):
            claim = f"{name_of(cell)}: {arm} / {best}"
            made.append(Figure(claim, ratio_of(even, arm, best), limit))
    return made


def tier_figures(result: Raw) -> list[Figure]:
    """Returns packed rounds over tiers alone, where few constant depths were measured."""
    return [
        Figure(f"{name_of(cell)}: {PACKED} / {TIERS_ALONE}", over_tiers(cell), OVER_TIERS)
        for cell in result["cells"]
    ]


def cell_table(result: Raw) -> str:
    """Returns tokens/s of every arm per cell, and packed rounds over tiers alone."""
    arms = [arm for arm in ARMS if arm in result["cells"][0]["tokens_per_s"]]
    rows = []
    for cell in result["cells"]:
        ratio = over_tiers(cell)
        low, high = ratio.interval
        rates = (cell["tokens_per_s"][arm] for arm in arms)
        rows.append((name_of(cell), *rates, f"{ratio.value:.3f} ({low:.3f} to {high:.3f})"))
    return table(("batch acceptance", *arms, "packed / tiers"), rows)


def over_tiers(cell: Raw) -> Ratio:
    """Returns the throughput of packed rounds over that of tiers alone."""
    return ratio_of(cell, PACKED, TIERS_ALONE)


def figure_table(result: Raw) -> str:
    """Returns every target with its verdict, and the cells; tiers' where no best depth is there."""
    has_best = set(STATIC) <= set(result["cells"][0]["tokens_per_s"])
    rows = [figure.row() for figure in (figures if has_best else tier_figures)(result)]
    return "\n".join((table(HEADER, rows), cell_table(result)))


def check_kinds(
    result: Raw,
    kinds: Sequence[str] = tuple(OVER_BEST_STATIC),
    arms: Sequence[str] = ARMS,
) -> list[str]:
    """Returns what is wrong with the shape or the figures of the result."""
    return check_cells(result, BATCH_SIZES, kinds, arms)


def main() -> int:
    """Writes the result file from run files of the matrix."""
    return merge_command(__doc__, merged, figure_table)


if __name__ == "__main__":
    sys.exit(main())
