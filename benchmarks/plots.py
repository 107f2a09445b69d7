"""Plots of results as SVG, for the documentation."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

from benchmarks.matrix_summary import best_static
from benchmarks.transition_summary import best_static as static_over_phases
from benchmarks.transition_summary import oracle_arms

Raw = Mapping[str, Any]

# Colours of Okabe and Ito (2008), told apart by readers with any colour vision.
COLOURS = {"best static": "#999999", "builtin": "#d55e00", "ema": "#e69f00", "goodput": "#0072b2"}
STYLES = {"best static": "--", "builtin": "-", "ema": ":", "goodput": "-"}


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


def plot_transition(result: Raw, path: Path) -> None:
    """Draws each phase's throughput over the best arm of that phase, one panel per cell."""
    cells = result["cells"]
    figure, axes = pyplot.subplots(-(-len(cells) // 2), 2, figsize=(10, 8), squeeze=False)
    for axis, cell in zip(axes.flat, cells, strict=False):
        best = oracle_arms(cell)
        static = static_over_phases(cell)
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
    for axis in axes[:, 0]:
        axis.set_ylabel("share of the phase's best")
    axes.flat[0].legend(fontsize=8)
    save(figure, path)


def plot_ramp(result: Raw, path: Path) -> None:
    """Draws what each arm served over time, and the time per output token of its requests."""
    figure, (served, felt) = pyplot.subplots(2, 1, figsize=(9, 6), sharex=True)
    for arm, passes in result["raw"].items():
        colour = COLOURS.get(arm, COLOURS["best static"])
        served.step(range(len(passes[0]["served"])), passes[0]["served"], color=colour, label=arm)
        rows = passes[0]["requests"]
        felt.plot(
            [arrived / 1e3 for arrived, *_rest in rows],
            [(last - first) / (number - 1) for _, first, last, number in rows],
            ".", color=colour, markersize=2, label=arm,
        )  # fmt: skip
    served.set_ylabel("tokens/s")
    felt.set_ylabel("ms per output token")
    felt.set_xlabel("s since the first arrival")
    served.legend(fontsize=8)
    save(figure, path)


def save(figure: Any, path: Path) -> None:
    """Writes an SVG without a date in it, so that equal results make equal files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    with pyplot.rc_context({"svg.hashsalt": path.name}):
        figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
