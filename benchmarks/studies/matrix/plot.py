"""Throughput over no speculation by batch size, drawn from the result file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib import pyplot

from benchmarks.stats.plots import COLOURS, STYLES, save
from benchmarks.stats.windows import best_static

Raw = Mapping[str, Any]


def plot_matrix(result: Raw, path: Path) -> None:
    """Draws throughput over no speculation by batch size, one panel per acceptance."""
    names = list(dict.fromkeys(cell["acceptance"] for cell in result["cells"]))
    figure, axes = pyplot.subplots(
        2, -(-len(names) // 2), figsize=(10, 6), sharex=True, squeeze=False
    )
    for axis, name in zip(axes.flat, names, strict=False):
        cells = [cell for cell in result["cells"] if cell["acceptance"] == name]
        sizes = [cell["batch_size"] for cell in cells]
        for label, colour in COLOURS.items():
            arms = [best_static(cell) if label == "best static" else label for cell in cells]
            rates = [cell["tokens_per_s"] for cell in cells]
            if not all(arm in mine for arm, mine in zip(arms, rates, strict=True)):
                continue
            gains = [mine[arm] / mine["none"] for arm, mine in zip(arms, rates, strict=True)]
            axis.plot(sizes, gains, STYLES[label], color=colour, marker=".", label=label)
        axis.axhline(1.0, color="black", linewidth=0.6)
        axis.set_xscale("log", base=2)
        axis.set_xticks(sizes, [str(size) for size in sizes])
        axis.set_title(f"acceptance {name}", fontsize=9)
    for axis in axes[:, 0]:
        axis.set_ylabel("tokens/s over none")
    for axis in axes[-1]:
        axis.set_xlabel("batch size")
    axes.flat[0].legend(fontsize=8)
    save(figure, path)
