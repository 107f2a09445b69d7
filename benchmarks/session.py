"""One pass over an arm: start its server, run every cell, stop it; returns raw figures only."""

import contextlib
import datetime
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.acceptance import OURS_ENV, SEED_ENV
from benchmarks.arms import Arm, simulated_accept_length
from benchmarks.load import Window, generate, steady_window
from benchmarks.measure_plugin import ANSWER_KEY
from benchmarks.models import ModelPair, prompt_ids
from benchmarks.provenance import without_folders
from benchmarks.server import Server, announce_plugins, server_environment, serving

START_TIMEOUT_S = 400.0
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
    acceptance: tuple[str, ...]
    batch_sizes: tuple[int, ...]
    repeats: int
    prompt_tokens: int
    new_tokens: dict[str, int]  # by acceptance
    settle_tokens: dict[str, int]  # sent before the repeats, so that a policy has settled
    has_graphs: bool
    inject_seed: int | None = None  # injects acceptance by request id


def run_pass(arm: Arm, plan: Plan) -> dict[str, Any]:
    """Serves with ``arm`` and returns its raw pass."""
    lengths = [simulated_accept_length(name) for name in plan.acceptance]
    simulated = [length for length in lengths if length is not None]
    with serving_arm(arm, plan, simulated) as (server, measured):
        cells = [
            run_cell(server, arm, plan, acceptance, batch_size)
            for acceptance in plan.acceptance
            for batch_size in plan.batch_sizes
        ]
        measured["cells"] = cells
        measured["switch_us"] = server.command(switches=True).get("switch_us")
    return measured


@contextlib.contextmanager
def serving_arm(
    arm: Arm, plan: Plan, simulated: Sequence[float] = ()
) -> Iterator[tuple[Server, dict[str, Any]]]:
    """Runs an arm's server; yields it with a record of its start, completed at the end."""
    plan.folder.mkdir(parents=True, exist_ok=True)
    announce_plugins(plan.folder)
    arguments = [
        *("--model-path", str(plan.pair.target)),
        *plan.common,
        *arm.arguments(plan.pair, plan.folder),
    ]
    extra = {**plan.environment, **(arm.environment or {})}
    if simulated and arm.speculative:
        extra["SGLANG_SIMULATE_ACC_LEN"] = str(simulated[0])
    if plan.inject_seed is not None and arm.speculative:
        extra["SGLANG_SIMULATE_ACC_LEN"] = str(INJECTED)
        extra[SEED_ENV] = str(plan.inject_seed)
        if arm.is_ours:
            extra[OURS_ENV] = "1"
    environment = server_environment(plan.folder, arm.is_ours, extra)
    log = plan.folder / f"{arm.name}.log"
    measured: dict[str, Any] = {"arm": arm.name, "server_argv": without_folders(arguments)}
    measured["date"] = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    with serving(arguments, environment, plan.port, log, START_TIMEOUT_S) as server:
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
    if plan.has_graphs and not measured["captures"]["before_ready"]:
        raise RuntimeError(f"{arm.name}: no capture was counted at start, so none can be after it.")


def run_cell(
    server: Server, arm: Arm, plan: Plan, acceptance: str, batch_size: int
) -> dict[str, Any]:
    """Runs one (acceptance, batch size): settle, repeats, and one timed repeat."""
    length = simulated_accept_length(acceptance)
    new_tokens = plan.new_tokens["natural" if length is None else "sim"]
    settle = plan.settle_tokens["natural" if length is None else "sim"]

    def send(seed: int, tokens: int, timing: bool = False) -> list[list[Any]]:
        server.command(accept_length=length, policy=arm.policy, timing=timing, seed=seed)
        prompts = prompt_ids(batch_size, plan.prompt_tokens, 1000 * batch_size + seed)
        generate(server.url, prompts, tokens)
        return server.rounds()

    send(0, settle)
    repeats = [
        as_raw(steady_window(send(1 + repeat, new_tokens), batch_size))
        for repeat in range(plan.repeats)
    ]
    cell = {"acceptance": acceptance, "batch_size": batch_size, "repeats": repeats}
    if arm.speculative and not arm.is_static:
        send(1 + plan.repeats, settle, timing=True)
        cell["took_us"] = mean_us(server.command()["took_ns"])
    return cell


def as_raw(window: Window) -> dict[str, Any]:
    """Returns a repeat as it is kept in the file."""
    return {
        "num_tokens": window.num_tokens,
        "seconds": round(window.seconds, 6),
        "rounds": window.rounds,
        "num_eager_rounds": window.num_eager_rounds,
    }


def mean_us(took_ns: dict[str, Sequence[int]]) -> dict[str, Any]:
    """Returns the mean of each stage and their number of calls."""
    return {
        stage: {"mean_us": round(sum(took) / len(took) / 1e3, 3), "num_calls": len(took)}
        for stage, took in took_ns.items()
        if took
    }
