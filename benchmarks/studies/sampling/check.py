"""Is sampling-h200.json.xz what it claims: complete, its tests alive and those of its counts?"""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.stats.differences import Gap, at_least, differences, gaps, keys, measured_on
from benchmarks.studies.sampling.summary import (
    BY_CONFIDENCE,
    BY_LENGTHS,
    CELLS,
    CONTROL,
    LOSSLESS_CELLS,
    NONE,
    OURS,
    OURS_REJECTION,
    PACKED_REJECTION,
    SLIGHTLY_WRONG,
    STATIC,
    WRONG,
    build_greedy,
    compared_with_none,
    corrected,
    num_samples,
)
from benchmarks.studies.sampling.tables import ALPHA, caught_late

Raw = Mapping[str, Any]

OTHERS = {NONE, CONTROL, STATIC, WRONG}  # beside ours
PACKED = (BY_LENGTHS, BY_CONFIDENCE, PACKED_REJECTION)
# Arms that switch in every round.
FORCED = {OURS, WRONG, SLIGHTLY_WRONG, OURS_REJECTION, *PACKED}
ALL_DEPTHS = {"0", "1", "3", "5", "7"}
MIN_SAMPLES = 20_000  # per arm, cell and position
# Five of the six rounds of the forced cycle run at another depth than the one before.
MIN_SWITCH_SHARE = 0.7
MIN_PACKED = 2_000  # rounds: more than half of four cells, zero steps apart
CELL_KEYS = {
    "name",
    "sampling",
    "prompts",
    "seeds",
    "num_samples",
    "rounds",
    "num_switches",
    "counts",
    "tests",
}


def check_packed(result: Raw) -> list[str]:
    """Returns what is wrong with a result of packed rounds, which has no greedy texts."""
    problems = check_sampling(result, PACKED)
    for server in result.get("servers", []):
        if server["arm"] in PACKED:
            num_packed = sum(server["plugin"]["packed_rounds"].values())
            if num_packed < MIN_PACKED:
                problems.append(f"{server['arm']}: {num_packed} of {MIN_PACKED} packed rounds")
    return problems


def check_sampling(result: Raw, ours: Sequence[str] = (OURS,)) -> list[str]:
    """Returns what is wrong with the shape or the figures of the result, or with its instrument."""
    problems = keys("file", result, {"provenance", "cells", "greedy", "servers"})
    if problems:
        return problems
    problems += measured_on(result["provenance"])
    there = {cell["name"]: cell for cell in result["cells"]}
    problems += gaps("cells", there, set(CELLS))
    for name, cell in there.items():
        problems += _check_cell(name, cell, ours)
    raw = [each for mine in result["greedy"]["raw"].values() for each in mine]
    wanted = {CONTROL, STATIC, OURS} if OURS in ours else set()
    lacking = at_least("greedy", result["greedy"]["identical"], wanted)
    claims_nothing = there.keys().isdisjoint(LOSSLESS_CELLS)  # a run of the host's cells alone
    problems += map(Gap, lacking) if claims_nothing else lacking
    problems += differences(result["greedy"], build_greedy(raw), "greedy")
    if claims_nothing:
        return problems
    has_faults = any(not isinstance(problem, Gap) for problem in problems)
    if not has_faults and caught_late(result) >= ALPHA:
        problems.append(f"{WRONG}: not found in every cell; then nothing is shown by the others")
    if not has_faults and min(p_value for *_, p_value in corrected(result, CONTROL)) < ALPHA:
        problems.append(f"{CONTROL}: differs from {NONE}, which it is: the tests are wrong")
    return problems


def _check_cell(where: str, cell: Raw, ours: Sequence[str]) -> list[str]:
    problems = keys(where, cell, CELL_KEYS)
    if not problems:
        wanted = {*OTHERS, *ours} - (set() if where in LOSSLESS_CELLS else {WRONG})
        problems = at_least(f"{where}.counts", cell["counts"], wanted)
    if problems:
        return problems
    problems = differences(cell["tests"], compared_with_none(cell["counts"]), f"{where}.tests")
    for arm, counts in cell["counts"].items():
        sizes = {sum(position.values()) for positions in counts for position in positions}
        if len(sizes) != 1:
            problems.append(f"{where} {arm}: positions of different numbers of tokens {sizes}")
        elif cell["num_samples"][arm] != num_samples(counts) or num_samples(counts) < MIN_SAMPLES:
            problems.append(f"{where} {arm}: {num_samples(counts)} samples of {MIN_SAMPLES}")
    for arm in sorted(FORCED & set(cell["counts"])):
        switches = cell["num_switches"][arm]
        problems += _check_switching(f"{where} {arm}", cell["rounds"][arm], switches)
    return problems


def _check_switching(where: str, rounds: Mapping[str, int], num_switches: int) -> list[str]:
    problems = at_least(f"{where} rounds", rounds, ALL_DEPTHS)
    if num_switches < MIN_SWITCH_SHARE * sum(rounds.values()):
        problems.append(f"{where}: {num_switches} switches in {sum(rounds.values())} rounds")
    return problems
