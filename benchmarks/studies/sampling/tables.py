"""What is claimed from sampling-h200.json.xz, arm by arm, and what the tests could have found.

An arm without a fault is found at fault with probability ALPHA at most: its p-values are corrected
for all its tests in the cells where the host's verification is meant to be lossless. `wrong` must
be found in every such cell, or nothing is shown by the others. The remaining cells claim nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.stats.figures import HEADER, Figure, Ratio, exact
from benchmarks.stats.homogeneity import detectable_distance
from benchmarks.stats.tables import table
from benchmarks.studies.sampling.summary import (
    ARMS,
    HOST_CELLS,
    LOSSLESS_CELLS,
    NONE,
    OURS,
    SLIGHTLY_WRONG,
    STATIC,
    WRONG,
    corrected,
    identical,
)

Raw = Mapping[str, Any]

ALPHA = 0.01
POWER = 0.9


def found_distance(result: Raw, arm: str) -> float:
    """Returns the distance that every test of an arm would have found with ``POWER``."""
    level = ALPHA / max(len(corrected(result, arm)), 1)
    return max(
        detectable_distance(
            max(each["freedom"], 1),
            level,
            POWER,
            cell["num_samples"][NONE],
            cell["num_samples"][arm],
        )
        for cell in result["cells"]
        if cell["name"] in LOSSLESS_CELLS
        for each in cell["tests"].get(arm, [])
    )


def caught_late(result: Raw) -> float:
    """Returns the corrected p-value of the wrong sampler in the cell that shows it least."""
    lowest: dict[str, float] = {}
    for cell, _, p_value in corrected(result, WRONG):
        lowest[cell] = min(p_value, lowest.get(cell, 1.0))
    return max(lowest.values(), default=1.0)


def greedy_figures(result: Raw) -> list[Figure]:
    """Returns what is claimed about greedy text: as often that of `none` as under static EAGLE."""
    raw = result["greedy"]["raw"]
    if not {STATIC, OURS} <= set(raw):
        return []
    mine, other = (
        {(each["seed"], each["concurrency"]): identical(each) for each in raw[arm]}
        for arm in (OURS, STATIC)
    )
    pairs = [
        pair
        for key in mine.keys() & other.keys()
        for pair in zip(mine[key], other[key], strict=True)
    ]
    claim = f"greedy text as under none: {OURS} over {STATIC}, {len(pairs)} requests"
    return [Figure(claim, paired_ratio(pairs), 1.0)]


def paired_ratio(pairs: Sequence[tuple[bool, bool]]) -> Ratio:
    """Returns the ratio of two shares over the same requests; those of one kind alone scatter."""
    both = sum(mine and other for mine, other in pairs)
    only_mine = sum(mine and not other for mine, other in pairs)
    only_other = sum(other and not mine for mine, other in pairs)
    if not both:
        return exact(1.0 if only_mine >= only_other else 0.0)
    share, of_other = both + only_mine, both + only_other
    stderr = ((only_mine + only_other) / (share * of_other)) ** 0.5
    return Ratio(share / of_other, stderr, len(pairs) - 1)


def figure_table(result: Raw) -> str:
    """Returns every arm's verdict, what it could have found, and the greedy claim."""
    rows: list[tuple[Any, ...]] = []
    for arm in ARMS:
        tests = corrected(result, arm)
        if not tests:
            continue
        cell, position, lowest = min(tests, key=lambda test: test[2])
        claim = f"{arm}: lowest p of {len(tests)}, corrected ({cell}, position {position})"
        if arm == WRONG:
            late = caught_late(result)
            claim = f"{arm}: highest over cells of the lowest p, corrected"
            rows.append((claim, f"{late:.3g}", "", f"< {ALPHA}", _verdict(late < ALPHA)))
        elif arm == SLIGHTLY_WRONG:  # found or not: how fine the tests are
            rows.append((claim, f"{lowest:.3g}", "", "", ""))
        else:
            rows.append((claim, f"{lowest:.3g}", "", f">= {ALPHA}", _verdict(lowest >= ALPHA)))
        found = found_distance(result, arm)
        rows.append((f"{arm}: distance found with probability {POWER}", f"{found:.4f}", "", "", ""))
    for name, share in result["greedy"]["identical"].items():
        rows.append((f"{name}: share of greedy texts as under none", f"{share:.4f}", "", "", ""))
    rows += [each.row() for each in greedy_figures(result)]
    return table(HEADER, rows)


def _verdict(is_met: bool) -> str:
    return "met" if is_met else "MISSED"


def cell_table(result: Raw) -> str:
    """Returns every cell and arm: samples, lowest uncorrected p-value, largest distance, rounds."""
    rows = []
    for cell in result["cells"]:
        for arm, tests in cell["tests"].items():
            rows.append(
                (
                    f"{cell['name']} {arm}" + (" (host)" if cell["name"] in HOST_CELLS else ""),
                    cell["num_samples"][arm],
                    f"{min(each['p_value'] for each in tests):.3g}",
                    f"{max(each['distance'] for each in tests):.4f}",
                    max(each["freedom"] for each in tests),
                    " ".join(f"{key}:{count}" for key, count in cell["rounds"][arm].items()),
                )
            )
    header = ("cell arm", "samples", "lowest p", "distance", "freedom", "rounds")
    return table(header, rows)
