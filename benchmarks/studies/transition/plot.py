"""Every phase over its best arm, drawn from the result file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib import pyplot

from benchmarks.stats.plots import COLOURS, save
from benchmarks.stats.windows import best_static
from benchmarks.studies.transition.summary import oracle_arms

Raw = Mapping[str, Any]


def plot_transition(result: Raw, path: Path) -> None:
    """Draws each phase's throughput over the best arm of that phase, one panel per cell."""
    cells = result["cells"]
    figure, axes = pyplot.subplots(-(-len(cells) // 2), 2, figsize=(10, 8), squeeze=False)
    for axis, cell in zip(axes.flat, cells, strict=False):
        best = oracle_arms(cell)
        static = best_static(cell)
        shown = [("best static", static), *((arm, arm) for arm in ("builtin", "ema", "goodput"))]
        for index, (label, arm) in enumerate((label, arm) for label, arm in shown):
            if arm not in cell["phases"]:
                continue
            shares = [cell["phases"][arm][name] / cell["phases"][best[name]][name] for name in best]
            places = [phase + 0.2 * (index - 1.5) for phase in range(len(best))]
            axis.bar(places, shares, 0.18, color=COLOURS[label], label=label)
        axis.axhline(1.0, color="black", linewidth=0.6)
        axis.set_xticks(range(len(best)), [f"{name}\n{arm}" for name, arm in best.items()])
        axis.set_title(f"{cell['workload']}, {cell['concurrency']} in flight", fontsize=9)
    for axis in axes.flat[len(cells) :]:
        axis.set_visible(False)
    for axis in axes[:, 0]:
        axis.set_ylabel("share of the phase's best")
    axes.flat[0].legend(fontsize=8)
    save(figure, path)
