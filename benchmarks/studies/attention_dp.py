"""Attention DP on several GPUs: one tier for ranks with requests of their own.

Experts in the shapes of Qwen3-30B-A3B with dummy weights, a dense EAGLE-3 draft of one layer,
injected acceptance. `goodput` is ADAPTIVE_EAGLE without a config; `votes` is the same server with a
planted policy, the smallest of what ranks would choose alone (inject/engine.py), in the cells where
that should differ. A cell says for each rank how many requests it has and how likely their drafts
hold; windows of all take turns, and servers stand still meanwhile: idle ranks gather without end. A
rank's tokens/s are added up over the ranks.

On a machine with four H200s, from the project's root. 40 of the 48 layers, so that five servers fit
into them; those start in 420 s, a repeat takes 160 s:

    python3 -m benchmarks.studies.attention_dp run --ranks 4 --layers 40 --settle-s 1.8 \\
        --repeats 6 --git-sha SHA --out $OUT --tag 1

H100s hold three, so depths take turns: --arms none,static-5,goodput,votes, then --tag 2 --arms
static-1,static-3,goodput (ours over the best static depth is its least ratio over any). Then:

    python3 -m benchmarks.studies.attention_dp merge runs/attention-dp-*.json \\
        --result benchmarks/results/current/dp-attention-h200.json.xz

The same path without a GPU (M: where the tests keep their models, .cache/tiny-models-*):

    SGLANG_CPU_OMP_THREADS_BIND='0|1' python -m benchmarks.studies.attention_dp run --dry-cpu \\
        --ranks 2 --target M/mtp --draft M/mtp --context-length 1024 --out runs
"""

import argparse
import contextlib
import hashlib
import itertools
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.inject.acceptance import request_ids
from benchmarks.inject.engine import VOTES
from benchmarks.inject.joint_plugin import LOG_ENV
from benchmarks.inject.measure_plugin import ANSWER_KEY
from benchmarks.lab.arms import OURS, Arm, static
from benchmarks.lab.fleet import Engine, abort_all, keep_logs, new_token_limit, serving_fleet
from benchmarks.lab.load import Round as Processed
from benchmarks.lab.load import as_raw, decodes_of, post_generate, window_of
from benchmarks.lab.models import QWEN3_30B_A3B, QWEN3_HEAD, ModelPair, prompt_ids, write_pair
from benchmarks.lab.run_files import (
    add_merge,
    begin_run,
    publish,
    read_runs,
    run_command,
    write_run,
)
from benchmarks.lab.session import INJECTED
from benchmarks.lab.settings import (
    DUMMY_WEIGHTS,
    NO_MULTICAST,
    PYTHON_TREE,
    add_fleet_flags,
    fleet_plan,
    words,
)
from benchmarks.lab.visits import PROMPT_SEED
from benchmarks.stats.differences import differences, keys
from benchmarks.stats.figures import HEADER, Figure, Ratio, exact, ratio_at_same_place, stated
from benchmarks.stats.provenance import check_same_code
from benchmarks.stats.tables import table
from sglang_adaptive_spec.tiers import chain_tier

MAX_TOTAL_TOKENS = 49152  # of a rank: 32 requests decode for 5 s at five tokens a round
CLOSING_S = 40.0  # that five servers of four ranks may take to end
LEAST_OF_STATIC, LEAST_OF_VOTES, MAX_SHARE_OF_ROUND = 0.97, 1.05, 0.01
GOODPUT = "goodput"
STATIC_STEPS = (1, 3, 5)

# SGLang refuses to start where another server takes memory of one rank's GPU before another's.
STARTS_TOGETHER = {"SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK": "0"}

Raw = Mapping[str, Any]


class Load(NamedTuple):
    """What a rank has to do: requests, and how likely their drafts hold."""

    num_requests: int
    acceptance: str


def alike(num_requests: int, acceptance: str) -> list[Load]:
    """Returns the same load for each of four ranks."""
    return [Load(num_requests, acceptance)] * 4


# By name: the load of each of four ranks; fewer ranks take the first ones.
CELLS: dict[str, list[Load]] = {
    "8 alike": alike(8, "0.7"),
    "32 alike": alike(32, "0.7"),
    "1 and 32": [Load(1, "0.3"), *alike(32, "0.9")[1:]],
    "32 and 1": [Load(1, "0.9"), *alike(32, "0.5")[1:]],
    "two kinds": [Load(16, "0.3"), Load(16, "0.9")] * 2,
    "one idle": [Load(0, "0.7"), *alike(16, "0.7")[1:]],
}
UNEQUAL = ("1 and 32", "two kinds")  # one rank's vote is shallower than what pays for all


def arms() -> list[Arm]:
    """Returns the servers of the comparison."""
    fixed = [static(chain_tier(num_steps)) for num_steps in STATIC_STEPS]
    every = [Arm("none"), *fixed, Arm(GOODPUT, OURS)]
    environment = {**PYTHON_TREE, **NO_MULTICAST, **STARTS_TOGETHER}
    return [replace(arm, environment=environment) for arm in every]


def parser() -> argparse.ArgumentParser:
    """Returns the command line."""
    top = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = top.add_subparsers(dest="command", required=True)
    run_ = commands.add_parser("run")
    run_.add_argument("--ranks", type=int, default=4)
    run_.add_argument("--cells", type=words, default=tuple(CELLS))
    every = (*(arm.name for arm in arms()), VOTES)
    run_.add_argument("--arms", type=words, default=every, help="votes: goodput's server again")
    run_.add_argument("--settle-s", type=float, default=1.2, help="before a window [1.2]")
    run_.add_argument("--window-s", type=float, default=1.2)
    run_.add_argument("--layers", type=int, default=QWEN3_30B_A3B["num_hidden_layers"])
    run_.add_argument("--server-args", type=str.split, default=[], help="more of them, in one word")
    add_fleet_flags(run_, MAX_TOTAL_TOKENS)
    run_.set_defaults(repeats=3)
    add_merge(commands)
    return top


def run(args: argparse.Namespace) -> int:
    """Measures every cell; returns 1 if a window is missing."""
    deadline = time.monotonic() + args.deadline - CLOSING_S
    record, path = begin_run(args, "attention-dp")
    record |= {"num_ranks": args.ranks, "layers": args.layers, "windows": [], "ranks": []}
    chosen = [arm for arm in arms() if arm.name in args.arms]
    num_missing = 0
    with tempfile.TemporaryDirectory(prefix="dp-bench-") as scratch:
        logs = Path(scratch) / "ranks"
        logs.mkdir()
        log_here = {GOODPUT: {LOG_ENV: str(logs)}}
        chosen = [
            replace(arm, environment={**(arm.environment or {}), **log_here.get(arm.name, {})})
            for arm in chosen
        ]
        plan = plan_of(args, Path(scratch))
        at_once = not args.dry_cpu
        with serving_fleet(chosen, plan, deadline, at_once=at_once, frozen=True) as engines:
            visits = [(engine.arm.name, engine) for engine in engines]
            votes = [(VOTES, each) for each in engines if each.arm.is_ours and VOTES in args.arms]
            for repeat, name in itertools.product(range(1, args.repeats + 1), args.cells):
                loads = CELLS[name][: args.ranks]
                here = visits + (votes if name in UNEQUAL else [])
                for arm, engine in here if repeat % 2 else reversed(here):
                    if time.monotonic() > deadline:
                        num_missing += 1
                        continue
                    try:
                        window = visit(engine, arm, loads, repeat, args)
                    except (RuntimeError, ValueError, OSError) as error:
                        print(f"{arm} {name}: {error}", flush=True)
                        num_missing += 1
                        continue
                    place = {"arm": arm, "cell": name, "repeat": repeat}
                    record["windows"].append({**place, **window})
                write_run(record, path)
            record["disagreements"] = disagreements(engines)
            record["ranks"] = ranks_of(logs, args.ranks)
            write_run(record, path)
            record["servers"] = [engine.measured for engine in engines]
        keep_logs(chosen, Path(scratch), path.with_suffix(".log"))
    write_run(record, path)
    print(figure_table(build_result(record["provenance"], [record])))
    return int(num_missing > 0)


def plan_of(args: argparse.Namespace, scratch: Path) -> Any:
    """Returns what all servers share: the shapes, the ranks."""
    size = str(args.ranks)
    ranks = ("--tp-size", size, "--dp-size", size, "--enable-dp-attention", *args.server_args)
    plan = fleet_plan(args, scratch)
    if args.target is None:
        folder = scratch / "models"
        pair = ModelPair(folder / "qwen3-30b-a3b", folder / "qwen3-head")
        target = {**QWEN3_30B_A3B, "num_hidden_layers": args.layers}
        plan = replace(plan, pair=write_pair(pair, target, QWEN3_HEAD))
        assert set(DUMMY_WEIGHTS) <= set(plan.common)
    return replace(plan, common=(*plan.common, *ranks))


def visit(
    engine: Engine, arm: str, loads: Sequence[Load], repeat: int, args: argparse.Namespace
) -> dict[str, Any]:
    """Runs one window; returns each rank's tokens, seconds and rounds in it."""
    server, clients = engine.server, []
    server.thaw()
    server.command(accept_length=INJECTED, policy=arm if arm == VOTES else "own")
    for rank, load in enumerate(loads):
        if load.num_requests:
            client = threading.Thread(target=send, args=(server.url, rank, load, repeat, args))
            client.start()
            clients.append(client)
    time.sleep(args.settle_s + args.window_s)
    states = server.internal_states()
    abort_all(server.url)
    for client in clients:
        client.join(60)
    server.freeze()
    found = []
    for load, state in zip(loads, states, strict=True):
        if load.num_requests:
            found.append(in_window(state[ANSWER_KEY]["rounds"], load.num_requests, args.window_s))
    ours = states[0].get("adaptive_spec") or {}
    return {"by_rank": found, "decision": ours.get("decisions")}


def send(url: str, rank: int, load: Load, repeat: int, args: argparse.Namespace) -> None:
    """Sends a rank its requests, whose answers nobody reads; an abort ends them."""
    size = load.num_requests
    prompts = prompt_ids(size, args.prompt_tokens, PROMPT_SEED + rank)
    limit = new_token_limit(args.max_total_tokens, args.context_length, args.prompt_tokens, size)
    sampling = {"max_new_tokens": limit, "ignore_eos": True}
    ids = [f"{each}-k{rank}" for each in request_ids(load.acceptance, size, repeat)]
    with contextlib.suppress(OSError):  # an aborted request may be answered with an error
        post_generate(url, prompts, sampling, rid=ids, routed_dp_rank=rank)


def in_window(
    rounds: Sequence[Sequence[Any]], num_requests: int, window_s: float
) -> dict[str, Any]:
    """Returns the last ``window_s`` of a rank's rounds, all of whose requests live.

    Raises:
        ValueError: The batch was not full all the time, or the rounds are too few.
    """
    every = [Processed(*each) for each in rounds]
    start_ns = every[-1].time_ns - int(window_s * 1e9) if every else 0
    last = [each for each in every if each.time_ns >= start_ns]
    if any(each.batch_size != num_requests or each.has_finished for each in last):
        raise ValueError(f"a batch of {num_requests} was not full in the window; settle longer.")
    window = window_of(last, num_requests, len(every))
    return {
        **as_raw(window),
        # Why rates are what they are: decodes of zero-step rounds, and how rounds scatter.
        "runs": dict(Counter(str(decodes_of(each)) for each in last if each.num_draft_tokens == 1)),
        "round_ms": deciles(
            [(after.time_ns - each.time_ns) / 1e6 for each, after in itertools.pairwise(last)]
        ),
    }


def deciles(values: Sequence[float]) -> list[float]:
    """Returns the first decile, the median and the last decile."""
    cuts = statistics.quantiles(values, n=10)
    return [round(cuts[idx], 3) for idx in (0, 4, 8)]


def disagreements(engines: Sequence[Engine]) -> dict[str, list[int]]:
    """Returns what every rank of every server of ours counts."""
    found = {}
    for engine in engines:
        if engine.arm.is_ours:
            engine.server.thaw()
            states = engine.server.internal_states()
            found[engine.arm.name] = [each["adaptive_spec"]["disagreements"] for each in states]
    return found


def ranks_of(folder: Path, num_ranks: int) -> list[dict[str, Any]]:
    """Returns what every rank logged: the plans of the rounds that all did, its rows timed."""
    plans = [_lines(folder / f"plans-{rank}.log") for rank in range(num_ranks)]
    num_rounds = min(len(each) for each in plans)  # ranks write a block at a time
    return [
        {
            "sha256": hashlib.sha256("\n".join(each[:num_rounds]).encode()).hexdigest(),
            "num_rounds": num_rounds,
            "rounds": dict(sorted(Counter(line.split()[0] for line in each[:num_rounds]).items())),
            "us_per_round": [float(line) for line in _lines(folder / f"rows-{rank}.log")],
        }
        for rank, each in enumerate(plans)
    ]


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def rates(records: Sequence[Raw], cell: str, arm: str) -> dict[Any, float]:
    """Returns tokens/s of all ranks by run and repeat."""
    return {
        (number, each["repeat"]): sum(
            rank["num_tokens"] / rank["seconds"] for rank in each["by_rank"]
        )
        for number, record in enumerate(records)
        for each in record["windows"]
        if (each["cell"], each["arm"]) == (cell, arm)
    }


def ratios(records: Sequence[Raw], cell: str) -> dict[str, Ratio]:
    """Returns ours over the smallest vote, over none, over the best static depth, where known."""
    by_arm = {
        arm: found
        for arm in dict.fromkeys(each["arm"] for record in records for each in record["windows"])
        if (found := rates(records, cell, arm))
    }
    if GOODPUT not in by_arm:
        return {}
    over = {
        arm: ratio_at_same_place(by_arm[GOODPUT], rate)
        for arm, rate in by_arm.items()
        if arm != GOODPUT and rate.keys() & by_arm[GOODPUT].keys()
    }
    # The best is the one that ours is least ahead of: not all depths are in every run.
    best = min(
        (ratio for arm, ratio in over.items() if arm.startswith("static-")),
        key=lambda ratio: ratio.value,
        default=None,
    )
    named = {name: over[name] for name in (VOTES, "none") if name in over}
    return named if best is None else {**named, "best static": best}


def build_result(origin: Raw, records: Sequence[Raw]) -> dict[str, Any]:
    """Returns the result file."""
    wanted = ("num_ranks", "layers", "windows", "ranks", "disagreements", "servers")
    kept: list[dict[str, Any]] = [{name: record.get(name) for name in wanted} for record in records]
    cells = list(dict.fromkeys(each["cell"] for record in kept for each in record["windows"]))
    names = dict.fromkeys(each["arm"] for record in kept for each in record["windows"])
    return {
        "provenance": dict(origin),
        "tokens_per_s": {
            cell: {
                arm: round(statistics.fmean(found.values()), 1)
                for arm in names
                if (found := rates(kept, cell, arm))
            }
            for cell in cells
        },
        "over": {
            cell: {name: stated(ratio) for name, ratio in ratios(kept, cell).items()}
            for cell in cells
        },
        "agreement": [agreement(record) for record in kept],
        "raw": kept,
    }


def agreement(record: Raw) -> dict[str, Any]:
    """Returns whether the ranks of a run ran the same plans, and what their rows cost."""
    ranks: Sequence[Raw] = record["ranks"]
    windows = [
        each
        for window in record["windows"]
        if window["arm"] == GOODPUT
        for each in window["by_rank"]
    ]
    # Of a round at zero steps a window counts every decode.
    num_rounds = sum(
        sum(each["runs"].values()) + sum(num for name, num in each["rounds"].items() if name != "0")
        for each in windows
    )
    round_us = sum(each["seconds"] for each in windows) * 1e6 / max(num_rounds, 1)
    us = [statistics.fmean(rank["us_per_round"]) for rank in ranks if rank["us_per_round"]]
    return {
        "are_equal": len({rank["sha256"] for rank in ranks}) == 1,
        "num_rounds": min((rank["num_rounds"] for rank in ranks), default=0),
        "us_per_round": [round(each, 2) for each in us],
        "share_of_round": round(max(us, default=0.0) / round_us, 5) if round_us else None,
        "disagreements": record["disagreements"],
    }


def figure_table(result: Raw) -> str:
    """Returns every ratio with its verdict, the rates, and how the ranks agreed."""
    raw, figures = result["raw"], []
    for cell in result["over"]:
        found = ratios(raw, cell)
        if "best static" in found:
            figures.append(Figure(f"{cell}: best static", found["best static"], LEAST_OF_STATIC))
        if VOTES in found and cell in UNEQUAL:
            figures.append(Figure(f"{cell}: smallest vote", found[VOTES], LEAST_OF_VOTES))
    for each in result["agreement"]:
        figures.append(Figure("plans equal byte by byte", exact(float(each["are_equal"])), 1.0))
        share = each["share_of_round"]
        if share is not None:
            what = f"rows, share of a round: {max(each['us_per_round'], default=0.0)} us"
            figures.append(Figure(what, exact(share), MAX_SHARE_OF_ROUND, is_upper=True))
    names = list(dict.fromkeys(arm for arms_ in result["tokens_per_s"].values() for arm in arms_))
    rows = [
        (cell, *(rates_.get(arm, "") for arm in names))
        for cell, rates_ in result["tokens_per_s"].items()
    ]
    agreed = [
        (each["num_rounds"], each["are_equal"], str(each["disagreements"]))
        for each in result["agreement"]
    ]
    return "\n".join(
        (
            table(HEADER, [each.row() for each in figures]),
            table(("tokens/s", *names), rows),
            table(("rounds", "equal", "disagreements"), agreed),
        )
    )


def check_attention_dp(result: Raw) -> list[str]:
    """Returns what is wrong with the shape or the figures of a result."""
    wanted = {"provenance", "tokens_per_s", "over", "agreement", "raw"}
    problems = keys("file", result, wanted)
    if problems:
        return problems
    if not all(each["are_equal"] for each in result["agreement"]):
        problems.append("ranks ran different plans")
    again = build_result(result["provenance"], result["raw"])
    return problems + differences(result, again, "")


def merge(args: argparse.Namespace) -> int:
    """Writes the result file from run files."""
    records = read_runs(args.files)
    return publish(args, build_result(check_same_code(records), records), figure_table)


def main() -> int:
    """Runs one command."""
    return run_command(parser(), run, merge)


if __name__ == "__main__":
    sys.exit(main())
