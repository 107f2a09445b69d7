"""Synthetic runs of the matrix: every round of an arm takes a known time."""

import random
from typing import Any

from benchmarks.inject.acceptance import DEFAULT_NAMES, probabilities
from benchmarks.lab.settings import cells_of
from benchmarks.stats.windows import MATRIX_ARMS
from benchmarks.studies.matrix.check import BATCH_SIZES
from tests.lab.records import PROVENANCE

NUM_ROUNDS = 200
DEPTHS = {"none": None, "builtin": 3, "ema": 3, "goodput": 5, "at-old": 5}


def depth_of(arm: str) -> int | None:
    """The depth that the arm runs at, all the time."""
    return int(arm[7:]) if arm.startswith("static-") else DEPTHS[arm]


def window(
    arm: str, batch_size: int, acceptance: str, repeat: int, round_ms: float = 10.0
) -> dict[str, Any]:
    """One window of equal rounds, its tokens drawn."""
    rng = random.Random(f"{arm} {batch_size} {acceptance} {repeat}")
    depth = depth_of(arm)
    tokens = 0
    for chance in probabilities(acceptance, batch_size):
        for _ in range(NUM_ROUNDS):
            tokens += 1
            left = depth or 0
            while left and rng.random() < chance:
                tokens, left = tokens + 1, left - 1
    return {
        "arm": arm,
        "batch_size": batch_size,
        "acceptance": acceptance,
        "repeat": repeat,
        "place": 0,
        "num_tokens": tokens,
        "seconds": NUM_ROUNDS * round_ms / 1e3 * (1 + 0.001 * (repeat % 3)),
        "rounds": {"none" if depth is None else str(depth): NUM_ROUNDS},
        "num_eager_rounds": 0,
    }


def run_record(
    arms: tuple[str, ...] = MATRIX_ARMS,
    batch_sizes: tuple[int, ...] = BATCH_SIZES,
    repeats: tuple[int, ...] = (1, 2, 3),
    **provenance: str,
) -> dict[str, Any]:
    """The record of one command over all acceptances."""
    return {
        "purpose": "matrix",
        "provenance": {**PROVENANCE, **provenance},
        "servers": [
            {
                "arm": arm,
                "server_argv": [],
                "captures": {"before_ready": 40, "after_ready": 0},
                "plugin": {
                    "seeding": {"source": "measured", "seconds": 6.5},
                    "decisions": {"probing": {"share_of_time": 0.004}},
                },
            }
            for arm in arms
        ],
        "windows": [
            window(arm, size, name, repeat)
            for size, name in cells_of(batch_sizes, DEFAULT_NAMES)
            for repeat in repeats
            for arm in arms
        ],
    }
