"""Do two tensor-parallel ranks take the same decisions, and what does agreeing cost?

ADAPTIVE_EAGLE without a config on two GPUs, Llama-8B shapes with dummy weights, injected
acceptance, closed loops of changing size and kind until NUM_ROUNDS decode rounds are over. Every
rank logs its decisions; what the second measures is askew (rank_log_plugin.py), such that it would
decide otherwise alone: round times are those of the first. Equal means byte by byte.

On a machine with two H200s, from the project's root (about 150 s):

    python3 -m benchmarks.studies.tensor_parallel run --git-sha SHA --out $OUT --tag 1
    python3 -m benchmarks.studies.tensor_parallel merge runs/tensor-parallel-1.json \\
        --result benchmarks/results/current/tensor-parallel-h200.json.xz

Decisions are the same code on any device, so a machine without a GPU can ask the same of two ranks
on its CPU host (tensor-parallel-cpu.json.xz; M: a folder of tools/tiny_models.py; 20 minutes):

    SGLANG_CPU_OMP_THREADS_BIND='0|1' python -m benchmarks.studies.tensor_parallel run --dry-cpu \\
        --target M/target --draft M/eagle3 --context-length 1024 --max-total-tokens 8192 \\
        --prompt-tokens 16 --deadline 1800 --out runs
"""

import argparse
import hashlib
import itertools
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.inject.acceptance import request_ids
from benchmarks.inject.rank_log_plugin import BLOCK_ROUNDS, LOG_ENV
from benchmarks.lab.arms import ARMS
from benchmarks.lab.fleet import keep_logs
from benchmarks.lab.load import generate_closed
from benchmarks.lab.models import prompt_ids
from benchmarks.lab.run_files import (
    add_merge,
    begin_run,
    publish,
    read_runs,
    run_command,
    write_run,
)
from benchmarks.lab.server import Server
from benchmarks.lab.session import INJECTED, serving_arm
from benchmarks.lab.settings import NO_MULTICAST, add_fleet_flags, fleet_plan
from benchmarks.stats.differences import differences, keys
from benchmarks.stats.figures import HEADER, Figure, exact
from benchmarks.stats.provenance import check_same_code
from benchmarks.stats.tables import table

NUM_RANKS = 2
NUM_ROUNDS = 10_000  # a choice
ARM = "goodput"
# Requests at once and how they accept, in turn: batches grow, shrink and change their kind.
LOOPS = ((1, "0.7"), (8, "0.3"), (32, "mixed"), (4, "0.95"), (64, "0.5"), (2, "mixed"))
REQUESTS_PER_SLOT, NEW_TOKENS = 3, 192
MAX_TOTAL_TOKENS = 65536
MAX_SHARE_OF_ROUND = 0.01  # of agreeing

Raw = Mapping[str, Any]


def parser() -> argparse.ArgumentParser:
    """Returns the command line."""
    top = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = top.add_subparsers(dest="command", required=True)
    run_ = commands.add_parser("run")
    run_.add_argument("--num-rounds", type=int, default=NUM_ROUNDS)
    run_.add_argument("--tp-size", type=int, default=NUM_RANKS)
    run_.add_argument("--server-args", type=str.split, default=[], help="more of them, in one word")
    add_fleet_flags(run_, MAX_TOTAL_TOKENS)
    add_merge(commands)
    return top


def run(args: argparse.Namespace) -> int:
    """Serves until enough rounds are over; returns 1 if the ranks differ or rounds lack."""
    deadline = time.monotonic() + args.deadline
    record, path = begin_run(args, "tensor-parallel")
    with tempfile.TemporaryDirectory(prefix="tp-bench-") as scratch:
        logs = Path(scratch) / "ranks"
        logs.mkdir()
        plan = fleet_plan(args, Path(scratch) / ARM)  # where keep_logs looks
        plan = replace(
            plan,
            common=(*plan.common, "--tp-size", str(args.tp_size), *args.server_args),
            environment={**plan.environment, **NO_MULTICAST, LOG_ENV: str(logs)},
        )
        try:
            with serving_arm(ARMS[ARM], plan) as (server, _):
                seconds = drive(server, args, deadline)
        finally:  # also of a server that hung or ended
            keep_logs([ARMS[ARM]], Path(scratch), path.with_suffix(".log"))
        record["ranks"] = ranks_of(logs, args.tp_size)
    record["seconds"] = round(seconds, 3)
    write_run(record, path)
    result = build_result(record["provenance"], record)
    print(figure_table(result))
    return 0 if result["are_equal"] and result["num_rounds"] >= args.num_rounds else 1


def drive(server: Server, args: argparse.Namespace, deadline: float) -> float:
    """Sends loops until the rounds are over or the time is; returns the seconds it took."""
    server.command(accept_length=INJECTED)
    start = time.monotonic()
    for number, (concurrency, acceptance) in enumerate(itertools.cycle(LOOPS)):
        rounds = server.internal_state()["adaptive_spec"]["rounds"]
        # Only whole blocks are logged.
        if sum(rounds.values()) >= args.num_rounds + BLOCK_ROUNDS or time.monotonic() > deadline:
            break
        total = REQUESTS_PER_SLOT * concurrency
        kind = acceptance if total % 2 == 0 else acceptance.replace("mixed", "0.5")
        ids = [f"{each}-l{number}" for each in request_ids(kind, total, number)]
        prompts = prompt_ids(total, args.prompt_tokens, number)
        generate_closed(server.url, prompts, NEW_TOKENS, concurrency, ignore_eos=True, ids=ids)
    return time.monotonic() - start


def ranks_of(folder: Path, num_ranks: int) -> list[dict[str, Any]]:
    """Returns what every rank logged: its decisions hashed and counted, its sharing timed."""
    found = []
    for rank in range(num_ranks):
        decisions = (folder / f"decisions-{rank}.log").read_bytes()
        ticks = folder / f"ticks-{rank}.log"
        lines = decisions.decode().splitlines()
        found.append(
            {
                "sha256": hashlib.sha256(decisions).hexdigest(),
                "num_rounds": len(lines),
                "rounds": dict(sorted(Counter(line.split()[1] for line in lines).items())),
                "us_per_round": [float(line) for line in ticks.read_text().split()]
                if ticks.exists()
                else [],
            }
        )
    return found


def build_result(origin: Raw, raw: Raw) -> dict[str, Any]:
    """Returns the result file."""
    ranks: Sequence[Raw] = raw["ranks"]
    num_rounds = min(rank["num_rounds"] for rank in ranks)
    us = [statistics.fmean(rank["us_per_round"]) for rank in ranks if rank["us_per_round"]]
    mean_round_us = raw["seconds"] / num_rounds * 1e6
    return {
        "provenance": dict(origin),
        "are_equal": len({rank["sha256"] for rank in ranks}) == 1,
        "num_rounds": num_rounds,
        "us_per_round": [round(each, 3) for each in us],
        "share_of_round": round(max(us, default=0.0) / mean_round_us, 5),
        "raw": {"ranks": list(ranks), "seconds": raw["seconds"]},
    }


def check_tensor_parallel(result: Raw) -> list[str]:
    """Returns what is wrong with the shape or the figures of a result."""
    wanted = {"provenance", "are_equal", "num_rounds", "us_per_round", "share_of_round", "raw"}
    problems = keys("file", result, wanted)
    if problems:
        return problems
    if len(result["raw"]["ranks"]) != NUM_RANKS:
        problems.append(f"raw has {len(result['raw']['ranks'])} ranks")
    if not result["are_equal"]:
        problems.append("the ranks took different decisions")
    return problems + differences(result, build_result(result["provenance"], result["raw"]), "")


def figure_table(result: Raw) -> str:
    """Returns every target with its verdict."""
    figures = [
        Figure("decisions equal byte by byte", exact(float(result["are_equal"])), 1.0),
        Figure("decode rounds", exact(float(result["num_rounds"])), float(NUM_ROUNDS)),
        Figure(
            f"agreeing, share of a round: {max(result['us_per_round'], default=0.0):.1f} us",
            exact(result["share_of_round"]),
            MAX_SHARE_OF_ROUND,
            is_upper=True,
        ),
    ]
    rows = [figure.row() for figure in figures]
    rounds = list(result["raw"]["ranks"][0]["rounds"].items())
    return "\n".join((table(HEADER, rows), table(("tier", "rounds"), rounds)))


def merge(args: argparse.Namespace) -> int:
    """Writes the result file from one run file."""
    (record,) = read_runs(args.files)
    return publish(args, build_result(check_same_code([record]), record), figure_table)


def main() -> int:
    """Runs one command."""
    return run_command(parser(), run, merge)


if __name__ == "__main__":
    sys.exit(main())
