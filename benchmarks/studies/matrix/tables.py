"""The matrix in print: a run for whoever started it, the cells, and every claim with its limit."""

import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.inject.acceptance import MIXED
from benchmarks.lab.arms import ARMS, is_earlier
from benchmarks.stats.figures import (
    HEADER,
    MISSED,
    NOT_KNOWN,
    Figure,
    Ratio,
    exact,
    geometric_mean,
    lowest,
    of_one_repeat,
    worst,
)
from benchmarks.stats.tables import table
from benchmarks.stats.windows import MATRIX_ARMS, STATIC, expected_rate, fair_best_static, rounds_of

Raw = Mapping[str, Any]

# Limits of the matrix, from the issue that asked for it on SGLang's default backend.
OVER_BEST_STATIC, OVER_BEST_STATIC_MEAN = 0.97, 0.99
OVER_NONE, OVER_NONE_AT_128 = 0.98, 0.975
OVER_SINGLE = 1.0  # what one setting for all cells serves, none included
LARGEST = 128  # requests
OVER_BUILTIN, SHARE_OF_CEILING = 0.98, 0.98
MIXED_OVER_BEST_STATIC = 0.99
MAX_STDERR = 0.02  # windows of one arm differ by 1 to 6 %
MAX_SEEDING_S = 10.0
MAX_PROBING = 0.01
OVER_EARLIER = 0.99  # of a commit before: what a rebuilding must keep


def window_table(windows: Sequence[Raw]) -> str:
    """Returns expected and counted tokens/s of every arm and cell, with rounds per tier."""
    groups: dict[tuple[int, str, str], list[Raw]] = {}
    for each in windows:
        key = (each["batch_size"], each["acceptance"], each["arm"])
        groups.setdefault(key, []).append(each)
    rows = []
    for (size, acceptance, arm), mine in groups.items():
        rates = [expected_rate(size, acceptance, each) for each in mine]
        counted = [each["num_tokens"] / each["seconds"] for each in mine]
        rounds = rounds_of(mine)
        rows.append(
            (
                f"{size} {acceptance} {arm}",
                statistics.fmean(rates),
                f"{(max(rates) - min(rates)) / statistics.fmean(rates):.2%}",
                statistics.fmean(counted),
                sum(each["seconds"] for each in mine) / sum(rounds.values()) * 1e3,
                sum(each["num_eager_rounds"] for each in mine),
                " ".join(f"{steps}:{count}" for steps, count in sorted(rounds.items())),
            )
        )
    header = ("batch acceptance arm", "tok/s", "spread", "counted", "round ms", "eager", "rounds")
    return table(header, rows)


def cell_table(result: Raw) -> str:
    """Returns tokens/s of every arm per cell, and goodput over the best static arm."""
    if not set(STATIC) & set(result["cells"][0]["tokens_per_s"]):
        return "no constant depth was run"
    arms = [arm for arm in MATRIX_ARMS if arm in result["cells"][0]["tokens_per_s"]]
    rows = []
    for cell in result["cells"]:
        rates = cell["tokens_per_s"]
        best, even = fair_best_static(cell)
        share = f"{ratio_of(even, 'goodput', best).value:.3f}" if "goodput" in rates else None
        rows.append((name_of(cell), *(rates.get(arm) for arm in arms), best, share))
    return table(("batch acceptance", *arms, "best static", "goodput / best"), rows)


def ratio_of(cell: Raw, over: str, under: str) -> Ratio:
    """Returns the throughput of one arm over another's in a cell."""
    value = cell["tokens_per_s"][over] / cell["tokens_per_s"][under]
    errors = cell["stderr"][over], cell["stderr"][under]
    if over == under:
        return exact(value)
    if None in errors:
        return of_one_repeat(value)
    freedom = len(cell["raw"][over]) + len(cell["raw"][under]) - 2
    return Ratio(value, (errors[0] ** 2 + errors[1] ** 2) ** 0.5, freedom)


def figures(result: Raw) -> list[Figure]:
    """Returns every claim about the matrix."""
    cells = result["cells"]
    chosen = [fair_best_static(cell) for cell in cells]
    best = [(name_of(even), ratio_of(even, "goodput", arm)) for arm, even in chosen]
    none = [over_none(cell) for cell in cells]
    builtin = [(name_of(cell), ratio_of(cell, "goodput", "builtin")) for cell in cells]
    mixed = [pair for pair, cell in zip(best, cells, strict=True) if cell["acceptance"] == MIXED]
    ceiling = geometric_mean([ratio_of(even, arm, "builtin") for arm, even in chosen])
    gain = geometric_mean([ratio_of(even, "goodput", "builtin") for _, even in chosen])
    best_mean = geometric_mean([ratio for _, ratio in best])
    static = over_each_static(cells)
    single = min(static, key=lambda arm: static[arm].value)
    # The builtin arm cancels out of this share; so does its error.
    share = Ratio(gain.value / ceiling.value, best_mean.stderr, best_mean.freedom)
    made = [
        lowest("goodput / best static, worst cell", best, OVER_BEST_STATIC),
        Figure("goodput / best static, geometric mean", best_mean, OVER_BEST_STATIC_MEAN),
        Figure(f"goodput / {single} in every cell, geometric mean", static[single], OVER_SINGLE),
        Figure("goodput / none, geometric mean", static["none"], OVER_SINGLE),
        worst(none),
        lowest("goodput / builtin, worst cell", builtin, OVER_BUILTIN),
        Figure(
            f"goodput / builtin {gain.value:.4f}, share of the ceiling {ceiling.value:.4f}",
            share,
            SHARE_OF_CEILING,
        ),
    ]
    if mixed:
        made.append(lowest("goodput / best static, mixed", mixed, MIXED_OVER_BEST_STATIC))
    return made + [
        Figure(claim, exact(value), limit, is_upper=True)
        for claim, value, limit in (
            ("highest standard error of an arm's mean", _worst_error(cells), MAX_STDERR),
            ("rounds without a graph", _num_eager(cells), 0.0),
            ("captures after ready, our arms", _num_late_captures(result), 0.0),
            *_start_and_probing(result),
        )
    ]


def over_each_static(cells: Sequence[Raw]) -> dict[str, Ratio]:
    """Returns what goodput serves over each static setting, the mean of all cells."""
    return {
        arm: geometric_mean([ratio_of(cell, "goodput", arm) for cell in cells]) for arm in STATIC
    }


def over_none(cell: Raw) -> Figure:
    """Returns the claim of a cell beside no speculation."""
    limit = OVER_NONE_AT_128 if cell["batch_size"] == LARGEST else OVER_NONE
    return Figure(f"{name_of(cell)}: goodput / none", ratio_of(cell, "goodput", "none"), limit)


def _worst_error(cells: Sequence[Raw]) -> float:
    errors = [error for cell in cells for error in cell["stderr"].values()]
    return max((error for error in errors if error is not None), default=float("inf"))


def _num_eager(cells: Sequence[Raw]) -> float:
    windows = (each for cell in cells for mine in cell["windows"].values() for each in mine)
    return float(sum(each["num_eager_rounds"] for each in windows))


def _num_late_captures(result: Raw) -> float:
    ours = (server for server in result["servers"] if ARMS[server["arm"]].is_ours)
    return float(sum(server["captures"]["after_ready"] for server in ours))


def _start_and_probing(result: Raw) -> list[tuple[str, float, float]]:
    """Returns the longest seeding and the largest share of probing that goodput's servers state."""
    states = [server["plugin"] for server in result["servers"] if server["arm"] == "goodput"]
    seconds = [each["seeding"]["seconds"] for each in states if each.get("seeding")]
    shares = [
        each["decisions"]["probing"]["share_of_time"] for each in states if each.get("decisions")
    ]
    made = [("seeding, s", max(seconds), MAX_SEEDING_S)] if seconds else []
    return made + ([("probing, share of time", max(shares), MAX_PROBING)] if shares else [])


def missed_cells(result: Raw) -> list[tuple[Any, ...]]:
    """Returns a row for every cell that misses a limit of its own, and how many are not known."""
    found = []
    for cell in result["cells"]:
        limit = MIXED_OVER_BEST_STATIC if cell["acceptance"] == MIXED else OVER_BEST_STATIC
        best, even = fair_best_static(cell)
        for windows, under, least in ((even, best, limit), (cell, "builtin", OVER_BUILTIN)):
            claim = f"{name_of(cell)}: goodput / {under}"
            found.append(Figure(claim, ratio_of(windows, "goodput", under), least))
        found.append(over_none(cell))
    unknown = sum(each.verdict == NOT_KNOWN for each in found)
    rows = [each.row() for each in found if each.verdict == MISSED]
    claim = f"limits of single cells that are {NOT_KNOWN}"
    return [*rows, (claim, unknown, "", f"of {len(found)}", "")]


def figure_table(result: Raw) -> str:
    """Returns the claims with their verdicts, then every single cell that misses one."""
    arms = set(result["cells"][0]["tokens_per_s"])
    if not {"goodput", "builtin", "none"} <= arms:
        rows = [
            each.row() for arm in filter(is_earlier, arms) for each in over_earlier(result, arm)
        ]
        return table(HEADER, rows) if rows else "no claims: goodput, builtin or none was not run"
    rows = [each.row() for each in figures(result)]
    return table(HEADER, rows + missed_cells(result))


def over_earlier(result: Raw, arm: str) -> list[Figure]:
    """Returns goodput over an earlier commit's at every batch size, and in all cells."""
    found: dict[str, list[Ratio]] = {}
    for cell in result["cells"]:
        ratio = ratio_of(cell, "goodput", arm)
        found.setdefault(f"at {cell['batch_size']}", []).append(ratio)
    found["all cells"] = list(itertools.chain.from_iterable(found.values()))
    return [
        Figure(f"goodput / {arm}, {where}", geometric_mean(some), OVER_EARLIER)
        for where, some in found.items()
    ]


def name_of(cell: Raw) -> str:
    """Returns a cell's name: batch size and acceptance."""
    return f"{cell['batch_size']} {cell['acceptance']}"
