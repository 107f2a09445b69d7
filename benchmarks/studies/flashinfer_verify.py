"""What does a round of a given depth take on FlashInfer, before and after, and on FA3?

Three arms, each alone on the GPU: `before` (an earlier commit's ADAPTIVE_EAGLE on FlashInfer, whose
verifies are planned by SGLang), `after` (ours on FlashInfer) and `fa3` (ours on FA3). The depth is
forced, so a round is that of SGLang's static setting. One batch per context and size lives through
all depths, which take turns. Llama-8B shapes, dummy weights, injected acceptance.

`after-...` arms lack a part, and so name what it brings (inject/plan_plugin.py). `wait_ms` is how
long a round's launch waits for the lengths that the round before decides.

On the machine with the GPU, from the project's root (before/ as `--before` asks for; 200 s an arm):

    python3 -m benchmarks.studies.flashinfer_verify run --before SHA=before --arms before,after \\
        --git-sha SHA --out $OUT --tag 1
    python3 -m benchmarks.studies.flashinfer_verify merge runs/flashinfer-verify-*.json \\
        --result benchmarks/results/current/flashinfer-verify-h100.json
"""

import argparse
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.inject.acceptance import request_ids
from benchmarks.inject.engine import STEPS
from benchmarks.inject.plan_plugin import WITHOUT_ENV
from benchmarks.lab.arms import OURS, Arm, add_before, earlier
from benchmarks.lab.fleet import (
    FULL_BATCH_TIMEOUT_S,
    WATCH_MARGIN_S,
    keep_logs,
    new_token_limit,
    running_batch,
)
from benchmarks.lab.load import SKIPPED_ROUNDS, full_run
from benchmarks.lab.models import prompt_ids
from benchmarks.lab.run_files import add_merge, begin_run, merge_lists, run_command, write_run
from benchmarks.lab.server import Server
from benchmarks.lab.session import INJECTED, serving_arm
from benchmarks.lab.settings import (
    CPU_COMMON,
    PYTHON_TREE,
    add_fleet_flags,
    numbers,
    plan_with,
    words,
)
from benchmarks.stats.differences import GPU, differences, keys, measured_on
from benchmarks.stats.figures import HEADER, Figure, ratio_of_pairs
from benchmarks.stats.tables import table

DEPTHS = (1, 3, 7)
CONFIG = {
    "policy": "goodput",
    "memory_budget_gb": 64,
    "1": {"candidate_steps": list(DEPTHS)},
}
FLASHINFER = ("--attention-backend", "flashinfer")
FORCED = ("--skip-tokenizer-init", "--max-running-requests", "130")
ACCEPTANCE = "0.3"  # contexts hardly grow
PARTS = ("mask", "tile", "verify-sync", "draft-sync", "lengths")
MIN_ROUNDS = 8
LIMITED = ((4096, 16, 3), (150, 24, 1), (150, 48, 1))  # context, batch, depth
MOST_OVER_FA3 = 1.15
LEAST_ROOM = 500  # tokens of an answer that lives through all depths
ROOM = 8192  # tokens of a request where the context is the model's own

Raw = Mapping[str, Any]


def parser() -> argparse.ArgumentParser:
    """Returns the command line."""
    top = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = top.add_subparsers(dest="command", required=True)
    run_ = commands.add_parser("run")
    run_.add_argument("--arms", type=words, default=("before", "after", "fa3"))
    run_.add_argument("--batches", type=numbers, default=(1, 4, 16, 24, 48, 128))
    run_.add_argument("--contexts", type=numbers, default=(150, 4096))
    run_.add_argument("--passes", type=int, default=3, help="of all depths, in turn [3]")
    run_.add_argument("--window-s", type=float, default=0.4)
    add_before(run_)
    add_fleet_flags(run_, max_total_tokens=0)
    run_.set_defaults(context_length=0)
    add_merge(commands)
    return top


def arms_of(args: argparse.Namespace) -> list[Arm]:
    """Returns the arms that were asked for.

    Raises:
        ValueError: There is no such arm.
    """
    backend = () if args.dry_cpu else FLASHINFER
    after = Arm("after", OURS, CONFIG, extra=backend)
    known = {"after": after, "fa3": Arm("fa3", OURS, CONFIG)}
    for arm in earlier(after, args.before):
        known["before"] = replace(arm, name="before")
    for part in PARTS:
        arm = replace(after, name=f"after-{part}", environment={WITHOUT_ENV: part})
        known[arm.name] = arm
    if unknown := set(args.arms) - known.keys():
        raise ValueError(f"--arms has {sorted(unknown)}; allowed: {sorted(known)}.")
    return [known[name] for name in args.arms]


def run(args: argparse.Namespace) -> int:
    """Serves the arms one after the other; returns 1 if one lacks a window."""
    deadline = time.monotonic() + args.deadline
    record, path = begin_run(args, "flashinfer-verify")
    record["windows"], record["servers"] = [], []
    is_whole = True
    with tempfile.TemporaryDirectory(prefix="verify-bench-") as scratch:
        for arm in arms_of(args):
            folder = Path(scratch) / arm.name
            plan = plan_with(args, folder, CPU_COMMON if args.dry_cpu else FORCED)
            plan = replace(plan, environment={**plan.environment, **PYTHON_TREE})
            try:
                with serving_arm(arm, plan) as (server, measured):
                    for window in windows_of(server, args, deadline):
                        record["windows"].append({"arm": arm.name, **window})
                        is_whole &= window["rounds"] >= MIN_ROUNDS
                record["servers"].append({**measured, "plugin": None})
            except RuntimeError as error:  # the other arms are still worth measuring
                print(f"{arm.name}: {error}", flush=True)
                is_whole = False
            finally:
                keep_logs([arm], Path(scratch), path.with_suffix(".log"))
                write_run(record, path)
    print(figure_table(build_result(record["provenance"], record["windows"], record["servers"])))
    return 0 if is_whole else 1


def windows_of(
    server: Server, args: argparse.Namespace, deadline: float
) -> Iterator[dict[str, Any]]:
    """Yields the windows of all batches, in which the depths take turns."""
    pool = server.command()["max_total_tokens"]
    for context in args.contexts:
        prompts = prompt_ids(max(args.batches), context, args.seed)
        for size in args.batches:
            room = new_token_limit(pool, args.context_length or ROOM, context, size)
            if room < LEAST_ROOM:
                print(f"left out: {size} x {context}, the pool has {pool} tokens", flush=True)
                continue
            if time.monotonic() > deadline:
                print(f"left out at the deadline: {size} x {context}", flush=True)
                return
            ids = request_ids(ACCEPTANCE, size, context)
            with running_batch(server.url, prompts[:size], room, ids):
                for number in range(args.passes):
                    for depth in DEPTHS:
                        window = one_window(server, size, depth, args.window_s)
                        yield {"context": context, "batch": size, "pass": number, **window}


def one_window(server: Server, size: int, depth: int, seconds: float) -> dict[str, Any]:
    """Forces a depth for so long; returns its rounds and their mean time."""
    watch = {"batch_size": size, "seconds": seconds + WATCH_MARGIN_S}
    server.command(accept_length=INJECTED, policy=f"{STEPS}{depth}", watch=watch)
    server.wait_watch(FULL_BATCH_TIMEOUT_S)
    answer = server.command(accept_length=INJECTED, policy=f"{STEPS}{depth}")
    rounds = [
        each for each in full_run(answer["rounds"], size) if each.num_draft_tokens == depth + 1
    ]
    gaps = [
        (late.time_ns - early.time_ns) / 1e6
        for early, late in itertools.pairwise(rounds[SKIPPED_ROUNDS:])
    ]
    phases = answer["phases"]
    wait_ms, num_launches = phases.get("lengths decode", (0, 0.0))[1], phases["launch decode"][0]
    return {
        "depth": depth,
        "rounds": len(gaps),
        "ms": round(statistics.median(gaps), 4) if gaps else None,
        "wait_ms": round(wait_ms / num_launches, 4),
        "eager": sum(not each.replayed_graph for each in rounds),
    }


def build_result(origin: Raw, windows: Sequence[Raw], servers: Sequence[Raw]) -> dict[str, Any]:
    """Returns the result file."""
    round_ms: dict[str, Any] = {}
    wait_ms: dict[str, Any] = {}
    for context, batch, depth in dict.fromkeys(
        (each["context"], each["batch"], each["depth"]) for each in windows
    ):
        cell: dict[str, list[float | None]] = {}
        waits: dict[str, list[float]] = {}
        for each in windows:
            if (each["context"], each["batch"], each["depth"]) == (context, batch, depth):
                cell.setdefault(each["arm"], []).append(each["ms"])
                waits.setdefault(each["arm"], []).append(each["wait_ms"])
        place = (str(context), str(batch), f"static-{depth}")
        put(round_ms, place, {arm: spread(times) for arm, times in cell.items()})
        put(wait_ms, place, {arm: round(statistics.median(each), 3) for arm, each in waits.items()})
    return {
        "provenance": dict(origin),
        "round_ms": round_ms,
        "wait_ms": wait_ms,
        "raw": list(windows),
        "servers": list(servers),
    }


def put(tree: dict[str, Any], place: Sequence[str], value: Any) -> None:
    """Puts a value where the keys lead."""
    for key in place[:-1]:
        tree = tree.setdefault(key, {})
    tree[place[-1]] = value


def spread(times: Sequence[float | None]) -> dict[str, float]:
    """Returns the median of the passes and how far they reach."""
    known = [each for each in times if each is not None]
    if not known:
        return {}
    return {
        "ms": round(statistics.median(known), 3),
        "min": round(min(known), 3),
        "max": round(max(known), 3),
    }


def round_table(result: Raw) -> str:
    """Returns a row per context, batch and depth."""
    arms = list(dict.fromkeys(each["arm"] for each in result["raw"]))
    rows = [
        (
            context,
            batch,
            depth,
            *(f"{cell[arm]['ms']:.2f}" if cell.get(arm) else "-" for arm in arms),
            *(f"{result['wait_ms'][context][batch][depth].get(arm, 0):.2f}" for arm in arms),
        )
        for context, batches in result["round_ms"].items()
        for batch, depths in batches.items()
        for depth, cell in depths.items()
    ]
    return table(("context", "batch", "depth", *arms, *(f"wait {arm}" for arm in arms)), rows)


def figures(result: Raw) -> list[Figure]:
    """Returns rounds on FlashInfer over those on FA3.

    Contexts grow from pass to pass, alike in all arms: passes are compared one by one.
    """
    claims = []
    for context, batch, depth in LIMITED:
        times = {
            arm: [
                each["ms"]
                for each in result["raw"]
                if (each["arm"], each["context"], each["batch"], each["depth"])
                == (arm, context, batch, depth)
                and each["ms"]
            ]
            for arm in ("after", "fa3")
        }
        if times["after"] and len(times["after"]) == len(times["fa3"]):
            ratio = ratio_of_pairs(times["after"], times["fa3"])
            what = f"{batch} x {context}, depth {depth}: FlashInfer over FA3"
            claims.append(Figure(what, ratio, MOST_OVER_FA3, is_upper=True))
    return claims


def figure_table(result: Raw) -> str:
    """Returns what is claimed, and every cell."""
    claims = table(HEADER, [each.row() for each in figures(result)])
    return "\n".join((claims, round_table(result)))


def check_flashinfer_verify(result: Raw, gpu: str = GPU) -> list[str]:
    """Returns what is wrong with the shape or the figures of a result."""
    problems = keys("file", result, {"provenance", "round_ms", "wait_ms", "raw", "servers"})
    if problems:
        return problems
    again = build_result(result["provenance"], result["raw"], result["servers"])
    return [*measured_on(result["provenance"], gpu), *differences(result, again, "")]


def merge(args: argparse.Namespace) -> int:
    """Writes the result file from run files."""
    return merge_lists(args, ["windows", "servers"], build_result, figure_table)


def main() -> int:
    """Runs one command."""
    return run_command(parser(), run, merge)


if __name__ == "__main__":
    sys.exit(main())
