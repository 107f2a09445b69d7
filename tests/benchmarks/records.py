"""Synthetic run records with figures that a reader can check by hand."""

from typing import Any

BATCH_SIZES = (1, 5, 8, 24, 48, 64, 100)
PLAIN_BATCH_SIZES = (1, 16, 64, 128)
SLICE_ARMS = ("none", "static-3", "builtin", "ema", "ema-alternate")
PROVENANCE = {
    "git_sha": "0" * 40,
    "code_sha256": "c0de",
    "host_version": "0.5.21",
    "torch_version": "2.11.0",
    "gpu": "NVIDIA H200, 580",
    "argv": ["slice.py", "run"],
    "date": "2026-01-01T00:00:00+00:00",
}


def repeat(tokens_per_s: float, seconds: float = 2.0, rounds: int = 100) -> dict[str, Any]:
    """One repeat at the given rate."""
    return {
        "num_tokens": int(tokens_per_s * seconds),
        "seconds": seconds,
        "rounds": {"3": rounds},
        "num_eager_rounds": 0,
    }


def cell(acceptance: str, batch_size: int, rates: list[float], took_us: float | None) -> Any:
    """One cell with a repeat per rate; `took_us` is split evenly over choose and observe."""
    made: dict[str, Any] = {
        "acceptance": acceptance,
        "batch_size": batch_size,
        "repeats": [repeat(rate) for rate in rates],
    }
    if took_us is not None:
        stage = {"mean_us": took_us / 2, "num_calls": 40}
        made["took_us"] = {"choose": stage, "observe": stage}
    return made


def arm_pass(arm: str, rate: float, batch_sizes: tuple[int, ...], *names: str) -> dict[str, Any]:
    """One pass whose cells run at `rate` times their batch size, three repeats each."""
    timed = 12.0 if arm not in ("none", "static-3") else None
    return {
        "arm": arm,
        "server_argv": ["--random-seed", "1"],
        "date": PROVENANCE["date"],
        "ready_s": 30.0,
        "tiers_s": 20.0,
        "tiers_gb": 10.0,
        "captures": {"before_ready": 70, "after_ready": 0},
        "cells": [
            cell(name, size, [rate * size * off for off in (0.9, 1.0, 1.2)], timed)
            for name in names
            for size in batch_sizes
        ],
        "switch_us": 1.5 if timed else None,
        "plugin": None,
    }


def phase_pass(arm: str) -> dict[str, Any]:
    """One pass over two phases of the small pair: 300 tokens in 100 request-rounds, 2 seconds."""
    phase = {"num_tokens": 300, "seconds": 2.0, "num_rounds": 100}
    made = arm_pass(arm, 1.0, ())
    made["phases"] = {"prose": [phase] * 3, "json": [phase] * 3}
    return made


def records() -> list[dict[str, Any]]:
    """Every run that a complete result needs."""
    slice_passes = [arm_pass(arm, 100.0, BATCH_SIZES, "natural", "sim3.5") for arm in SLICE_ARMS]
    plain = [
        arm_pass(arm, rate, PLAIN_BATCH_SIZES, "natural")
        for arm, rate in (("none", 200.0), ("plain", 190.0)) * 2
    ]
    pair = [phase_pass(arm) for arm in ("none", "static-3", "builtin", "ema")]
    return [
        {"purpose": purpose, "provenance": dict(PROVENANCE), "passes": passes}
        for purpose, passes in (("slice", slice_passes), ("plain", plain), ("smollm2", pair))
    ]
