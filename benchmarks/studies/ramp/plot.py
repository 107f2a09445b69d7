"""What was served, and what requests felt, drawn from the result file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib import pyplot

from benchmarks.stats.plots import COLOURS, save

Raw = Mapping[str, Any]


def plot_ramp(result: Raw, path: Path) -> None:
    """Draws what each arm served over time, and the time per output token of its requests."""
    figure, (served, felt) = pyplot.subplots(2, 1, figsize=(9, 6), sharex=True)
    for arm, passes in result["raw"].items():
        colour = COLOURS.get(arm, COLOURS["best static"])
        served.step(range(len(passes[0]["served"])), passes[0]["served"], color=colour, label=arm)
        rows = [row for row in passes[0]["requests"] if row[3] > 1]
        felt.plot(
            [arrived / 1e3 for arrived, *_rest in rows],
            [(last - first) / (number - 1) for _, first, last, number in rows],
            ".", color=colour, markersize=2, label=arm, rasterized=True,
        )  # fmt: skip
    served.set_ylabel("tokens/s")
    felt.set_ylabel("ms per output token")
    felt.set_xlabel("s since the first arrival")
    served.legend(fontsize=8)
    save(figure, path)
