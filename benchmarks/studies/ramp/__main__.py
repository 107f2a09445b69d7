"""Arrivals that rise past saturation and fall again: what do requests feel, what is served?

Open loop: requests arrive at drawn times whatever the server does, in every arm the same ones, of
different lengths and acceptance. The host's defaults in every arm (its own list of captured batch
sizes, its own limit of running requests, which is lower with speculation), Llama-8B shapes.

On the machine with the H200, from the project's root (one server at a time, about 400 s):

    python3 -m benchmarks.studies.ramp run --git-sha SHA --out $OUT --tag 1
    python3 -m benchmarks.studies.ramp merge runs/ramp-*.json \\
        --result benchmarks/results/current/ramp-h200-fa3.json.xz --plot docs/images/ramp-h200.svg

With a real pair and its prompts (studies/real_text) the text is real, and its acceptance:

    python3 -m benchmarks.studies.ramp run --target T --draft H --prompts P --context-length 0 \\
        --git-sha SHA --out $OUT --tag text
"""

import argparse
import random
import resource
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.lab.arms import ARMS
from benchmarks.lab.arrivals import Arrival, arrivals, send_arrivals
from benchmarks.lab.fleet import keep_logs
from benchmarks.lab.models import read_prompts
from benchmarks.lab.run_files import (
    add_merge,
    begin_run,
    publish,
    read_runs,
    run_command,
    write_run,
)
from benchmarks.lab.server import Server
from benchmarks.lab.session import serving_arm
from benchmarks.lab.settings import CPU_COMMON, PYTHON_TREE, add_fleet_flags, plan_with, words
from benchmarks.studies.ramp import summary as ramp_summary

# The only choices are those that the machine and the missing weights force.
GPU_DEFAULTS = ("--skip-tokenizer-init", "--random-seed", "1")


def parser() -> argparse.ArgumentParser:
    """Returns the command line."""
    top = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = top.add_subparsers(dest="command", required=True)
    run_ = commands.add_parser("run")
    run_.add_argument("--arms", type=words, default=ramp_summary.ARMS)
    run_.add_argument("--seconds", type=float, default=60.0, help="of arrivals [60]")
    run_.add_argument("--low", type=float, default=2.0, help="requests a second [2]")
    run_.add_argument("--peak", type=float, default=120.0, help="requests a second [120]")
    run_.add_argument("--longest", type=float, default=1.0, help="scales the lengths [1]")
    run_.add_argument("--prompts", type=Path, help="token ids by domain, JSON: real text")
    add_fleet_flags(run_, max_total_tokens=0)
    add_merge(commands, has_plot=True)
    return top


def run(args: argparse.Namespace) -> int:
    """Serves the ramp with one arm after the other; returns 1 if one is missing."""
    deadline = time.monotonic() + args.deadline
    # Every waiting request holds a connection; past saturation there are thousands.
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    record, path = begin_run(args, "ramp")
    record["passes"] = passes = []
    with tempfile.TemporaryDirectory(prefix="ramp-bench-") as scratch:
        for name in args.arms:
            if time.monotonic() > deadline:
                print(f"{name}: left out at the deadline")
                continue
            common = CPU_COMMON if args.dry_cpu else GPU_DEFAULTS
            plan = plan_with(args, Path(scratch) / name, common)
            seed = None if args.prompts else plan.inject_seed
            environment = {**plan.environment, **PYTHON_TREE}
            plan = replace(plan, environment=environment, inject_seed=seed)
            try:
                with serving_arm(ARMS[name], plan) as (server, measured):
                    warm = arrivals(2.0, args.peak / 8, args.peak / 8, 0, args.longest)
                    send_ramp(server, warm, args)
                    for repeat in range(args.first_repeat, args.first_repeat + args.repeats):
                        sent = arrivals(args.seconds, args.low, args.peak, repeat, args.longest)
                        served = send_ramp(server, sent, args)
                        passes.append({"arm": name, "repeat": repeat, **served})
                passes[-1]["server_argv"] = measured["server_argv"]
                if plugin := measured["plugin"]:
                    passes[-1]["tiers"] = {
                        name: plugin[name] for name in ("rounds", "skipped_tiers")
                    }
            except (RuntimeError, OSError):  # the other arms are still worth running
                traceback.print_exc(file=sys.stdout)
            keep_logs([ARMS[name]], Path(scratch), path.with_suffix(".log"))
            write_run(record, path)
    print(ramp_summary.pass_table(passes))
    return 1 if len(passes) < len(args.arms) * args.repeats else 0


def send_ramp(server: Server, sent: Sequence[Arrival], args: argparse.Namespace) -> dict[str, Any]:
    """Sends every request at its time; returns times per request and tokens per moment."""
    texts = texts_of(args.prompts, len(sent)) if args.prompts else None
    start_ns, answer = send_arrivals(server, sent, texts=texts)
    measured = answer["requests"], answer["rounds"]
    return ramp_summary.as_pass(sent, start_ns, *measured, is_real=texts is not None)


def texts_of(path: Path, number: int) -> list[list[int]]:
    """Returns prompts of all domains in a drawn order, the same for every arm."""
    every = [prompt for domain in read_prompts(path).values() for prompt in domain]
    return random.Random(number).choices(every, k=number)


def merge(args: argparse.Namespace) -> int:
    """Writes the result file, and a plot if wanted, from run files."""
    result = ramp_summary.merged(read_runs(args.files))
    plot = "benchmarks.studies.ramp.plot:plot_ramp"
    return publish(args, result, ramp_summary.figure_table, plot=plot)


def main() -> int:
    """Runs one command."""
    return run_command(parser(), run, merge)


if __name__ == "__main__":
    sys.exit(main())
