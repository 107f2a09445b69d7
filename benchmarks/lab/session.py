"""Serves an arm: starts its server, records the start, ends it."""

import contextlib
import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.inject.acceptance import OURS_ENV, SEED_ENV
from benchmarks.inject.measure_plugin import ANSWER_KEY
from benchmarks.inject.turn_plugin import TURN_ENV
from benchmarks.lab.arms import Arm
from benchmarks.lab.models import ModelPair
from benchmarks.lab.server import Server, announce_plugins, server_environment, serving
from benchmarks.stats.provenance import without_folders

START_TIMEOUT_S = 400.0
TURNS_S = 400.0  # more, for one that waits for its turn
# Any length above 0 makes the host ask for a simulation, which the injecting plugin answers.
INJECTED = 1.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What every arm of a run is put through."""

    pair: ModelPair
    common: tuple[str, ...]  # server arguments shared by all arms
    environment: dict[str, str]
    folder: Path
    port: int
    prompt_tokens: int
    has_graphs: bool
    inject_seed: int | None = None  # injects acceptance by request id
    turn: Path | None = None  # a server uses the GPU once this file is there


@contextlib.contextmanager
def serving_arm(arm: Arm, plan: Plan) -> Iterator[tuple[Server, dict[str, Any]]]:
    """Runs an arm's server; yields it with a record of its start, completed at the end."""
    plan.folder.mkdir(parents=True, exist_ok=True)
    announce_plugins(plan.folder)
    arguments = [
        *("--model-path", str(plan.pair.target)),
        *plan.common,
        *arm.arguments(plan.pair, plan.folder),
    ]
    extra = {**plan.environment, **(arm.environment or {})}
    if plan.turn is not None:
        extra[TURN_ENV] = str(plan.turn)
    if plan.inject_seed is not None and arm.speculative:
        extra["SGLANG_SIMULATE_ACC_LEN"] = str(INJECTED)
        extra[SEED_ENV] = str(plan.inject_seed)
        if arm.is_ours:
            extra[OURS_ENV] = "1"
    environment = server_environment(plan.folder, arm.is_ours, extra)
    log = plan.folder / f"{arm.name}.log"
    measured: dict[str, Any] = {"arm": arm.name, "server_argv": without_folders(arguments)}
    measured["date"] = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    timeout_s = START_TIMEOUT_S + (0.0 if plan.turn is None else TURNS_S)
    with serving(arguments, environment, plan.port, log, timeout_s) as server:
        start = server.command()
        measured["ready_s"] = round(server.ready_s, 3)
        for name in ("max_running_requests", "max_total_tokens"):
            measured[name] = start[name]
        for unit, digits in (("s", 3), ("gb", 4)):
            window, prefill = start[f"build_{unit}"], start[f"prefill_{unit}"]
            measured[f"window_{unit}"] = round(window, digits)
            measured[f"prefill_{unit}"] = round(prefill, digits)
            measured[f"tiers_{unit}"] = round(window - prefill, digits)
        yield server, measured
        state = server.internal_state()
        measured["captures"] = state[ANSWER_KEY]["num_captures"]
        measured["plugin"] = state.get("adaptive_spec")
    if plan.has_graphs and not arm.is_prefill and not measured["captures"]["before_ready"]:
        raise RuntimeError(f"{arm.name}: no capture was counted at start, so none can be after it.")
