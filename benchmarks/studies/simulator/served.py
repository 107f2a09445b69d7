"""What would the policy serve if rounds took what the matrix measured? Finds wrong costs offline.

Anywhere, without a GPU (ten seconds):

    python3 -m benchmarks.studies.simulator.served

`simulator.py` asks whether a simulation is right: there the true periods are what a server seeded.
Here they are the means of matrix-h200-fa3.json.xz's own windows, by batch size and depth, and the
policy starts from the seeds of another server (costs-h200-fa3.json.xz). It visits the cells in the
matrix's order; a visit is cut into windows as there. Printed: tokens per second over those of the
best static arm at the same periods. No result file: nothing is measured.

Estimated, not measured: 2 steps, half-way between 1 and 3; zero steps at a batch size where no
window ran them alone, as much slower than arm none as at the others; 10 steps beyond the batch
sizes that ran them, so slow that no policy should stay.
"""

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.inject.acceptance import probabilities
from benchmarks.stats.provenance import RESULTS
from benchmarks.stats.result_file import read_result
from benchmarks.stats.tables import table
from benchmarks.stats.tokens import expected_tokens, num_steps_of
from benchmarks.stats.windows import STATIC
from benchmarks.studies.matrix.tables import name_of
from benchmarks.studies.simulator.server_costs import ServerCosts
from benchmarks.studies.simulator.summary import (
    COSTS,
    MATRIX,
    SEEDS,
    Visitor,
    fresh_policy,
    visit,
    windows_of,
)
from sglang_adaptive_spec.tiers import Tier, chain_tier

STATIC_STEPS = {arm: num_steps_of(arm.removeprefix("static-")) for arm in STATIC}
# Zero-step rounds, with their catch-ups, and 10 steps are seen in these arms' windows only.
ADAPTIVE = ("goodput", "ema")
ADAPTIVE_STEPS = ("0", "10")
NONE = -1  # the depth of arm none while periods are collected
VISIT_NOISE = 0.02  # relative standard deviation of a depth's period from one visit to the next
UNSEEN_FACTOR = 3.0  # of the deepest static period: a depth that never ran at that batch size

Raw = Mapping[str, Any]


def periods_ms(measured: Raw) -> dict[tuple[int, int], float]:
    """Returns the mean period by batch size and depth, zero steps as ours serve them."""
    found: dict[tuple[int, int], list[float]] = {}
    for cell in measured["cells"]:
        for arm, windows in cell["windows"].items():
            for window in windows:
                steps = _steps_of(arm, window["rounds"])
                if steps is not None:
                    ms = window["seconds"] / sum(window["rounds"].values()) * 1e3
                    found.setdefault((cell["batch_size"], steps), []).append(ms)
    means = {key: statistics.fmean(values) for key, values in found.items()}
    sizes = sorted({size for size, _ in means})
    # Arm none runs another round than ours of zero steps, a little faster.
    plain = {size: means.pop((size, NONE)) for size in sizes}
    slower = statistics.fmean(means[size, 0] / plain[size] for size in sizes if (size, 0) in means)
    for size in sizes:
        means[size, 2] = (means[size, 1] + means[size, 3]) / 2
        means.setdefault((size, 0), plain[size] * slower)
    return means


def _steps_of(arm: str, rounds: Mapping[str, int]) -> int | None:
    """Returns the only depth of a window that tells about it."""
    if arm in ADAPTIVE:
        only = next(iter(rounds)) if len(rounds) == 1 else None
        return int(only) if only in ADAPTIVE_STEPS else None
    return NONE if arm == "none" else STATIC_STEPS.get(arm)


class MeasuredCosts:
    """The measured periods as `RoundCosts`, each depth a little off in every visit."""

    def __init__(self, periods: Mapping[tuple[int, int], float], seed: int) -> None:
        self._periods = periods
        self._luck = np.random.default_rng(seed)
        self._factors: dict[int, float] = {}  # none before the first visit

    def next_visit(self) -> None:
        """Draws how far every depth is off."""
        depths = sorted({steps for _, steps in self._periods})
        noise = VISIT_NOISE * self._luck.standard_normal(len(depths))
        self._factors = dict(zip(depths, (1.0 + noise).tolist(), strict=True))

    def round_ms(self, tier: Tier, batch_size: int, context_tokens: int) -> float:
        """Returns the period; the windows are so short that context hardly tells."""
        ms = self._periods.get((batch_size, tier.num_steps))
        if ms is None:
            return UNSEEN_FACTOR * self._periods[batch_size, max(STATIC_STEPS.values())]
        return ms * self._factors.get(tier.num_steps, 1.0)

    def plain_extra_ms(self, batch_size: int, context_tokens: int) -> float:
        """Returns nothing: the mean zero-step period holds the catch-ups."""
        return 0.0


def best_static(cell: Raw, costs: MeasuredCosts) -> float:
    """Returns the tokens per second of the best static depth at the same periods."""
    size = cell["batch_size"]
    rows = probabilities(cell["acceptance"], size)
    return max(
        expected_tokens(rows, {str(steps): 1}) / costs.round_ms(chain_tier(steps), size, 0) * 1e3
        for steps in STATIC_STEPS.values()
    )


def shares(measured: Raw, start: ServerCosts, seeds: Sequence[int] = SEEDS) -> dict[str, float]:
    """Returns tokens per second over the best static depth's, by cell; geometric mean of seeds."""
    args, periods = windows_of(measured), periods_ms(measured)
    found: dict[str, list[float]] = {}
    for seed in seeds:
        costs = MeasuredCosts(periods, seed)
        visitor = Visitor(fresh_policy(start, seed))
        for cell in measured["cells"]:
            costs.next_visit()
            rate = visit(visitor, cell, costs, args, seed)
            found.setdefault(name_of(cell), []).append(rate / best_static(cell, costs))
    return {name: statistics.geometric_mean(values) for name, values in found.items()}


def main() -> int:
    """Prints every cell's share."""
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    measured = read_result(RESULTS / MATRIX)
    found = shares(measured, ServerCosts(RESULTS / COSTS))
    print(table(("cell", "goodput / best static"), list(found.items())))
    print(f"geometric mean {statistics.geometric_mean(found.values()):.4f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
