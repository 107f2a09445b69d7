"""Draws the adaptive arms over time, side by side: tier in force, accept length, speed."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

from examples.demo.report import ADAPTIVE, REFERENCE, ArmResult, by_phase
from examples.demo.traffic import Snapshot

WINDOW_S = 6.0
PHASE_COLOURS = ("#eef3fa", "#fdf3e4", "#eaf6ec", "#eef3fa")
TIER_COLOUR, RATE_COLOUR, REFERENCE_COLOUR = "#1f3f77", "#b3541e", "#777777"
LABELS = (
    "tier in force\n(num_steps)",
    f"accept length\n({WINDOW_S:.0f} s window)",
    f"tokens per second\n({WINDOW_S:.0f} s window)",
)
STYLE: Any = {"svg.hashsalt": "timeline", "font.size": 9.0}  # the salt makes equal data equal files


def draw(arms: Sequence[ArmResult], path: Path) -> None:
    """Writes the plot as SVG or PNG, by the suffix of `path`."""
    mpl.use("agg")
    from matplotlib import pyplot as plt

    named = {arm.name: arm for arm in arms}
    with plt.rc_context(STYLE):
        figure = plt.figure(figsize=(12, 6), layout="constrained")
        grid = figure.subplots(3, len(ADAPTIVE), sharex="col", sharey="row")
        for column, name in enumerate(ADAPTIVE):
            _draw_arm(grid[:, column], named[name], named[REFERENCE])
        _label(grid)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
        plt.close(figure)


def _draw_arm(axes: Any, arm: ArmResult, reference: ArmResult) -> None:
    snapshots = arm.snapshots
    _draw_tier(axes[0], snapshots)
    _draw_rates(axes[1:], snapshots)
    _draw_reference(axes[2], reference, snapshots)
    for axis in axes:
        _shade_phases(axis, snapshots)
    _name_phases(axes[0], snapshots)
    axes[0].set_title(f"policy {arm.name}", pad=18)
    axes[2].set_xlabel("seconds since the first request")


def _label(grid: Any) -> None:
    for axis, label in zip(grid[:, 0], LABELS, strict=True):
        axis.set_ylabel(label)
    grid[2, 0].legend(loc="upper left", fontsize="small")


def rates(snapshots: Sequence[Snapshot]) -> list[tuple[float, float, float]]:
    """Returns (time, accept length, tokens per second) over sliding windows of `WINDOW_S`."""
    points = []
    first = 0
    for last, end in enumerate(snapshots):
        while end.time_s - snapshots[first].time_s > WINDOW_S and first + 1 < last:
            first += 1
        start = snapshots[first]
        num_rounds = end.num_rounds - start.num_rounds
        if num_rounds > 0:
            correct = end.num_correct_drafts - start.num_correct_drafts
            elapsed_s = end.time_s - start.time_s
            points.append(
                (end.time_s, 1 + correct / num_rounds, (num_rounds + correct) / elapsed_s)
            )
    return points


def phase_spans(snapshots: Sequence[Snapshot]) -> Iterator[tuple[str, float, float]]:
    """Yields (phase, start, end) in seconds."""
    starts: dict[str, float] = {}
    for snapshot in snapshots:
        starts.setdefault(snapshot.phase, snapshot.time_s)
    ends = [*list(starts.values())[1:], snapshots[-1].time_s]
    for (phase, start), end in zip(starts.items(), ends, strict=True):
        yield phase, start, end


def _draw_tier(axis: Any, snapshots: Sequence[Snapshot]) -> None:
    times, steps = [s.time_s for s in snapshots], [s.num_steps for s in snapshots]
    axis.step(times, steps, where="post", color=TIER_COLOUR)
    axis.set_yticks(sorted({int(tier) for tier in snapshots[-1].rounds}))


def _draw_rates(axes: Sequence[Any], snapshots: Sequence[Snapshot]) -> None:
    points = rates(snapshots)
    times = [time_s for time_s, _, _ in points]
    axes[0].plot(times, [length for _, length, _ in points], color=RATE_COLOUR)
    axes[1].plot(times, [speed for _, _, speed in points], color=RATE_COLOUR, label="this arm")
    axes[1].set_ylim(bottom=0)


def _draw_reference(axis: Any, reference: ArmResult, snapshots: Sequence[Snapshot]) -> None:
    speeds = by_phase(reference)
    for index, (phase, start, end) in enumerate(phase_spans(snapshots)):
        label = "no speculation, mean of the phase" if index == 0 else None
        speed = speeds[phase].tokens_per_s
        axis.hlines(speed, start, end, color=REFERENCE_COLOUR, linestyles="dashed", label=label)


def _shade_phases(axis: Any, snapshots: Sequence[Snapshot]) -> None:
    for colour, (_, start, end) in zip(PHASE_COLOURS, phase_spans(snapshots), strict=False):
        axis.axvspan(start, end, color=colour, zorder=-1)
    axis.margins(x=0)


def _name_phases(axis: Any, snapshots: Sequence[Snapshot]) -> None:
    for phase, start, end in phase_spans(snapshots):
        place = {"xy": ((start + end) / 2, 1.02), "xycoords": ("data", "axes fraction")}
        axis.annotate(phase, **place, ha="center", va="bottom")
