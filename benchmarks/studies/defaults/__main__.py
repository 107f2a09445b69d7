"""With no flag but model, draft and algorithm: does a request wait where none would without drafts?

Open loop, as studies/ramp: arrivals rise to a peak and fall again, and are the same ones in
every arm. A load is a peak and one chance of acceptance for all requests. Every flag is at
SGLang's default in every arm: attention, context length, graphs, running requests, prefix cache.
Llama-8B shapes with dummy weights, injected acceptance; what those force (`GPU_FORCED`) is all.

The CPU bounds small batches, and a shared machine's CPUs are faster in one minute than in the next
(a prefill took 10 to 17 ms within three passes of one arm). So compare arms that are served at the
same time: on a machine with two H200s ours and none run beside each other, on half of the cores
each, every load is sent to both at once, and then they swap GPUs. From the project's root, a
command after the other; each takes about 540 s:

    OUT=folder SHA=commit benchmarks/gpus.sh 0,1=defaults-pair
    OUT=folder SHA=commit benchmarks/gpus.sh 0=defaults-builtin
    python3 -m benchmarks.studies.defaults merge runs/defaults-*.json \\
        --result benchmarks/results/current/defaults-h200.json.xz

On an H100 the starts alone: `run --arms ours,none --repeats 0`, merged likewise; with
--before COMMIT=FOLDER (benchmarks/lab/arms.py) an earlier commit's, too, whose graphs must be ours.
"""

import argparse
import itertools
import os
import resource
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.lab.arms import ARMS, OURS, Arm, add_before, earlier
from benchmarks.lab.arrivals import arrivals, send_arrivals
from benchmarks.lab.fleet import PORT_STEP, keep_logs
from benchmarks.lab.run_files import add_merge, begin_run, merge_lists, run_command, write_run
from benchmarks.lab.session import serving_arm
from benchmarks.lab.settings import (
    CPU_COMMON,
    PYTHON_TREE,
    add_fleet_flags,
    numbers,
    plan_with,
    words,
)
from benchmarks.studies.defaults.summary import (
    CHANCES,
    DEFAULT_ARMS,
    LOADS,
    PEAKS,
    build_result,
    figure_table,
    pass_table,
    time_spent,
    with_figures,
)
from benchmarks.studies.ramp.summary import as_pass

GPU_FORCED = ("--skip-tokenizer-init", "--random-seed", "1")
ARM_OF = {"none": ARMS["none"], "builtin": ARMS["builtin"], "ours": Arm("ours", OURS)}
TURN_TIMEOUT_S = 400.0  # until the arms beside one are ready for the next load
LOW = 2.0  # requests a second at both ends
WARM_S, WARM_RATE = 3.0, 20.0
PROMPTS_APART = 100_000  # so that no load finds another's prompts in the prefix cache


def parser() -> argparse.ArgumentParser:
    """Returns the command line."""
    top = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = top.add_subparsers(dest="command", required=True)
    run_ = commands.add_parser("run")
    run_.add_argument("--arms", type=words, default=DEFAULT_ARMS)
    run_.add_argument("--peaks", type=numbers, default=PEAKS, help="requests a second [40,120]")
    run_.add_argument("--seconds", type=float, default=10.0, help="of arrivals [10]")
    run_.add_argument("--longest", type=float, default=1.0, help="scales the lengths [1]")
    run_.add_argument(
        "--beside", action="store_true", help="an arm on each of CUDA_VISIBLE_DEVICES, then swapped"
    )
    add_fleet_flags(run_, max_total_tokens=0)
    add_before(run_)
    run_.set_defaults(context_length=0, repeats=3)
    add_merge(commands)
    return top


class Seat(NamedTuple):
    """Where one of several arms is served, and which passes it serves there."""

    arm: Arm
    number: int  # among those that are served at once
    gpu: str | None = None  # None: the machine's own choice
    cores: frozenset[int] | None = None
    first_repeat: int = 1


def turns(args: argparse.Namespace) -> list[list[Seat]]:
    """Returns which arms are served at once: every arm alone, or all on every GPU in turn.

    Raises:
        ValueError: There is not one GPU an arm.
    """
    arms = [*(ARM_OF[name] for name in args.arms), *earlier(ARM_OF["ours"], args.before)]
    if not args.beside:
        return [[Seat(arm, 0, first_repeat=args.first_repeat)] for arm in arms]
    gpus = words(os.environ.get("CUDA_VISIBLE_DEVICES", ""))
    if len(gpus) != len(arms):
        raise ValueError(f"CUDA_VISIBLE_DEVICES names {gpus}; {len(arms)} arms need one GPU each.")
    cores = sorted(os.sched_getaffinity(0))
    share = len(cores) // len(gpus)
    places = [
        (gpu, frozenset(cores[share * idx : share * (idx + 1)])) for idx, gpu in enumerate(gpus)
    ]
    return [
        [
            Seat(arm, number, *place, args.first_repeat + turn * args.repeats)
            for number, (arm, place) in enumerate(
                zip(arms, places[turn:] + places[:turn], strict=True)
            )
        ]
        for turn in range(len(gpus))
    ]


def run(args: argparse.Namespace) -> int:
    """Serves every load with arm after arm, or with all at once; returns 1 if one is missing."""
    deadline = time.monotonic() + args.deadline
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    record, path = begin_run(args, "defaults")
    record |= {"passes": [], "starts": []}
    seats = turns(args)
    with tempfile.TemporaryDirectory(prefix="defaults-bench-") as scratch:
        for number, turn in enumerate(seats):
            if time.monotonic() > deadline:
                print(f"{', '.join(seat.arm.name for seat in turn)}: left out at the deadline")
                continue
            folder = Path(scratch) / str(number)
            serve_turn(turn, args, folder, record, path)
            keep_logs([seat.arm for seat in turn], folder, path.with_suffix(".log"))
            write_run(record, path)
    print(pass_table(record["passes"]))
    wanted = sum(map(len, seats)) * args.repeats * len(args.peaks) * len(CHANCES)
    return 1 if len(record["passes"]) < wanted else 0


def serve_turn(
    turn: Sequence[Seat],
    args: argparse.Namespace,
    folder: Path,
    record: dict[str, Any],
    path: Path,
) -> None:
    """Serves the arms of a turn beside each other; every load reaches all of them at once."""
    together = threading.Barrier(len(turn), timeout=TURN_TIMEOUT_S)

    def take_seat(seat: Seat) -> None:
        try:
            serve(seat, args, folder / seat.arm.name, record, path, together)
        except (RuntimeError, OSError):  # later turns are still worth running
            traceback.print_exc(file=sys.stdout)
        finally:
            together.abort()  # passes of an arm left alone would not be those of a pair

    with ThreadPoolExecutor(len(turn)) as threads:
        list(threads.map(take_seat, turn))


def serve(
    seat: Seat,
    args: argparse.Namespace,
    folder: Path,
    record: dict[str, Any],
    path: Path,
    together: threading.Barrier,
) -> None:
    """Starts an arm's server once, sends it every load as often as asked, notes what came."""
    arm = seat.arm
    plan = plan_with(args, folder, CPU_COMMON if args.dry_cpu else GPU_FORCED)
    environment = {**plan.environment, **PYTHON_TREE}
    if seat.gpu is not None:
        environment["CUDA_VISIBLE_DEVICES"] = seat.gpu
    if seat.cores is not None:
        os.sched_setaffinity(0, seat.cores)  # of this thread, so of the server that it starts
    plan = replace(plan, environment=environment, port=args.port + PORT_STEP * seat.number)
    with serving_arm(arm, plan) as (server, measured):
        send_arrivals(server, arrivals(WARM_S, WARM_RATE, WARM_RATE, 0, args.longest))
        for repeat in range(seat.first_repeat, seat.first_repeat + args.repeats):
            for number, (peak, chance) in enumerate(itertools.product(args.peaks, CHANCES)):
                sent = arrivals(args.seconds, LOW, peak, repeat, args.longest, (chance,))
                seed = PROMPTS_APART * (repeat * len(LOADS) + number)
                together.wait()
                start_ns, answer = send_arrivals(server, sent, seed)
                made = as_pass(sent, start_ns, answer["requests"], answer["rounds"])
                load = {"arm": arm.name, "peak": peak, "acceptance": chance, "repeat": repeat}
                spent = {"spent": time_spent(answer["rounds"]) | answer["phases"]}
                record["passes"].append(with_figures(load | made | spent))
                if not seat.number:
                    write_run(record, path)
    record["starts"].append(measured)


def merge(args: argparse.Namespace) -> int:
    """Writes the result file from run files."""
    return merge_lists(args, ["starts", "passes"], build_result, figure_table)


def main() -> int:
    """Runs one command."""
    return run_command(parser(), run, merge)


if __name__ == "__main__":
    sys.exit(main())
