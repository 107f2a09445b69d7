"""Random cases for the differential test: a config, initial steps, and rounds of accepted drafts.

Half of the tuning values are dyadic, so that averages land exactly on thresholds.
"""

import json
import random
from typing import Any

from sglang_adaptive_spec.config.schema import PRESETS, preset_path

NUM_ROUNDS = (20, 80)
BOUNDS = (0, 1, 2, 4, 8, 16, 32, 64)


def random_cases(num_cases: int, seed: int) -> list[dict[str, Any]]:
    """Returns reproducible cases; every tenth one runs a preset of ema."""
    rng = random.Random(seed)
    presets = [json.loads(preset_path(name).read_text()) for name in PRESETS if name != "goodput"]
    cases = []
    for number in range(num_cases):
        config = rng.choice(presets) if number % 10 == 0 else _config(rng)
        cases.append(
            {"config": config, "initial_steps": rng.randrange(9), "rounds": list(_rounds(rng))}
        )
    return cases


def _config(rng: random.Random) -> dict[str, Any]:
    config: dict[str, Any] = _tuning(rng) if rng.random() < 0.7 else {}
    for bound in rng.sample(BOUNDS, rng.randint(1, 4)):
        steps = rng.choices(range(9), k=rng.randint(1, 6))  # unsorted, with repeats
        config[str(bound)] = {"candidate_steps": steps, **_tuning(rng)}
    return config


def _tuning(rng: random.Random) -> dict[str, Any]:
    """Returns some of the tuning keys, so that defaults and both places are met."""
    full = {
        "ema_alpha": rng.choice([1, 0.5, 0.25, 0.2, rng.uniform(0.01, 1)]),
        "update_interval": rng.randint(1, 5),
        "warmup_batches": rng.choice([0, 0, 1, 2, 7]),
        "up_hysteresis": rng.choice([0, 0.25, -0.25, 0.5, rng.uniform(-1.5, 1.5)]),
        "down_hysteresis": rng.choice([0, 0.25, -0.25, -0.5, rng.uniform(-1.5, 1.5)]),
        "ceiling_coeff": rng.choice([0, 0, 1, 1.67, 3.0, 0.5, rng.uniform(0, 4)]),
    }
    return {key: value for key, value in full.items() if rng.random() < 0.6}


def _rounds(rng: random.Random) -> Any:
    depth, batch_size = rng.randint(0, 8), rng.randrange(130)
    for _ in range(rng.randint(*NUM_ROUNDS)):
        if rng.random() < 0.15:  # another phase of traffic
            depth = rng.randint(0, 8)
        if rng.random() < 0.2:
            batch_size = rng.choice([rng.randrange(130), rng.choice(BOUNDS), rng.randrange(3)])
        spread = rng.choice([0, 0, 1, 3])
        num_requests = rng.choice([0, 1, 1, 2, 3, min(batch_size, 8)])
        yield (
            batch_size,
            [max(0, depth + rng.randint(-spread, spread)) for _ in range(num_requests)],
        )
