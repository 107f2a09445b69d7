"""Which tier is best at each batch size and acceptance, and which one the policy ran there.

    python -m benchmarks.studies.matrix.best_tier \\
        benchmarks/results/current/matrix-h200-fa3.json.xz --plot docs/images/best-tier-h200.svg
"""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib import pyplot

from benchmarks.stats.plots import save
from benchmarks.stats.result_file import read_result
from benchmarks.stats.windows import best_static, rounds_of

Raw = Mapping[str, Any]


def static_arms(cell: Raw) -> list[str]:
    """Returns the measured arms of constant depth, none included."""
    return [arm for arm in cell["tokens_per_s"] if arm == "none" or arm.startswith("static-")]


def most_run(cell: Raw, arm: str) -> tuple[str, float]:
    """Returns the tier that ``arm`` ran in most rounds of a cell, and its share of them."""
    rounds = rounds_of(cell["windows"][arm])
    tier, number = rounds.most_common(1)[0]
    return tier, number / rounds.total()


def plot_best_tier(result: Raw, arm: str, path: Path) -> None:
    """Draws a map: colour is best static over none, the text names it and what ``arm`` ran."""
    cells = {(cell["acceptance"], cell["batch_size"]): cell for cell in result["cells"]}
    names = list(dict.fromkeys(name for name, _ in cells))
    sizes = sorted({size for _, size in cells})
    gains = [[float("nan")] * len(sizes) for _ in names]
    figure, axis = pyplot.subplots(figsize=(1.6 * len(sizes) + 2, 0.75 * len(names) + 1.5))
    for (name, size), cell in cells.items():
        row, column = names.index(name), sizes.index(size)
        best, rates = best_static(cell, static_arms(cell)), cell["tokens_per_s"]
        gains[row][column] = rates[best] / rates["none"]
        tier, share = most_run(cell, arm)
        text = f"{best.removeprefix('static-')}  x{gains[row][column]:.2f}\n{tier} ({share:.0%})"
        axis.text(column, row, text, ha="center", va="center", fontsize=8)
    image = axis.imshow(gains, cmap="Blues", aspect="auto", vmin=1.0, vmax=5.0)
    figure.colorbar(image, ax=axis, label="best static over none")
    axis.set_xticks(range(len(sizes)), [str(size) for size in sizes])
    axis.set_yticks(range(len(names)), names)
    axis.set_xlabel("batch size")
    axis.set_ylabel("acceptance")
    axis.set_title(f"above: best static tier; below: the tier {arm} ran most", fontsize=9)
    save(figure, path)


def main() -> int:
    """Draws one result file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("result", type=Path)
    parser.add_argument("--arm", default="goodput", help="[goodput]")
    parser.add_argument("--plot", type=Path, required=True)
    args = parser.parse_args()
    plot_best_tier(read_result(args.result), args.arm, args.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
