"""How evenly do the cores of a benchmark's machine run, idle but for one loop?

Rounds that the CPU bounds are only as steady as its cores. A loop counts on each core in turn, a
slice each, sweep after sweep. From the project's root, before any server runs (30 s):

    python3 -m benchmarks.studies.cores run --git-sha SHA --out $OUT
    python3 -m benchmarks.studies.cores merge runs/cores-1.json \\
        --result benchmarks/results/current/cores-h200.json
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.lab.run_files import (
    add_merge,
    add_run_flags,
    begin_run,
    merge_lists,
    run_command,
    write_run,
)
from benchmarks.stats.differences import GPU, keys, measured_on
from benchmarks.stats.tables import table

SLICE_S = 0.02
STEPS_AT_ONCE = 200  # of the loop, between two looks at the clock
FULL_SPEED_QUANTILE = 0.95  # of all slices
SLOW, HALF = 0.9, 0.7  # of full speed
DIGITS = 4

Raw = Mapping[str, Any]


def parser() -> argparse.ArgumentParser:
    """Returns the command line."""
    top = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = top.add_subparsers(dest="command", required=True)
    run_ = commands.add_parser("run")
    run_.add_argument("--seconds", type=float, default=30.0)
    add_run_flags(run_)
    add_merge(commands)
    return top


def loops(core: int) -> int:
    """Returns how often a loop runs in a slice on ``core``."""
    os.sched_setaffinity(0, {core})
    count, end = 0, time.perf_counter() + SLICE_S
    while time.perf_counter() < end:
        for _ in range(STEPS_AT_ONCE):
            pass
        count += 1
    return count


def cpu_time() -> tuple[int, int]:
    """Returns the ticks that other guests took from this machine, and all ticks."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n")[0].split()[1:]]
    return fields[7], sum(fields[:8])  # guest time is in the first of them


def run(args: argparse.Namespace) -> int:
    """Watches the cores that this process may use."""
    record, path = begin_run(args, "cores")
    cores = sorted(os.sched_getaffinity(0))
    sweeps: list[list[int]] = []
    before = cpu_time()
    end = time.monotonic() + args.seconds
    while time.monotonic() < end or not sweeps:
        sweeps.append([loops(core) for core in cores])
    os.sched_setaffinity(0, cores)
    stolen, ticks = (now - then for now, then in zip(cpu_time(), before, strict=True))
    record["machines"] = [{"stolen_ticks": stolen, "ticks": ticks, "sweeps": sweeps}]
    write_run(record, path)
    print(machine_table(build_result(record["provenance"], record["machines"])))
    return 0


def build_result(origin: Raw, machines: Sequence[Raw]) -> dict[str, Any]:
    """Returns the result file: the shares of slow slices, of all and of the cores apart."""
    return {
        "provenance": dict(origin),
        "machines": [shares(each) for each in machines],
        "raw": list(machines),
    }


def shares(machine: Raw) -> dict[str, float]:
    """Returns which share of a machine's slices was slow, by core and in all."""
    sweeps: Sequence[Sequence[int]] = machine["sweeps"]
    counts = [count for sweep in sweeps for count in sweep]
    full = sorted(counts)[int(FULL_SPEED_QUANTILE * (len(counts) - 1))]
    by_core = [
        statistics.fmean(count < HALF * full for count in counts_of_core)
        for counts_of_core in zip(*sweeps, strict=True)
    ]
    return {
        "num_cores": len(by_core),
        "share_below_0.9": round(statistics.fmean(count < SLOW * full for count in counts), DIGITS),
        "share_below_0.7": round(statistics.fmean(by_core), DIGITS),
        "least_of_a_core": round(min(by_core), DIGITS),
        "most_of_a_core": round(max(by_core), DIGITS),
        "slowest": round(min(counts) / full, DIGITS),
        "stolen_share": round(machine["stolen_ticks"] / max(machine["ticks"], 1), DIGITS),
    }


def check_cores(result: Raw) -> list[str]:
    """Returns what is wrong with the shape or the figures of a result."""
    problems = keys("file", result, {"provenance", "machines", "raw"})
    if problems:
        return problems
    problems = measured_on(result["provenance"], GPU)
    if result != build_result(result["provenance"], result["raw"]):
        problems.append("machines is not what raw gives")
    return problems


def machine_table(result: Raw) -> str:
    """Returns a row per machine; speeds and shares of slices below so much of full speed."""
    names = list(result["machines"][0])
    return table(names, [tuple(each.values()) for each in result["machines"]])


def merge(args: argparse.Namespace) -> int:
    """Writes the result file from run files."""
    return merge_lists(args, ["machines"], build_result, machine_table)


def main() -> int:
    """Runs one command."""
    return run_command(parser(), run, merge)


if __name__ == "__main__":
    sys.exit(main())
