"""What the policy costs: CPU time to read a batch, choose, activate and observe, a round.

On the machine with the H200, from the project's root (three servers took 200 s to start):

    python3 -m benchmarks.studies.overhead run --git-sha SHA --out $OUT
    python3 -m benchmarks.studies.overhead merge runs/overhead-*.json \\
        --result benchmarks/results/current/overhead-fa3.json.xz

The calls are timed on the instances, in windows of their own, with injected acceptance
so that there is something to choose; what reading the clock took in the same place is taken off.

With --before COMMIT=FOLDER an earlier commit serves beside, its windows by turns with ours: what a
change of the code costs a round, in pairs (overhead-before-h200.json.xz).
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.lab.arms import ARMS, add_before, earlier, is_earlier
from benchmarks.lab.fleet import Visit, keep_logs, new_token_limit, serving_fleet, visit
from benchmarks.lab.load import Window
from benchmarks.lab.models import prompt_ids
from benchmarks.lab.run_files import add_merge, begin_run, merge_lists, run_command, write_run
from benchmarks.lab.settings import add_fleet_flags, cells_of, fleet_plan, numbers, words
from benchmarks.lab.visits import MAX_TOTAL_TOKENS, PROMPT_SEED
from benchmarks.stats.differences import GPU, at_least, differences, keys, measured_on
from benchmarks.stats.figures import HEADER, Figure, Ratio, exact, ratio_of_pairs
from benchmarks.stats.tables import table
from benchmarks.stats.windows import relative_stderr

Raw = Mapping[str, Any]

REPORTED = "goodput"
BATCH_SIZES = {"1", "32", "128"}
MIN_REPEATS = 3
MAX_SHARE, MAX_US = 0.01, 70.0  # of a round
MAX_OVER_EARLIER = 1.03  # of a commit before


def parser() -> argparse.ArgumentParser:
    """Returns the command line."""
    top = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = top.add_subparsers(dest="command", required=True)
    run_ = commands.add_parser("run")
    run_.add_argument("--arms", type=words, default=("goodput", "ema", "builtin"))
    run_.add_argument("--batches", type=numbers, default=(1, 32, 128))
    run_.add_argument("--acceptances", type=words, default=("0.3", "0.7", "mixed"))
    run_.add_argument("--window-s", type=float, default=0.5)
    run_.add_argument("--settle-s", type=float, default=0.6)
    add_fleet_flags(run_, MAX_TOTAL_TOKENS)
    add_before(run_)
    run_.set_defaults(repeats=3)
    add_merge(commands)
    return top


def run(args: argparse.Namespace) -> int:
    """Times every arm in every cell; returns 1 if a server or a visit is missing."""
    deadline = time.monotonic() + args.deadline
    record, path = begin_run(args, "overhead")
    record["windows"] = windows = []
    arms = [*(ARMS[name] for name in args.arms), *earlier(ARMS[REPORTED], args.before)]
    prompts = prompt_ids(max(args.batches), args.prompt_tokens, PROMPT_SEED)
    with tempfile.TemporaryDirectory(prefix="overhead-bench-") as scratch:
        plan = fleet_plan(args, Path(scratch))
        with serving_fleet(arms, plan, deadline, at_once=True) as engines:
            # Every cell once before any twice: at the deadline all have as many pairs.
            for repeat in range(args.first_repeat, args.first_repeat + args.repeats):
                for batch_size, acceptance in cells_of(args.batches, args.acceptances):
                    limit = new_token_limit(
                        args.max_total_tokens, args.context_length, args.prompt_tokens, batch_size
                    )
                    wanted = Visit(
                        acceptance, batch_size, repeat, args.settle_s, args.window_s, timing=True
                    )
                    for engine in engines:
                        if time.monotonic() < deadline:
                            window, answer = visit(engine, wanted, prompts[:batch_size], limit)
                            windows.append(as_record(engine.arm.name, wanted, window, answer))
                write_run(record, path)
        keep_logs(arms, plan.folder, path.with_suffix(".log"))
    print(window_table(windows))
    num_wanted = len(arms) * args.repeats * len(cells_of(args.batches, args.acceptances))
    return 1 if len(windows) < num_wanted else 0


def as_record(arm: str, wanted: Visit, window: Window, answer: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a window as it is kept in the file: the calls of its own rounds, at the end."""
    num_rounds = sum(window.rounds.values())
    took_ns = {stage: took[-num_rounds:] for stage, took in answer["took_ns"].items()}
    return {
        "arm": arm,
        "batch_size": wanted.batch_size,
        "acceptance": wanted.acceptance,
        "repeat": wanted.repeat,
        "took_us": {
            stage: round(statistics.fmean(took) / 1e3, 3) for stage, took in took_ns.items()
        },
        "clock_us": round(statistics.median(answer["clock_ns"]) / 1e3, 3),
        "round_us": round(window.seconds / num_rounds * 1e6, 3),
        "rounds": window.rounds,
    }


def build_result(record_of_origin: Raw, windows: Sequence[Raw]) -> dict[str, Any]:
    """Returns the result file: its figures are means over the windows beside them."""
    return {
        "provenance": dict(record_of_origin),
        "us_per_round": {size: round(_mean(us), 2) for size, us in times(windows).items()},
        "share_of_round": {size: round(_mean(of), 6) for size, of in shares(windows).items()},
        "raw": list(windows),
    }


def times(windows: Sequence[Raw]) -> dict[str, list[float]]:
    """Returns the microseconds per round of every window of ours, by batch size."""
    by_size: dict[str, list[float]] = {}
    for each in windows:
        if each["arm"] == REPORTED:
            by_size.setdefault(str(each["batch_size"]), []).append(_us_of(each))
    return by_size


def shares(windows: Sequence[Raw]) -> dict[str, list[float]]:
    """Returns the share of the round of every window of ours, by batch size."""
    by_size: dict[str, list[float]] = {}
    for each in windows:
        if each["arm"] == REPORTED:
            share = _us_of(each) / each["round_us"]
            by_size.setdefault(str(each["batch_size"]), []).append(share)
    return by_size


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values)


def check_overhead(result: Raw, gpu: str = GPU) -> list[str]:
    """Returns what is wrong with the shape or the figures of the result."""
    problems = keys("file", result, {"provenance", "us_per_round", "share_of_round", "raw"})
    if problems:
        return problems
    problems += measured_on(result["provenance"], gpu)
    by_size = times(result["raw"])
    problems += at_least("raw", by_size, BATCH_SIZES)
    problems += [
        f"batch {size}: {len(values)} repeats"
        for size, values in by_size.items()
        if len(values) < MIN_REPEATS
    ]
    return problems + differences(result, build_result(result["provenance"], result["raw"]), "")


def figure_table(result: Raw) -> str:
    """Returns share and us of each batch size with their limits."""
    rows = []
    for size, values in shares(result["raw"]).items():
        share = Ratio(_mean(values), relative_stderr(values), max(len(values) - 1, 1))
        claim = f"share of the round at {size}"
        rows.append(Figure(claim, share, MAX_SHARE, is_upper=True).row())
        us = times(result["raw"])[size]
        spent = Ratio(_mean(us), relative_stderr(us), max(len(us) - 1, 1))
        rows.append(Figure(f"us a round at {size}", spent, MAX_US, is_upper=True).row())
    rows += [figure.row() for figure in over_earlier(result["raw"])]
    return table(HEADER, rows)


def over_earlier(windows: Sequence[Raw]) -> list[Figure]:
    """Returns what ours costs over an earlier commit's, in pairs of windows, where one ran.

    The policy's CPU time in all pairs; the whole round's where both ran one and the same tier.
    """

    def windows_of(arm: str) -> dict[tuple[Any, ...], Raw]:
        cell = ("batch_size", "acceptance", "repeat")
        return {tuple(each[name] for name in cell): each for each in windows if each["arm"] == arm}

    mine, found = windows_of(REPORTED), []
    for arm in sorted(filter(is_earlier, {each["arm"] for each in windows})):
        pairs = [(mine[cell], each) for cell, each in windows_of(arm).items() if cell in mine]
        alike = [
            pair for pair in pairs if len(set(pair[0]["rounds"]) | set(pair[1]["rounds"])) == 1
        ]
        for claim, some, value in (
            (f"us a round over those {arm}", pairs, _us_of),
            (f"ms a round of one tier over those {arm}", alike, _round_us_of),
        ):
            if some:
                ratio = ratio_of_pairs(*zip(*(map(value, pair) for pair in some), strict=True))
                found.append(Figure(f"{claim}, {len(some)} pairs", ratio, MAX_OVER_EARLIER, True))
                if ratio.stderr is not None:
                    bound = exact(ratio.interval[1])
                    found.append(Figure("its upper bound", bound, MAX_OVER_EARLIER, True))
    return found


def _us_of(window: Raw) -> float:
    return float(sum(window["took_us"].values()))


def _round_us_of(window: Raw) -> float:
    return float(window["round_us"])


def window_table(windows: Sequence[Raw]) -> str:
    """Returns every arm and cell of a run."""
    rows = [
        (
            f"{each['arm']} {each['batch_size']} {each['acceptance']}",
            *(each["took_us"].get(stage) for stage in ("describe", "choose", "observe")),
            each["round_us"] / 1e3,
            f"{_us_of(each) / each['round_us']:.3%}",
            " ".join(f"{steps}:{count}" for steps, count in each["rounds"].items()),
        )
        for each in windows
    ]
    us = ("describe us", "choose us", "observe us")
    return table(("arm batch acceptance", *us, "round ms", "share", "rounds"), rows)


def merge(args: argparse.Namespace) -> int:
    """Writes the result file from run files."""
    return merge_lists(args, ["windows"], build_result, figure_table)


def main() -> int:
    """Runs one command."""
    return run_command(parser(), run, merge)


if __name__ == "__main__":
    sys.exit(main())
