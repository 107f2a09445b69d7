"""What do stalled rounds, and a clock that tells of stalls, do to the policy's choices?

The shipped policy on every golden trace, with stalls over without: a share of rounds 2 to 20 times
too long, one by one or in spells, in the time itself or in the clock alone. Traffic and throughput
go by the time without stalls, so a ratio tells what they did to the choices. From the project's
root, some 20 minutes on a CPU:

    python3 -m benchmarks.studies.tails run --out runs
    python3 -m benchmarks.studies.tails merge runs/tails-1.json \\
        --result benchmarks/results/current/tails-cpu.json.xz
"""

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any

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
from benchmarks.stats.figures import HEADER, Figure, exact
from benchmarks.stats.tables import table
from sglang_adaptive_spec.config.schema import load_config
from sglang_adaptive_spec.simulate.command import goodput
from sglang_adaptive_spec.simulate.replay import NO_TAIL, Replay
from sglang_adaptive_spec.simulate.stalls import Tail
from sglang_adaptive_spec.simulate.synthetic import golden_workloads
from sglang_adaptive_spec.simulate.true_costs import ExampleCosts

COST_NOISE = 0.02  # of the seeds, as in the golden tests
SPELL_ROUNDS = 5  # mean length of a spell
SHARES = (0.02, 0.1)
KINDS = ("rounds", "round-spells", "readings", "reading-spells")
LEAST_MEAN = {0.02: 0.995, 0.1: 0.99}  # by share, of every trace: choices
LEAST = {0.02: 0.985, 0.1: 0.97}  # of every replay
DIGITS = 4

Raw = Mapping[str, Any]


def parser() -> argparse.ArgumentParser:
    """Returns the command line."""
    top = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = top.add_subparsers(dest="command", required=True)
    run_ = commands.add_parser("run")
    run_.add_argument("--traces", type=lambda text: text.split(","), default=[*golden_workloads()])
    run_.add_argument("--seeds", type=numbers, default=tuple(range(1, 9)))
    run_.add_argument("--shares", type=lambda text: [*map(float, text.split(","))], default=SHARES)
    run_.add_argument("--kinds", type=lambda text: text.split(","), default=KINDS)
    add_run_flags(run_)
    add_merge(commands)
    return top


def tail_of(kind: str, share: float) -> Tail:
    """Returns the stalls of a kind."""
    is_real, has_spells = kind.startswith("round"), kind.endswith("spells")
    return Tail(share, SPELL_ROUNDS if has_spells else 1, is_real)


def tokens_per_s(name: str, seed: int, tail: Tail = NO_TAIL) -> float:
    """Returns what the shipped policy serves of a golden trace, seeded and timed with noise."""
    costs = ExampleCosts()
    policy = goodput(costs, load_config(None), COST_NOISE, seed)
    replay = Replay(policy, golden_workloads()[name], costs, seed=seed, tail=tail)
    return round(replay.run().tokens_per_s, DIGITS)


def run(args: argparse.Namespace) -> int:
    """Replays every trace without stalls and with each kind."""
    record, path = begin_run(args, "tails")
    record["replays"] = []
    for name in args.traces:
        for seed in args.seeds:
            one = {"trace": name, "seed": seed, "without": tokens_per_s(name, seed)}
            one["with"] = {
                str(share): {
                    kind: tokens_per_s(name, seed, tail_of(kind, share)) for kind in args.kinds
                }
                for share in args.shares
            }
            record["replays"].append(one)
        write_run(record, path)
    print(figure_table(build_result(record["provenance"], record["replays"])))
    return 0


def build_result(origin: Raw, replays: Sequence[Raw]) -> dict[str, Any]:
    """Returns the result file: rates without stalls, and the shares of them that stalls leave."""
    rates: dict[str, list[float]] = {}
    left: dict[str, dict[str, dict[str, list[float]]]] = {}
    for each in replays:
        rates.setdefault(each["trace"], []).append(each["without"])
        for share, of_kind in each["with"].items():
            for kind, rate in of_kind.items():
                of_trace = left.setdefault(share, {}).setdefault(kind, {})
                of_trace.setdefault(each["trace"], []).append(rate / each["without"])
    return {
        "provenance": dict(origin),
        "tokens_per_s": {name: round(statistics.fmean(one), 1) for name, one in rates.items()},
        "left": {
            share: {
                kind: {
                    name: {
                        "mean": round(statistics.fmean(shares), DIGITS),
                        "lowest": round(min(shares), DIGITS),
                    }
                    for name, shares in of_trace.items()
                }
                for kind, of_trace in of_kind.items()
            }
            for share, of_kind in left.items()
        },
        "raw": list(replays),
    }


def check_tails(result: Raw) -> list[str]:
    """Returns what is wrong with the shape or the figures of a result."""
    problems = keys("file", result, {"provenance", "tokens_per_s", "left", "raw"})
    if problems:
        return problems
    return differences(result, build_result(result["provenance"], result["raw"]), "")


def figures(result: Raw) -> list[Figure]:
    """Returns the lowest mean and the lowest replay of every kind, with their traces."""
    found = []
    for share, of_kind in result["left"].items():
        for kind, of_trace in of_kind.items():
            for what, limits in (("mean", LEAST_MEAN), ("lowest", LEAST)):
                name = min(of_trace, key=lambda name: of_trace[name][what])
                claim = f"{share} of {kind}, {what}: {name}"
                found.append(Figure(claim, exact(of_trace[name][what]), limits[float(share)]))
    return found


def figure_table(result: Raw) -> str:
    """Returns every target with its verdict."""
    return table(HEADER, [figure.row() for figure in figures(result)])


def merge(args: argparse.Namespace) -> int:
    """Writes the result file from run files."""
    return merge_lists(args, ["replays"], build_result, figure_table)


def main() -> int:
    """Runs one command."""
    return run_command(parser(), run, merge)


if __name__ == "__main__":
    sys.exit(main())
