"""Draws what the arms that adapt did over their turns, and how fast every prompt was answered."""

import io
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl

from examples.demo.figures import ArmResult

COLOURS = ("#777777", "#2a78d6", "#c98500", "#1baf7a", "#8a5bd0", "#b3541e", "#1f3f77")
STYLE: Any = {"svg.hashsalt": "timeline", "font.size": 9.0}  # the salt makes equal data equal files


def timeline_svg(results: Sequence[ArmResult]) -> str:
    """Returns the picture as SVG."""
    mpl.use("agg")
    from matplotlib import pyplot as plt

    adaptive = [each for each in results if not each.arm.is_fixed]
    with plt.rc_context(STYLE):
        figure = plt.figure(figsize=(9, 2.2 + 1.2 * len(adaptive)), layout="constrained")
        axes = figure.subplots(
            len(adaptive) + 1, 1, height_ratios=[*[1] * len(adaptive), 2], squeeze=False
        )[:, 0]
        for axis, each in zip(axes, adaptive, strict=False):
            _draw_tier(axis, each)
        _draw_speed(axes[-1], results)
        picture = io.StringIO()
        figure.savefig(picture, format="svg", metadata={"Date": None})
        plt.close(figure)
    text = picture.getvalue()
    return text[text.index("<svg") :]


def prompt_spans(result: ArmResult) -> list[tuple[str, float, float]]:
    """Returns (phase, start, end) of every answer, in seconds of the arm's own turns."""
    spans, start = [], 0.0
    for answer in result.answers:
        spans.append((answer.phase, start, start + answer.seconds))
        start += answer.seconds
    return spans


def _draw_tier(axis: Any, result: ArmResult) -> None:
    times = [snapshot.time_s for snapshot in result.snapshots]
    steps = [snapshot.num_steps for snapshot in result.snapshots]
    axis.step(times, steps, where="post", color="#1f3f77")
    axis.set_title(f"{result.name}: steps in force, by seconds of its own turns", loc="left")
    axis.set_yticks(sorted({0, *steps}))
    for phase, start, end in prompt_spans(result):
        axis.axvline(start, color="#bbbbbb", linewidth=0.8)
        axis.annotate(
            phase, ((start + end) / 2, 0.98), xycoords=("data", "axes fraction"), va="top",
            ha="center", color="#777777",
        )  # fmt: skip
    axis.margins(x=0, y=0.35)


def _draw_speed(axis: Any, results: Sequence[ArmResult]) -> None:
    width = 0.8 / len(results)
    for idx, (each, colour) in enumerate(zip(results, COLOURS, strict=False)):
        speeds = [len(answer.output_ids) / answer.seconds for answer in each.answers]
        places = [number + (idx - len(results) / 2) * width for number in range(len(speeds))]
        axis.bar(places, speeds, width, align="edge", label=each.name, color=colour)
    labels = [f"{answer.phase}\n{answer.source}" for answer in results[0].answers]
    axis.set_xticks(range(len(labels)), labels)
    axis.set_ylabel("tokens per second")
    axis.legend(fontsize="small", loc="upper left")
