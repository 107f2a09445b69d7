"""Every arm at every batch size and acceptance, windows of the arms interleaved.

On the machine with the H200, from the project's root (SHA: the commit; the largest servers first:
four side by side fit its memory, eight do not; about 520 s a command, 160 of them to start):

    python3 -m benchmarks.matrix run --arms builtin,goodput,static-3,none --deadline 545 \\
        --git-sha SHA --out $OUT --tag a1
    python3 -m benchmarks.matrix run --arms ema,static-7,static-5,static-1 --deadline 545 \\
        --git-sha SHA --out $OUT --tag b1
    # both again with other draws: --first-repeat 2, tags a2 and b2; then anywhere:
    python3 -m benchmarks.matrix merge runs/matrix-*.json \\
        --result benchmarks/results/matrix-h200.json --plot docs/images/matrix-h200.svg

A command may take some of the cells (`--batches 1,4,16`, `--acceptances 0.7,mixed`); after
`--deadline` seconds it visits none. `--alone` serves one arm at a time. A first start on a bare
machine compiles kernels for a minute: warm up with `--arms none,static-1 --batches 1
--acceptances 0.5`, whose record is not kept. `--at-once` saves about 80 s of the starts where
memory is plenty: time for a second visit to every cell (`--repeats 2 --windows 2`).

Each command writes $OUT/matrix-TAG.json after every cell, so a time limit loses one cell at most,
and at the end the servers' last lines beside it. docs/benchmarks.md says how to read the result.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import matrix_summary, matrix_tables
from benchmarks.acceptance import DEFAULT_NAMES
from benchmarks.arms import ARMS
from benchmarks.fleet import (
    Engine,
    Visit,
    keep_logs,
    new_token_limit,
    serving_fleet,
    visit_rounds,
)
from benchmarks.load import Window, timed_windows
from benchmarks.models import prompt_ids
from benchmarks.run_files import (
    add_merge,
    begin_run,
    read_runs,
    run_command,
    write_result,
    write_run,
)
from benchmarks.session import Plan
from benchmarks.settings import add_fleet_flags, cells_of, fleet_plan, numbers, words

# Room for 128 requests of 128 prompt tokens and about 340 new ones, four times in 139 GiB.
MAX_TOTAL_TOKENS = 65536
PROMPT_SEED = 1


def parser() -> argparse.ArgumentParser:
    """Returns the command line."""
    top = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = top.add_subparsers(dest="command", required=True)
    run_ = commands.add_parser("run")
    run_.add_argument("--arms", type=words, required=True, help=f"of {', '.join(ARMS)}")
    add_visit_flags(run_)
    add_fleet_flags(run_, MAX_TOTAL_TOKENS)
    add_merge(commands, has_plot=True, has_incomplete=True)
    return top


def add_visit_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the cells to visit and how long."""
    parser.add_argument("--batches", type=numbers, default=(1, 4, 16, 32, 64, 128))
    parser.add_argument("--acceptances", type=words, default=DEFAULT_NAMES)
    parser.add_argument("--window-s", type=float, default=0.2, help="of one window [0.2]")
    parser.add_argument("--windows", type=int, default=3, help="of a visit, in a row [3]")
    # Alike in every arm: what comes before a window makes its contexts longer, and its rounds.
    parser.add_argument("--settle-s", type=float, default=0.5, help="before them, every arm [0.5]")
    parser.add_argument(
        "--settle-request-s",
        type=float,
        default=2.0,
        help="at least so long times the requests, so that one request shows its kind too [2.0]",
    )
    parser.add_argument("--at-once", action="store_true", help="start the host's arms together")


def run(args: argparse.Namespace) -> int:
    """Runs the arms over the cells; returns 1 if anything is missing."""
    deadline = time.monotonic() + args.deadline
    record, path = begin_run(args, "matrix")
    record["servers"], record["windows"] = [], []
    groups = [(name,) for name in args.arms] if args.alone else [args.arms]
    num_missing = 0
    with tempfile.TemporaryDirectory(prefix="matrix-bench-") as scratch:
        plan = fleet_plan(args, Path(scratch))
        for group in groups:
            arms = [ARMS[name] for name in group]
            with serving_fleet(arms, plan, deadline, args.at_once) as engines:
                num_missing += len(arms) - len(engines)
                num_missing += visit_cells(
                    engines,
                    plan,
                    args,
                    deadline,
                    record["windows"],
                    lambda: write_run(record, path),
                )
            keep_logs(arms, plan.folder, path.with_suffix(".log"))
            record["servers"] += [engine.measured for engine in engines]
            write_run(record, path)
    print(matrix_tables.window_table(record["windows"]))
    if num_missing:
        print(f"{num_missing} servers or visits are missing, see above")
    return 1 if num_missing else 0


def visit_cells(
    engines: Sequence[Engine],
    plan: Plan,
    args: argparse.Namespace,
    deadline: float,
    windows: list[dict[str, Any]],
    keep: Callable[[], None],
) -> int:
    """Visits every engine in every cell, in turn; returns how many visits are missing."""
    num_missing = 0
    prompts = prompt_ids(max(args.batches), plan.prompt_tokens, PROMPT_SEED)
    order = list(engines)
    for batch_size, acceptance in cells_of(args.batches, args.acceptances):
        limit = new_token_limit(
            args.max_total_tokens, args.context_length, plan.prompt_tokens, batch_size
        )
        settle_s = matrix_summary.settle_s_of(args, batch_size)
        for repeat in range(args.first_repeat, args.first_repeat + args.repeats):
            for engine in order:
                wanted = Visit(
                    acceptance, batch_size, repeat, settle_s, args.window_s * args.windows
                )
                if time.monotonic() > deadline:
                    num_missing += 1
                    continue
                try:
                    rounds, _ = visit_rounds(engine, wanted, prompts[:batch_size], limit)
                    measured = timed_windows(
                        rounds, batch_size, settle_s, args.window_s, args.windows
                    )
                except (RuntimeError, ValueError, OSError) as error:
                    print(f"{engine.arm.name} {batch_size} {acceptance}: {error}", flush=True)
                    num_missing += 1
                    continue
                windows += [
                    as_record(engine, wanted, place, window)
                    for place, window in enumerate(measured)
                ]
            order = order[1:] + order[:1]  # nobody is always the first after another
        keep()
    return num_missing


def as_record(engine: Engine, wanted: Visit, place: int, window: Window) -> dict[str, Any]:
    """Returns a window as it is kept in the file; ``place`` is its number in the visit."""
    return {
        "arm": engine.arm.name,
        "batch_size": wanted.batch_size,
        "acceptance": wanted.acceptance,
        "repeat": wanted.repeat,
        "place": place,
        "num_tokens": window.num_tokens,
        "seconds": round(window.seconds, 6),
        "rounds": window.rounds,
        "num_eager_rounds": window.num_eager_rounds,
    }


def merge(args: argparse.Namespace) -> int:
    """Writes the result file, and a plot if wanted, from run files."""
    result = matrix_summary.merged(read_runs(args.files), args.incomplete)
    write_result(result, args.result)
    print(matrix_tables.cell_table(result))
    print(matrix_tables.figure_table(result))
    if args.plot is not None:
        from benchmarks.plots import plot_matrix

        plot_matrix(result, args.plot)
    return 0


def main() -> int:
    """Runs one command."""
    return run_command(parser(), run, merge)


if __name__ == "__main__":
    sys.exit(main())
