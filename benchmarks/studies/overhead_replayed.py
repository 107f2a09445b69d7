"""What do the policy's calls take where nothing else runs, and where the caches were emptied?

The calls that `overhead` times on a server, in replays of cells of the matrix on the CPU. By turns
the caches are left as they are, and emptied before every round by writing to memory larger than
they are, as all that a server does in between may. From the project's root, two minutes:

    python3 -m benchmarks.studies.overhead_replayed run --out runs
    python3 -m benchmarks.studies.overhead_replayed merge runs/overhead-replayed-1.json \\
        --result benchmarks/results/current/overhead-replayed-cpu.json
"""

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.inject.acceptance import MIXED_PROBABILITIES
from benchmarks.inject.engine import Calls, Stopwatch
from benchmarks.lab.run_files import (
    add_merge,
    add_run_flags,
    begin_run,
    merge_lists,
    run_command,
    write_run,
)
from benchmarks.lab.settings import numbers
from benchmarks.stats.differences import differences, keys
from benchmarks.stats.provenance import RESULTS
from benchmarks.stats.tables import table
from benchmarks.studies.simulator.server_costs import ServerCosts
from benchmarks.studies.simulator.summary import COSTS, SEEDS, fresh_policy
from sglang_adaptive_spec.simulate.replay import Replay
from sglang_adaptive_spec.simulate.synthetic import matrix_cell

EMPTIED_MB = 40
NUM_ROUNDS = 400  # counted of a replay, its last: the first rounds of a depth are all learned from
REPLAYED_S = 6.0
HAZARDS = ((0.3,), (0.7,), MIXED_PROBABILITIES)

Raw = Mapping[str, Any]


class CacheEmptier:
    """Takes the rounds of a replay, and leaves nothing of the calls in the caches."""

    def __init__(self) -> None:
        self._memory = np.zeros(EMPTIED_MB * 2**20 // 8)

    def record(self, *_: object) -> None:
        """Writes to all of the memory."""
        self._memory += 1


def parser() -> argparse.ArgumentParser:
    """Returns the command line."""
    top = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = top.add_subparsers(dest="command", required=True)
    run_ = commands.add_parser("run")
    run_.add_argument("--batches", type=numbers, default=(1, 32, 128))
    run_.add_argument("--repeats", type=int, default=3)
    run_.add_argument("--seconds", type=float, default=REPLAYED_S, help="replayed a cell")
    add_run_flags(run_)
    add_merge(commands)
    return top


def run(args: argparse.Namespace) -> int:
    """Times every cell both ways, by turns."""
    record, path = begin_run(args, "overhead-replayed")
    costs = ServerCosts(RESULTS / COSTS)
    record["replays"] = [
        {
            "batch_size": size,
            "hazards": list(hazards),
            "repeat": repeat,
            "is_emptied": is_emptied,
            "took_us": took_us(costs, size, hazards, is_emptied, args.seconds),
        }
        for repeat in range(1, args.repeats + 1)
        for size in args.batches
        for hazards in HAZARDS
        if len(hazards) <= size
        for is_emptied in (False, True)
    ]
    write_run(record, path)
    print(size_table(build_result(record["provenance"], record["replays"])))
    return 0


def took_us(
    costs: ServerCosts, size: int, hazards: Sequence[float], is_emptied: bool, seconds: float
) -> dict[str, float]:
    """Returns the mean time of each call in a replay's last rounds."""
    workload = matrix_cell(size, *hazards, duration_s=seconds)
    recorder = CacheEmptier() if is_emptied else None
    replay = Replay(fresh_policy(costs, SEEDS[0]), workload, costs, recorder=recorder)
    watch = Stopwatch(Calls(replay._controller, "before_decode", "observe"))
    replay.run()
    return {
        stage: round(statistics.fmean(took[-NUM_ROUNDS:]) / 1e3, 3)
        for stage, took in watch.took_ns.items()
    }


def build_result(origin: Raw, replays: Sequence[Raw]) -> dict[str, Any]:
    """Returns the result file: means over the replays beside them."""
    us: dict[str, dict[str, list[float]]] = {}
    for each in replays:
        caches = "emptied" if each["is_emptied"] else "kept"
        of_size = us.setdefault(str(each["batch_size"]), {})
        of_size.setdefault(caches, []).append(sum(each["took_us"].values()))
    means = {
        size: {caches: round(statistics.fmean(values), 2) for caches, values in of_size.items()}
        for size, of_size in us.items()
    }
    return {"provenance": dict(origin), "us_per_round": means, "raw": list(replays)}


def check_overhead_replayed(result: Raw) -> list[str]:
    """Returns what is wrong with the shape or the figures of a result."""
    problems = keys("file", result, {"provenance", "us_per_round", "raw"})
    if problems:
        return problems
    return differences(result, build_result(result["provenance"], result["raw"]), "")


def size_table(result: Raw) -> str:
    """Returns a row per batch size."""
    rows = [(size, us["kept"], us["emptied"]) for size, us in result["us_per_round"].items()]
    return table(("requests", "us, caches kept", "us, emptied"), rows)


def merge(args: argparse.Namespace) -> int:
    """Writes the result file from run files."""
    return merge_lists(args, ["replays"], build_result, size_table)


def main() -> int:
    """Runs one command."""
    return run_command(parser(), run, merge)


if __name__ == "__main__":
    sys.exit(main())
