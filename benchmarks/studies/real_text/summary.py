"""From the passes of real text to the figures of real-text-h200.json.xz.

Arms are compared pass by pass: same requests, same machine, minutes apart. The best static setting
of a cell, no speculation included, is the one that ours is least ahead of, which makes it hardest:
of several that are as good, it is the one that was lucky. So the mean is given a second time beside
the one that was best in the cell's other passes. The best single one is that over all cells. A
depth that was left out of a cell's later repeats counts with its first ones: what is 10 % behind
twice may be 9 % behind. Where a table drafts (ngram-text-h200.json.xz), a depth is a number of its
nodes.
"""

import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.stats.differences import GPU, Gap, differences, gaps, keys, measured_on
from benchmarks.stats.figures import (
    HEADER,
    Figure,
    Ratio,
    geometric_mean,
    lowest,
    ratio_at_same_place,
    ratio_of_pairs,
    stated,
)
from benchmarks.stats.provenance import check_same_code, in_order
from benchmarks.stats.tables import table
from benchmarks.stats.windows import RATE_DIGITS, STATIC

Raw = Mapping[str, Any]
Where = tuple[str, int, float]  # traffic, clients, temperature

DOMAINS = ("chat", "code", "json", "maths", "summary", "translation")
OF_ALL = ("phases", "mixed")  # domains one after the other, and at once
OURS = "goodput"
# Rounds that are never packed, packed ones by learned lengths (the default), by confidence, too.
OURS_PACKED, OTHERS_OF_OURS = "goodput-packed", ("goodput-tiers", "goodput-confident")
KINDS_ARMS = ("none", "static-1", "static-3", "static-5", "static-7", OURS_PACKED, *OTHERS_OF_OURS)
KINDS_CELLS = {f"{traffic} {number}" for traffic in ("mixed", "chat") for number in (64, 128)}
# A table of what was written as the draft, on text that repeats and on text that does not.
OURS_OF_TABLE = "goodput-ngram"
WIDTHS = ("static-ngram-1", "static-ngram-3", "static-ngram-7", "static-ngram-15")
TABLE_ARMS = ("none", *WIDTHS, OURS_OF_TABLE)
TABLE_TRAFFIC, TABLE_CONCURRENCY = ("edits", "quotes", "chat"), (1, 8, 64)
TABLE_CELLS = {f"{traffic} {number}" for traffic in TABLE_TRAFFIC for number in TABLE_CONCURRENCY}
CONCURRENCY = (1, 8, 32, 128, 256)
CELLS = {f"{traffic} {number}" for traffic in (*OF_ALL, *DOMAINS) for number in CONCURRENCY}
ARMS = (*STATIC, "builtin", OURS)
OVER_BEST_STATIC, OVER_NONE, OVER_SINGLE = 0.97, 0.98, 1.0
# ``seat``, the core of its scheduler, is in those of 2cdac26 alone.
PASS_KEYS = ("repeat", "num_tokens", "seconds", "rounds", "paces", "seat", "as_none")
MIN_REPEATS = 3
# A choice: depths within 10 % of the best are measured to the end, others in two repeats.
FAR_BEHIND, REPEATS_TO_TELL = 0.9, 2


def where_of(each: Raw) -> Where:
    """Returns the cell of a pass."""
    return each["traffic"], each["concurrency"], each["temperature"]


def name_of(where: Where) -> str:
    """Returns how tables name a cell."""
    traffic, concurrency, temperature = where
    return f"{traffic} {concurrency}" + (f" t{temperature:g}" if temperature else "")


def is_depth(arm: str) -> bool:
    """Returns whether an arm speculates as far in every round."""
    return arm.startswith("static-")


def is_static(arm: str) -> bool:
    """Returns whether an arm never changes its mind: a depth, or no speculation."""
    return arm == "none" or is_depth(arm)


def ours_of(by_arm: Mapping[str, Any]) -> str:
    """Returns the name of ours among the arms of a cell."""
    return next((arm for arm in (OURS_OF_TABLE, OURS_PACKED) if arm in by_arm), OURS)


def place_of(each: Raw) -> tuple[int, int]:
    """Returns what passes of the same requests have in common: the run and the repeat."""
    return each.get("run", 0), each["repeat"]


def rate_of(each: Raw) -> float:
    """Returns tokens/s of a pass."""
    return float(each["num_tokens"] / each["seconds"])


def left_behind(passes: Sequence[Raw], cell: Where) -> set[str]:
    """Returns the static depths that need no more passes of a cell: far behind each time."""
    repeats: dict[int, dict[str, float]] = {}
    for each in passes:
        if where_of(each) == tuple(cell) and is_depth(each["arm"]):
            repeats.setdefault(each["repeat"], {})[each["arm"]] = rate_of(each)
    behind: dict[str, list[bool]] = {}
    for rates in repeats.values():
        for arm, rate in rates.items():
            behind.setdefault(arm, []).append(rate < FAR_BEHIND * max(rates.values()))
    return {arm for arm, mine in behind.items() if len(mine) >= REPEATS_TO_TELL and all(mine)}


def merged(records: Sequence[Raw]) -> dict[str, Any]:
    """Returns the result of several runs of the same code on the same machine kind."""
    servers = [each for record in records for each in record.get("servers", ())]
    passes = [
        {**each, "run": number}
        for number, record in enumerate(in_order(records))
        for each in record["passes"]
    ]
    return build_result(check_same_code(records), passes, servers)


def build_result(origin: Raw, passes: Sequence[Raw], servers: Sequence[Raw] = ()) -> dict[str, Any]:
    """Returns the result file from the passes of all runs."""
    cells: dict[Where, dict[str, list[Raw]]] = {}
    for each in passes:
        kept = {key: each[key] for key in ("run", *PASS_KEYS) if key in each}
        cells.setdefault(where_of(each), {}).setdefault(each["arm"], []).append(kept)
    return {
        "provenance": dict(origin),
        "cells": [build_cell(where, by_arm) for where, by_arm in cells.items()],
        "servers": list(servers),
    }


def build_cell(where: Where, by_arm: Mapping[str, Sequence[Raw]]) -> dict[str, Any]:
    """Returns one cell with its figures."""
    traffic, concurrency, temperature = where
    return {
        "traffic": traffic,
        "concurrency": concurrency,
        "temperature": temperature,
        "tokens_per_s": {
            arm: round(statistics.fmean(map(rate_of, mine)), RATE_DIGITS)
            for arm, mine in by_arm.items()
        },
        "over": {arm: stated(ratio) for arm, ratio in over(by_arm).items()},
        "raw": {arm: list(mine) for arm, mine in by_arm.items()},
    }


def rates_of(
    by_arm: Mapping[str, Sequence[Raw]],
) -> tuple[dict[tuple[int, int], float], dict[str, dict[tuple[int, int], float]]]:
    """Returns tokens/s of a cell by place: of ours, and of every other arm."""
    rates = {arm: {place_of(each): rate_of(each) for each in mine} for arm, mine in by_arm.items()}
    return rates.pop(ours_of(by_arm), {}), rates


def over(by_arm: Mapping[str, Sequence[Raw]]) -> dict[str, Ratio]:
    """Returns ours over every other arm of a cell, where both had a pass."""
    mine, rates = rates_of(by_arm)
    return {
        arm: ratio_at_same_place(mine, other)
        for arm, other in rates.items()
        if mine.keys() & other.keys()
    }


def best_static(ratios: Mapping[str, Ratio]) -> str | None:
    """Returns the static setting that ours is least ahead of; none is one."""
    return min(filter(is_static, ratios), key=lambda arm: ratios[arm].value, default=None)


def over_best_elsewhere(by_arm: Mapping[str, Sequence[Raw]]) -> Ratio | None:
    """Returns ours over the static setting that was best in the other passes; None: one pass."""
    mine, rates = rates_of(by_arm)
    statics = {arm: each for arm, each in rates.items() if is_static(arm)}
    pairs = []
    for place, rate in mine.items():
        gains = {}
        for arm, others in statics.items():
            elsewhere = (mine.keys() & others.keys()) - {place}
            if place in others and elsewhere:
                known = {each: others[each] for each in elsewhere}
                gains[arm] = ratio_at_same_place(known, mine).value
        if gains:
            best = max(gains, key=lambda arm: gains[arm])
            pairs.append((rate, statics[best][place]))
    return ratio_of_pairs(*zip(*pairs, strict=True)) if pairs else None


def over_by_cell(result: Raw) -> Iterator[tuple[Where, dict[str, Ratio]]]:
    """Yields every cell with ours over its other arms."""
    for cell in result["cells"]:
        yield where_of(cell), over(cell["raw"])


def figures(result: Raw) -> list[Figure]:
    """Returns the claims: overall, then the worst cells, then the texts."""
    found = list(over_by_cell(result))
    if not found:
        return []
    single: dict[str, Ratio] = {}
    for arm in dict.fromkeys(arm for _, each in found for arm in each):
        ratios = [each[arm] for _, each in found if arm in each]
        if ratios:
            single[arm] = geometric_mean(ratios)
    made = [
        Figure(f"ours / {arm}, all {len(found)} cells", ratio, OVER_SINGLE)
        for arm, ratio in single.items()
    ]
    beside_best = [
        (where, best, each[best])
        for where, each in found
        if (best := best_static(each)) is not None
    ]
    by_name = [(f"{name_of(where)}, {best}", ratio) for where, best, ratio in beside_best]
    if by_name:
        mean = geometric_mean([ratio for _, ratio in by_name])
        made.append(Figure("ours / best static setting of each cell, mean", mean, OVER_BEST_STATIC))
        made.append(lowest("worst cell over its best static setting", by_name, OVER_BEST_STATIC))
    elsewhere = [each for cell in result["cells"] if (each := over_best_elsewhere(cell["raw"]))]
    if elsewhere:
        claim = "ours / static setting that was best in a cell's other passes, mean"
        made.append(Figure(claim, geometric_mean(elsewhere), OVER_BEST_STATIC))
    of_none = [(name_of(where), each["none"]) for where, each in found if "none" in each]
    if of_none:
        made.append(lowest("worst cell over none", of_none, OVER_NONE))
    made += [
        Figure(f"{name_of(where)}: ours / {best}", ratio, OVER_SINGLE)
        for where, best, ratio in beside_best
        if where[0] in OF_ALL
    ]
    return made + identity_figures(result)


def identity_figures(result: Raw) -> list[Figure]:
    """Returns the share of texts as under none, ours over every static depth's, pass by pass."""
    made = []
    arms = dict.fromkeys(arm for cell in result["cells"] for arm in cell["raw"])
    for arm in filter(is_depth, arms):
        shares = [
            (share_as_none(ours), share_as_none(others))
            for cell in result["cells"]
            for ours, others in pairs_of_passes(cell["raw"], arm)
            if "1" in ours.get("as_none", "") and "1" in others.get("as_none", "")
        ]
        if shares:
            claim = f"texts as under none, ours / {arm}, {len(shares)} passes"
            made.append(Figure(claim, ratio_of_pairs(*zip(*shares, strict=True)), 1.0))
    return made


def share_as_none(each: Raw) -> float:
    """Returns the share of a pass's texts that are those of no speculation."""
    return float(each["as_none"].count("1") / len(each["as_none"]))


def pairs_of_passes(by_arm: Mapping[str, Sequence[Raw]], arm: str) -> Iterator[tuple[Raw, Raw]]:
    """Yields passes of ours and of an arm with the same requests."""
    others = {place_of(each): each for each in by_arm.get(arm, ())}
    for mine in by_arm.get(ours_of(by_arm), ()):
        if place_of(mine) in others:
            yield mine, others[place_of(mine)]


def check_real_text(
    result: Raw,
    gpu: str = GPU,
    cells: Collection[str] = frozenset(CELLS),
    arms: Collection[str] = ARMS,
) -> list[str]:
    """Returns what is wrong with the shape or the figures of the result."""
    problems = keys("file", result, {"provenance", "cells", "servers"})
    if problems:
        return problems
    problems += measured_on(result["provenance"], gpu)
    there = {name_of(where_of(cell)): cell for cell in result["cells"]}
    problems += gaps("cells", there, set(cells))
    for where, cell in there.items():
        problems += gaps(where, cell["raw"], set(arms))
        problems += differences(cell, build_cell(where_of(cell), cell["raw"]), where)
        problems += [
            Gap(f"{where}: {arm} has {len(mine)} of {MIN_REPEATS} passes")
            for arm, mine in cell["raw"].items()
            if len(mine) < MIN_REPEATS and not is_depth(arm)  # those may be left behind
        ]
    return problems


def check_kinds(result: Raw) -> list[str]:
    """Returns what is wrong with packed rounds on real text."""
    return check_real_text(result, cells=KINDS_CELLS, arms=KINDS_ARMS)


def check_table(result: Raw) -> list[str]:
    """Returns what is wrong with a table of what was written as the draft."""
    return check_real_text(result, cells=TABLE_CELLS, arms=TABLE_ARMS)


def figure_table(result: Raw) -> str:
    """Returns the claims with their verdicts."""
    return table(HEADER, [each.row() for each in figures(result)])


def cell_table(result: Raw) -> str:
    """Returns tokens/s of every cell and arm, and ours over none and the best static depth."""
    rows = []
    there = {arm for cell in result["cells"] for arm in cell["raw"]}
    arms = [arm for arm in dict.fromkeys((*ARMS, *KINDS_ARMS, *TABLE_ARMS)) if arm in there]
    for cell in result["cells"]:
        ratios = over(cell["raw"])
        best = best_static(ratios)
        rates = [cell["tokens_per_s"].get(arm, "") for arm in arms]
        shown = [f"{ratios[arm].value:.3f}" if arm in ratios else "" for arm in ("none", best)]
        rows.append((name_of(where_of(cell)), *rates, *shown, best or ""))
    return table(("cell", *arms, "over none", "over static", "best static"), rows)
