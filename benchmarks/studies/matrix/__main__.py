"""Every arm at every batch size and acceptance, windows of the arms interleaved.

On a machine with two H200s, from the project's root (SHA: the commit; four servers side by side fit
a GPU's memory, eight do not; about 480 s a command, 150 of them to start). The second command has
other draws, and the GPUs swapped:

    MATRIX="run --at-once --context-length 131072 --windows 6 --max-total-tokens 81920"
    A=builtin,goodput,static-3,none B=ema,static-7,static-5,static-1
    CUDA_VISIBLE_DEVICES=0 python3 -m benchmarks.studies.matrix $MATRIX --arms $A --git-sha SHA \\
        --out $OUT --tag a1 &
    CUDA_VISIBLE_DEVICES=1 python3 -m benchmarks.studies.matrix $MATRIX --arms $B --git-sha SHA \\
        --out $OUT --tag b1 --port 32000 &
    # both again, GPUs swapped, with --first-repeat 2, tags a2 and b2; then anywhere:
    python3 -m benchmarks.studies.matrix merge runs/matrix-*.json \\
        --result benchmarks/results/current/matrix-h200-fa3.json.xz \\
        --plot docs/images/matrix-h200.svg

A command may take some of the cells (`--batches 1,4,16`, `--acceptances 0.7,mixed`); after
`--deadline` seconds it visits none. `--alone` serves one arm at a time. A first start on a bare
machine compiles kernels for a minute: warm up with `--arms none,static-1 --batches 1 --acceptances
0.5`, whose record is not kept. `--at-once` saves about 80 s of the starts where memory is plenty:
time for a second visit to every cell (`--repeats 2 --windows 2`). `--record` keeps every round of
`goodput` and its kin beside the record, as traces (docs/simulator.md). `--before
COMMIT=FOLDER` serves an earlier commit's `goodput` beside ours; where few arms are run, the figures
are ours over that one's:

    python3 -m benchmarks.studies.matrix $MATRIX --arms goodput --before COMMIT=FOLDER \\
        --batches 16,64 --acceptances 0.4,0.6,0.8,mixed --repeats 4 --git-sha SHA --out $OUT

Each command writes $OUT/matrix-TAG.json after every cell, so a time limit loses one cell at most,
and at the end the servers' last lines beside it. docs/benchmarks.md says how to read the result.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.lab.arms import ARMS, Arm, earlier, recording
from benchmarks.lab.fleet import (
    keep_logs,
    serving_fleet,
)
from benchmarks.lab.run_files import (
    begin_run,
    publish,
    read_runs,
    run_command,
    write_run,
)
from benchmarks.lab.settings import fleet_plan
from benchmarks.lab.visits import visit_cells
from benchmarks.studies.matrix import summary as matrix_summary
from benchmarks.studies.matrix import tables as matrix_tables
from benchmarks.studies.matrix.flags import parser

REPORTED = "goodput"


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
            arms = [arm_of(name, path if args.record else None) for name in group]
            if REPORTED in group:
                arms += earlier(ARMS[REPORTED], args.before)
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


def arm_of(name: str, path: Path | None) -> Arm:
    """Returns an arm; those of the policy goodput write their rounds beside ``path``, if given."""
    arm = ARMS[name]
    if path is None or not name.startswith(REPORTED):
        return arm
    return recording(arm, path.with_suffix(f".{name}.trace"))


def merge(args: argparse.Namespace) -> int:
    """Writes the result file, and a plot if wanted, from run files."""
    result = matrix_summary.merged(read_runs(args.files), args.incomplete)
    shows = (matrix_tables.cell_table, matrix_tables.figure_table)
    return publish(args, result, *shows, plot="benchmarks.studies.matrix.plot:plot_matrix")


def main() -> int:
    """Runs one command."""
    return run_command(parser(), run, merge)


if __name__ == "__main__":
    sys.exit(main())
