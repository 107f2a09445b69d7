"""What a round of ours launches beyond the host's own of the same depth, call by call.

Zero steps beside no speculation, other depths beside static EAGLE: every server is traced for a
moment under steady load, ours kept to that depth, and its calls that ran something on the GPU are
counted a round. A CUDA graph is one call. Dummy weights, injected acceptance.

On a machine with a GPU, from the project's root (four servers need an H200, two an H100):

    python3 -m benchmarks.studies.launches run --git-sha SHA --out $OUT --steps 0,3
    python3 -m benchmarks.studies.launches merge runs/launches-*.json \\
        --result benchmarks/results/current/launches-h200.json.xz
"""

import argparse
import itertools
import statistics
import sys
import tempfile
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.inject.acceptance import request_ids
from benchmarks.inject.engine import SINGLE, STEPS
from benchmarks.inject.measure_plugin import RANGES_ENV
from benchmarks.lab.arms import ARMS, add_before, earlier, is_earlier
from benchmarks.lab.fleet import Engine, keep_logs, new_token_limit, running_batch, serving_fleet
from benchmarks.lab.load import SKIPPED_ROUNDS, full_run
from benchmarks.lab.models import prompt_ids
from benchmarks.lab.run_files import add_merge, begin_run, merge_lists, run_command, write_run
from benchmarks.lab.session import INJECTED
from benchmarks.lab.settings import PYTHON_TREE, add_fleet_flags, fleet_plan, numbers
from benchmarks.lab.visits import MAX_TOTAL_TOKENS, PROMPT_SEED
from benchmarks.stats.differences import GPU, differences, keys, measured_on
from benchmarks.stats.figures import HEADER, Figure, exact
from benchmarks.stats.tables import table
from benchmarks.studies.defaults.stalls import (
    CALLS,
    ON_GPU,
    Event,
    Span,
    Spans,
    is_phase,
    spans,
    trace_of,
)

OURS = "goodput"
ACCEPTANCE = "0.7"
MOST_MORE = 2.0  # launches of a zero-step round beyond none's: from the issue that asked for it
LAUNCH = "launch decode"  # the scheduler's phase, one a round
GRAPH = "CUDA graph"
SHOWN_CHARS = 70  # of a kernel's name
MOST_SHOWN = 16
MOST_GAPS = 40

Raw = Mapping[str, Any]


class Traced(NamedTuple):
    """What a server launched in steady rounds.

    rows: phase, PyTorch's operation, what ran; times and us on the GPU, both a round.
    gaps: what ran on the GPU before it had nothing to run, and after; times and us a round. The
        longest in sum alone.
    """

    num_rounds: int
    usual: float  # launches of the median round
    rows: list[tuple[str, str, str, float, float]]
    idle_us: float  # of the GPU, a round
    gaps: list[tuple[str, str, float, float]]


def parser() -> argparse.ArgumentParser:
    """Returns the command line."""
    top = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = top.add_subparsers(dest="command", required=True)
    run_ = commands.add_parser("run")
    run_.add_argument("--steps", type=numbers, default=(0, 3), help="depths to compare [0,3]")
    run_.add_argument("--batches", type=numbers, default=(1, 16, 128))
    run_.add_argument("--settle-s", type=float, default=1.0, help="before a trace [1.0]")
    run_.add_argument("--trace-s", type=float, default=0.4)
    add_fleet_flags(run_, MAX_TOTAL_TOKENS)
    add_before(run_)
    add_merge(commands)
    return top


def run(args: argparse.Namespace) -> int:
    """Traces every arm at every depth and batch size; returns 1 if a trace is missing."""
    deadline = time.monotonic() + args.deadline
    record, path = begin_run(args, "launches")
    record["traces"] = []
    named = {**PYTHON_TREE, RANGES_ENV: "1"}
    arms = [
        replace(arm, environment={**named, **(arm.environment or {})})
        for arm in (
            *(ARMS[host_arm(steps)] for steps in args.steps),
            ARMS[OURS],
            *earlier(ARMS[OURS], args.before),
        )
    ]
    num_missing = 0
    with tempfile.TemporaryDirectory(prefix="launches-bench-") as scratch:
        plan = fleet_plan(args, Path(scratch))
        prompts = prompt_ids(max(args.batches), plan.prompt_tokens, PROMPT_SEED)
        with serving_fleet(arms, plan, deadline, at_once=True) as engines:
            for steps, size in itertools.product(args.steps, args.batches):
                for engine in engines:
                    if not engine.arm.is_ours and engine.arm.name != host_arm(steps):
                        continue
                    try:
                        traced = trace(engine, steps, prompts[:size], args, Path(scratch), deadline)
                    except (RuntimeError, ValueError, OSError) as error:
                        print(f"{engine.arm.name} {steps} {size}: {error}", flush=True)
                        num_missing += 1
                        continue
                    place = {"arm": engine.arm.name, "steps": steps, "batch": size}
                    record["traces"].append({**place, **traced._asdict()})
                write_run(record, path)
        keep_logs(arms, Path(scratch), path.with_suffix(".log"))
    result = build_result(record["provenance"], record["traces"])
    print(figure_table(result))
    print(more_tables(result))
    return int(num_missing > 0)


def host_arm(steps: int) -> str:
    """Returns the name of the host's arm of a depth."""
    return f"static-{steps}" if steps else "none"


def trace(
    engine: Engine,
    steps: int,
    prompts: Sequence[Sequence[int]],
    args: argparse.Namespace,
    folder: Path,
    deadline: float,
) -> Traced:
    """Returns what an engine launches in rounds of a depth.

    Raises:
        RuntimeError: No trace came, rounds of another depth ran, or the deadline is over.
        ValueError: It has no rounds.
    """
    if time.monotonic() > deadline:
        raise RuntimeError("left out at the deadline")
    size = len(prompts)
    policy = f"{STEPS}{steps}" if steps else SINGLE
    engine.server.command(accept_length=INJECTED, policy=policy)
    limit = new_token_limit(args.max_total_tokens, args.context_length, args.prompt_tokens, size)
    ids = request_ids(ACCEPTANCE, size, 1)
    with running_batch(engine.server.url, prompts, limit, ids):
        time.sleep(args.settle_s)
        name = f"trace-{engine.arm.name}-{steps}-{size}"
        events = trace_of(engine.server.url, folder / name, args.trace_s)
    ran = full_run(engine.server.rounds(), size)[SKIPPED_ROUNDS:]
    wanted = steps + 1 if engine.arm.speculative else None
    if {each.num_draft_tokens for each in ran} != {wanted}:
        raise RuntimeError("rounds of another depth ran, or too few")
    if not all(each.replayed_graph for each in ran) and not args.dry_cpu:
        raise RuntimeError("rounds ran without graphs")
    return launches(events)


def launches(events: Sequence[Event]) -> Traced:
    """Returns what the scheduler's calls ran on the GPU, a round.

    Raises:
        ValueError: The trace has fewer than two decode rounds, or nothing ran on a GPU.
    """
    complete = [each for each in events if each.get("ph") == "X"]
    thread = next((each["tid"] for each in complete if is_phase(each)), None)
    here = [each for each in complete if each["tid"] == thread]
    phases = list(spans(each for each in here if is_phase(each)))
    starts = sorted(span.start for span in phases if span.name == LAUNCH)
    if len(starts) < 2:
        raise ValueError(f"{len(starts)} decode rounds in the trace; trace longer.")
    ran: dict[int, list[Span]] = {}
    for each in complete:
        if each.get("cat") in ON_GPU:
            ran.setdefault(each["args"]["correlation"], []).extend(spans(iter([each])))
    phase_of = Spans(phases)
    operation_of = Spans(list(spans(each for each in here if each.get("cat") == "cpu_op")))
    num_rounds = len(starts) - 1
    by_round, found = Counter[int](), dict[tuple[str, str, str], list[float]]()
    for call in here:
        kernels = ran.get(call.get("args", {}).get("correlation"), ())
        if call.get("cat") not in CALLS or not kernels:
            continue
        if not starts[0] <= (at := float(call["ts"])) < starts[-1]:
            continue
        by_round[bisect_right(starts, at)] += 1
        what = GRAPH if "GraphLaunch" in call["name"] else kernels[0].name[:SHOWN_CHARS]
        took = found.setdefault((phase_of.around(at), operation_of.around(at), what), [0.0, 0.0])
        took[0] += 1 / num_rounds
        took[1] += sum(span.end - span.start for span in kernels) / num_rounds
    if not found:
        raise ValueError("nothing ran on a GPU")
    rows = [(*where, round(times, 3), round(us, 2)) for where, (times, us) in found.items()]
    usual = statistics.median([by_round[number] for number in range(1, num_rounds + 1)])
    gaps = idle(
        sorted(itertools.chain.from_iterable(ran.values())), (starts[-1] - starts[0]) / num_rounds
    )
    idle_us = round(sum(us for *_, us in gaps), 2)
    return Traced(
        num_rounds, usual, sorted(rows, key=lambda row: row[:3]), idle_us, gaps[:MOST_GAPS]
    )


def idle(busy: Sequence[Span], round_us: float) -> list[tuple[str, str, float, float]]:
    """Returns the gaps between what ran on the GPU by both sides, the longest in sum first.

    Args:
        busy: by their starts; they may overlap.
        round_us: the time of a round.
    """
    num_rounds = (busy[-1].end - busy[0].start) / round_us
    found: dict[tuple[str, str], list[float]] = {}
    last = busy[0]
    for span in busy[1:]:
        if span.start > last.end:
            where = last.name[:SHOWN_CHARS], span.name[:SHOWN_CHARS]
            took = found.setdefault(where, [0.0, 0.0])
            took[0] += 1 / num_rounds
            took[1] += (span.start - last.end) / num_rounds
        if span.end > last.end:
            last = span
    rows = [(*where, round(times, 3), round(us, 2)) for where, (times, us) in found.items()]
    return sorted(rows, key=lambda row: -row[3])


def build_result(origin: Raw, traces: Sequence[Raw]) -> dict[str, Any]:
    """Returns the result file: launches a round by depth, batch size and arm."""
    found: dict[str, Any] = {}
    for each in traces:
        cell = found.setdefault(str(each["steps"]), {}).setdefault(str(each["batch"]), {})
        cell[each["arm"]] = {
            "usual": each["usual"],
            "mean": round(sum(row[3] for row in each["rows"]), 2),
            "gpu_us": round(sum(row[4] for row in each["rows"]), 1),
            "idle_us": each["idle_us"],
        }
    return {"provenance": dict(origin), "a_round": found, "raw": list(traces)}


def figure_table(result: Raw) -> str:
    """Returns launches and GPU time a round of every arm; zero steps' have a limit."""
    figures, rows = [], []
    for steps, sizes in result["a_round"].items():
        host = host_arm(int(steps))
        for size, arms in sizes.items():
            rows += [(steps, size, arm, *cell.values()) for arm, cell in arms.items()]
            if steps == "0" and {OURS, host} <= set(arms):
                more = arms[OURS]["usual"] - arms[host]["usual"]
                claim = f"zero steps, {size} requests: launches beyond none's {arms[host]['usual']}"
                figures.append(Figure(claim, exact(more), MOST_MORE, is_upper=True).row())
    head = ("steps", "batch", "arm", "launches, median round", "mean", "us on the GPU", "idle us")
    return "\n".join((table(HEADER, figures), table(head, rows)))


def more_tables(result: Raw) -> str:
    """Returns per cell the calls that ours, or an earlier commit, makes beyond the host."""
    shown = []
    by_place = {(each["steps"], each["batch"], each["arm"]): each for each in result["raw"]}
    for (steps, size, arm), mine in by_place.items():
        host = by_place.get((steps, size, host_arm(steps)))
        if host is None or (arm != OURS and not is_earlier(arm)):
            continue
        theirs = {tuple(row[:3]): row[3:] for row in host["rows"]}
        ours = {tuple(row[:3]): row[3:] for row in mine["rows"]}
        rows = [
            (*where, *(a - b for a, b in zip(ours.get(where, (0, 0)), theirs.get(where, (0, 0)),
                                             strict=True)))
            for where in {*ours, *theirs}
        ]  # fmt: skip
        rows.sort(key=lambda row: (-row[3], -row[4]))
        kept = [row for row in rows if abs(row[3]) >= 0.01]
        head = (f"{steps} steps, {size} requests, {arm}", "operation", "what", "more", "us more")
        shown.append(table(head, [*kept[:MOST_SHOWN], *kept[MOST_SHOWN:][-4:]]))
    return "\n".join(shown)


def check_launches(result: Raw, gpu: str = GPU) -> list[str]:
    """Returns what is wrong with the shape or the figures of a result."""
    problems = keys("file", result, {"provenance", "a_round", "raw"})
    if problems:
        return problems
    again = build_result(result["provenance"], result["raw"])
    return [*measured_on(result["provenance"], gpu), *differences(result, again, "")]


def merge(args: argparse.Namespace) -> int:
    """Writes the result file from run files."""
    return merge_lists(args, ["traces"], build_result, figure_table)


def main() -> int:
    """Runs one command."""
    return run_command(parser(), run, merge)


if __name__ == "__main__":
    sys.exit(main())
