"""With no flag but model, draft and algorithm: does a request wait where none would without drafts?

Open loop, as benchmarks/ramp.py: arrivals rise to a peak and fall again, and are the same ones in
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
    python3 -m benchmarks.defaults merge runs/defaults-*.json \\
        --result benchmarks/results/defaults-h200.json

On an H100 the starts alone: `run --arms ours,none --repeats 0`, merged likewise; with
--before COMMIT=FOLDER (benchmarks/arms.py) an earlier commit's, too, whose graphs must be ours.
`--trace-s 1` has every arm traced under load after its passes: where CPU or GPU waited (stalls.py).
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
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.arms import ARMS, OURS, Arm, add_before, earlier
from benchmarks.differences import differences, keys, measured_on
from benchmarks.figures import HEADER, Figure, Ratio, ratio_of_pairs
from benchmarks.fleet import PORT_STEP, keep_logs
from benchmarks.measure_plugin import RANGES_ENV
from benchmarks.models import CONTEXT_LENGTH
from benchmarks.ramp import arrivals, send_arrivals, send_ramp
from benchmarks.ramp_summary import as_pass, quantile, tokens_per_s
from benchmarks.run_files import add_merge, begin_run, merge_lists, run_command, write_run
from benchmarks.server import Server
from benchmarks.session import serving_arm
from benchmarks.settings import (
    CPU_COMMON,
    PYTHON_TREE,
    add_fleet_flags,
    numbers,
    plan_with,
    words,
)
from benchmarks.stalls import stalls, trace_of
from benchmarks.tables import table

GPU_FORCED = ("--skip-tokenizer-init", "--random-seed", "1")
DEFAULT_ARMS = ("none", "builtin", "ours")
COMPARED = ("none", "ours")  # pass by pass
ARM_OF = {"none": ARMS["none"], "builtin": ARMS["builtin"], "ours": Arm("ours", OURS)}
PEAKS, CHANCES = (40, 120), (0.3, 0.7)
LOADS = tuple(itertools.product(PEAKS, CHANCES))
TURN_TIMEOUT_S = 400.0  # until the arms beside one are ready for the next load
LOW = 2.0  # requests a second at both ends
WARM_S, WARM_RATE = 3.0, 20.0
PROMPTS_APART = 100_000  # so that no load finds another's prompts in the prefix cache
# Limits by peak: tokens/s over none's, at least; the first token's median over so many times
# none's and one of its rounds, at most; the time per token over none's, at most.
LEAST_TOKENS = {40: 0.99, 120: 0.98}
MOST_FIRST = 1.5
MOST_PER_TOKEN = {40: 1.0}
MIN_PASSES = 3
# Seconds and GB from the attention backends to the last graph, without the graphs of prefills.
RUNNING = ("max_total_tokens", "max_running_requests")  # the second follows from the first
START_FIGURES = ("arm", *RUNNING, "ready_s", "tiers_s", "tiers_gb")
LEAST_GRAPHS = 256  # requests that decode with graphs
FIGURES = {"tokens_per_s", "first_token_ms_p50", "first_token_ms_p99", "ms_per_token_p50"}
PASS_KEYS = {"arm", "peak", "acceptance", "repeat", "largest_batch", "requests", "spent", *FIGURES}

Raw = Mapping[str, Any]


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
        "--trace-s", type=float, default=0.0, help="then so long a trace at the first peak [0]"
    )
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
    record |= {"passes": [], "starts": [], "stalls": {}}
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
    for arm, rows in record["stalls"].items():
        print(table((f"{arm}, traced", "phase", "call", "operation", "times", "ms"), rows[:12]))
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
    if args.trace_s:
        environment[RANGES_ENV] = "1"
    if seat.gpu is not None:
        environment["CUDA_VISIBLE_DEVICES"] = seat.gpu
    if seat.cores is not None:
        os.sched_setaffinity(0, seat.cores)  # of this thread, so of the server that it starts
    plan = replace(plan, environment=environment, port=args.port + PORT_STEP * seat.number)
    with serving_arm(arm, plan) as (server, measured):
        send_ramp(server, arrivals(WARM_S, WARM_RATE, WARM_RATE, 0, args.longest))
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
        if args.trace_s:
            record["stalls"][arm.name] = stalls_under_load(server, args, folder / "trace")
    record["starts"].append(measured)


def stalls_under_load(server: Server, args: argparse.Namespace, folder: Path) -> list[list[Any]]:
    """Returns where the CPU or the GPU waited, at steady arrivals of requests that often hold."""
    rate, before_s = args.peaks[0], args.seconds / 2
    sent = arrivals(before_s + args.trace_s, rate, rate, 0, args.longest, CHANCES[-1:])
    with ThreadPoolExecutor(1) as client:
        answered = client.submit(send_arrivals, server, sent, PROMPTS_APART - 1)
        time.sleep(before_s)
        events = trace_of(server.url, folder, args.trace_s)
        answered.result()
    return stalls(events)


def with_figures(one: Raw) -> dict[str, Any]:
    """Returns a pass with its figures computed from its requests."""
    rows = one["requests"]
    waits = [first - arrived for arrived, first, _, _ in rows]
    per_token = [(last - first) / (number - 1) for _, first, last, number in rows]
    return {
        **{key: value for key, value in one.items() if key != "served"},
        "tokens_per_s": round(tokens_per_s(one), 1),
        "first_token_ms_p50": quantile(waits, 0.50),
        "first_token_ms_p99": quantile(waits, 0.99),
        "ms_per_token_p50": quantile(per_token, 0.50),
    }


def time_spent(rounds: Sequence[Sequence[Any]]) -> dict[str, list[float]]:
    """Returns by kind of batch how many there were and how many ms they took, one after the other.

    A kind is a prefill, or a decode by its drafts per request and with a graph or without. Beside
    these a pass has what its scheduler took on the CPU (measure_plugin.py:Phases).
    """
    found: dict[str, list[float]] = {}
    for before, (now_ns, size, _, width, _, has_graph) in itertools.pairwise(rounds):
        kind = f"{(width or 1) - 1} drafts, {'graph' if has_graph else 'eager'}"
        spent = found.setdefault(kind if size else "prefill", [0, 0.0])
        spent[0] += 1
        spent[1] = round(spent[1] + (now_ns - before[0]) / 1e6, 3)
    return found


def build_result(origin: Raw, starts: Sequence[Raw], passes: Sequence[Raw]) -> dict[str, Any]:
    """Returns the result file."""
    ordered = sorted(with_partner(passes), key=lambda each: (*load_of(each), place_of(each)))
    return {
        "provenance": dict(origin),
        "starts": [as_start(each) for each in sorted(starts, key=place_of)],
        "passes": [with_figures(each) for each in ordered],
    }


def with_partner(passes: Sequence[Raw]) -> list[Raw]:
    """Returns the passes without those that one of the compared arms did not come to serve."""
    served = {(each["arm"], *load_of(each)) for each in passes}
    return [each for each in passes if all((arm, *load_of(each)) in served for arm in COMPARED)]


def load_of(one: Raw) -> tuple[Any, ...]:
    """Returns what a pass was sent: peak, acceptance, and which arrivals."""
    return one["peak"], one["acceptance"], one["repeat"]


def place_of(one: Raw) -> int:
    """Returns where the arm of a pass or start comes; an earlier commit's last."""
    names = (*DEFAULT_ARMS, one["arm"])
    return names.index(one["arm"])


def as_start(measured: Raw) -> dict[str, Any]:
    """Returns what is kept of a server's start; tiers are SGLang's own in other arms than ours."""
    plugin = measured["plugin"] or {}
    return {
        **{name: measured[name] for name in START_FIGURES},
        "tiers": plugin.get("tiers", []),
        "skipped_tiers": plugin.get("skipped_tiers", {}),
    }


def figures(result: Raw) -> list[Figure]:
    """Returns what is claimed of every load."""
    found = []
    for peak, chance in LOADS:
        by_arm = {
            arm: [
                each
                for each in result["passes"]
                if (each["arm"], each["peak"], each["acceptance"]) == (arm, peak, chance)
            ]
            for arm in COMPARED
        }
        if by_arm["ours"] and len(by_arm["ours"]) == len(by_arm["none"]):
            found += figures_of_load(f"to {peak} a second at {chance}", peak, **by_arm)
    return found


def figures_of_load(load: str, peak: int, ours: Sequence[Raw], none: Sequence[Raw]) -> list[Figure]:
    """Returns the claims of one load; a round of none's is its median time per token."""

    def over_none(name: str) -> Ratio:
        return ratio_of_pairs(*([each[name] for each in arm] for arm in (ours, none)))

    most = [MOST_FIRST * each["first_token_ms_p50"] + each["ms_per_token_p50"] for each in none]
    first = ratio_of_pairs([each["first_token_ms_p50"] for each in ours], most)
    name = f"{load}: first token over {MOST_FIRST:g} x none's and a round"
    least, per_token = LEAST_TOKENS[peak], MOST_PER_TOKEN.get(peak)
    return [
        Figure(f"{load}: tokens/s over none's", over_none("tokens_per_s"), least),
        Figure(name, first, 1.0, is_upper=True),
        *(
            [Figure(f"{load}: time per token", over_none("ms_per_token_p50"), per_token, True)]
            if per_token is not None
            else []
        ),
    ]


def check_defaults(result: Raw, arms: Sequence[str] = DEFAULT_ARMS) -> list[str]:
    """Returns what is wrong with the shape or the figures of the result."""
    return check_starts(result) or check_passes(result, arms)


def check_passes(result: Raw, arms: Sequence[str] = DEFAULT_ARMS) -> list[str]:
    """Returns what is wrong with the passes: their number, their arrivals, their figures."""
    problems = measured_on(result["provenance"])
    sent: dict[tuple[Any, ...], dict[str, Any]] = {}
    for number, each in enumerate(result["passes"]):
        problems += keys(f"passes.{number}", each, PASS_KEYS)
        if not problems:
            which = load_of(each)
            of_load = sent.setdefault(which, {})
            if each["arm"] in of_load or which[:2] not in LOADS:
                problems.append(f"passes.{number}: one too many of {each['arm']}, {which}")
            of_load[each["arm"]] = [[row[0], row[3]] for row in each["requests"]]
    if problems:
        return problems
    for load, by_arm in sent.items():
        problems += [f"{load}: no pass of {arm}" for arm in set(COMPARED) - by_arm.keys()]
        if len({str(requests) for requests in by_arm.values()}) > 1:
            problems.append(f"{load}: the arms got other requests")
    for load, arm in itertools.product(LOADS, arms):
        num = sum(key[:2] == load and arm in by_arm for key, by_arm in sent.items())
        if num < MIN_PASSES:
            problems.append(f"{load}: {num} passes of {arm}, at least {MIN_PASSES} are needed")
    rebuilt = build_result(result["provenance"], (), result["passes"])["passes"]
    return problems + differences(result["passes"], rebuilt, "passes")


def check_starts(result: Raw) -> list[str]:
    """Returns what is wrong with the starts: every tier, enough graphs, the cap of none."""
    problems = keys("file", result, {"provenance", "starts", "passes"})
    if problems:
        return problems
    for number, each in enumerate(result["starts"]):
        where = f"starts.{number}"
        problems += keys(where, each, {*START_FIGURES, "tiers", "skipped_tiers"})
        if problems:
            return problems
        wanted = cap_without_speculation(each["max_total_tokens"])
        if each["arm"] in COMPARED and each["max_running_requests"] != wanted:
            problems.append(
                f"{where}: {each['max_running_requests']} running requests, "
                f"without speculation its KV pool lets {wanted} run"
            )
        if each["arm"] == "ours":
            sizes = [size for tier in each["tiers"] for size in tier["graph_batch_sizes"]]
            problems += [f"{where}: no tier {tier}" for tier in each["skipped_tiers"]]
            if max(sizes, default=0) < LEAST_GRAPHS:
                problems.append(f"{where}: graphs up to {max(sizes, default=0)} requests")
    graphs = {each["arm"]: graphs_of(each) for each in result["starts"] if each["tiers"]}
    problems += [
        f"{arm}: other graphs than ours: {there}"
        for arm, there in graphs.items()
        if there != graphs.get("ours")
    ]
    absent = set(COMPARED) - {each["arm"] for each in result["starts"]}
    return problems + [f"starts: none of {arm}" for arm in sorted(absent)]


def graphs_of(start: Raw) -> list[tuple[Any, ...]]:
    """Returns the shape of every tier with the batch sizes that decode with its graphs."""
    return [
        (*(tier.get(name) for name in ("num_steps", "topk")), tuple(tier["graph_batch_sizes"]))
        for tier in start["tiers"]
    ]


def cap_without_speculation(pool_tokens: int) -> int:
    """Returns the running requests that SGLang grants a KV pool if no user names them.

    A draft takes of the pool, so the arms' caps differ by as much (sglang 0.5.21
    mem_cache/kv_cache_configurator.py:resolve_max_num_reqs).
    """
    estimated = int(pool_tokens / CONTEXT_LENGTH * 512)
    return min(max(min(estimated, 4096), 2048), pool_tokens // 2)


def pass_table(passes: Sequence[Raw]) -> str:
    """Returns the figures of every pass."""
    shown = ("arm", "peak", "acceptance", "repeat", *sorted(FIGURES), "largest_batch")
    return table(shown, [[each[name] for name in shown] for each in passes])


def start_table(result: Raw) -> str:
    """Returns the figures of every start."""
    rows = [
        [*(each[name] for name in START_FIGURES), len(each["tiers"])] for each in result["starts"]
    ]
    return table((*START_FIGURES, "tiers"), rows)


def figure_table(result: Raw) -> str:
    """Returns every claim with its verdict, and the starts and passes behind it."""
    claims = table(HEADER, [each.row() for each in figures(result)])
    return "\n".join((claims, start_table(result), pass_table(result["passes"])))


def merge(args: argparse.Namespace) -> int:
    """Writes the result file from run files."""
    return merge_lists(args, ["starts", "passes"], build_result, figure_table)


def main() -> int:
    """Runs one command."""
    return run_command(parser(), run, merge)


if __name__ == "__main__":
    sys.exit(main())
