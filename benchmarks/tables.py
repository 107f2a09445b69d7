"""Short plain-text tables: a run for whoever started it, a result with its targets."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.load import relative_spread
from benchmarks.summary import eager_rounds, rates_of, rounds_of

Raw = Mapping[str, Any]


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Returns columns padded to their widest cell, numbers to the right."""
    cells = [list(header), *([_text(value) for value in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
    return "\n".join(lines)


def _text(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"
    return str(value)


def start_table(passes: Sequence[Raw]) -> str:
    """Returns what each pass took to start."""
    rows = [
        (
            each["arm"],
            each["ready_s"],
            each["tiers_s"],
            each["tiers_gb"],
            each["captures"]["before_ready"],
            each["captures"]["after_ready"],
            each.get("switch_us"),
        )
        for each in passes
    ]
    header = ("arm", "ready s", "tiers s", "tiers GB", "captures", "after ready", "switch us")
    return table(header, rows)


def cell_table(passes: Sequence[Raw]) -> str:
    """Returns tokens/s of every arm and cell, with spread, and rounds per tier."""
    arms = list(dict.fromkeys(each["arm"] for each in passes))
    rows = []
    for arm in arms:
        mine = [each for each in passes if each["arm"] == arm]
        for acceptance, by_size in rates_of(mine).items():
            for size, rates in by_size.items():
                tiers = rounds_of(mine, acceptance, size)
                rows.append(
                    (
                        f"{arm} {acceptance} {size}",
                        round(statistics.median(rates), 1),
                        f"{relative_spread(rates):.1%}",
                        _overhead(mine, acceptance, size),
                        eager_rounds(mine, acceptance, size),
                        " ".join(f"{steps}:{count}" for steps, count in tiers.items()),
                    )
                )
    return table(("arm acceptance batch", "tok/s", "spread", "policy us", "eager", "rounds"), rows)


def _overhead(passes: Sequence[Raw], acceptance: str, size: str) -> float | None:
    took = [
        sum(stage["mean_us"] for stage in cell["took_us"].values())
        for each in passes
        for cell in each["cells"]
        if (cell["acceptance"], str(cell["batch_size"])) == (acceptance, size)
        and cell.get("took_us")
    ]
    return round(statistics.median(took), 2) if took else None


def phase_table(passes: Sequence[Raw]) -> str:
    """Returns tokens/s and accept length of every arm and phase."""
    rows = [
        (
            f"{each['arm']} {phase}",
            statistics.median(r["num_tokens"] / r["seconds"] for r in repeats),
            sum(r["num_tokens"] for r in repeats) / sum(r["num_rounds"] for r in repeats),
            sum(r["num_tokens"] for r in repeats),
        )
        for each in passes
        for phase, repeats in each["phases"].items()
    ]
    return table(("arm phase", "tok/s", "accept length", "tokens"), rows)


class Target(NamedTuple):
    """A number that the project set itself, and what was measured."""

    claim: str
    value: float
    limit: float
    is_upper: bool  # the limit is the largest allowed value

    @property
    def is_met(self) -> bool:
        """Whether the measured value keeps to the limit."""
        return self.value <= self.limit if self.is_upper else self.value >= self.limit


def targets(result: Raw) -> list[Target]:
    """Returns every target of the H200 slice, met or not."""
    builtin, ema = result["arms"]["builtin"], result["arms"]["ema"]
    ratios = [
        ema["tokens_per_s"][acceptance][size] / rate
        for acceptance, by_size in builtin["tokens_per_s"].items()
        for size, rate in by_size.items()
    ]
    overhead = max(result["overhead_us_per_round"].values())
    plain = min(result["plain_over_none"].values())
    eager = sum(
        eager_rounds(ema["raw"], acceptance, size)
        for acceptance, by_size in ema["tokens_per_s"].items()
        for size in by_size
    )
    return [
        Target("tiers' GB over the host's", ema["tiers_gb"] / builtin["tiers_gb"], 0.5, True),
        Target("tiers' seconds over the host's", ema["tiers_s"] / builtin["tiers_s"], 0.6, True),
        Target("lowest throughput over the host's adaptive", min(ratios), 0.98, False),
        Target("choose + activate + observe, us per round", overhead, 30.0, True),
        Target("captures after ready", float(result["captures_after_ready"]), 0.0, True),
        Target("rounds without a graph", float(eager), 0.0, True),
        Target("lowest throughput of tier 0 over none", plain, 0.98, False),
    ]


def target_table(result: Raw) -> str:
    """Returns the targets with their verdicts."""
    rows = [
        (t.claim, round(t.value, 4), f"{'<=' if t.is_upper else '>='} {t.limit:g}",
         "met" if t.is_met else "MISSED")
        for t in targets(result)
    ]  # fmt: skip
    return table(("target", "measured", "limit", "verdict"), rows)
