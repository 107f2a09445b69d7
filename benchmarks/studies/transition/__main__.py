"""Phases that accept differently, one after the other: does a policy follow them?

The SmolLM2 pair with real acceptance, in a closed loop. `alternating` is low, high, low, high in
the manner of SGLang's own benchmark of its adaptive speculation: open-ended writing, then text that
the draft knows. `mixed-text` is JSON, code, prose. That model is so small that the CPU bounds its
rounds; `injected` is low, high, low, high of the Llama-8B shapes with injected acceptance. Every
phase has the same number of tokens: every request runs to its limit, whatever ends its text.

On the machine with the H200, from the project's root (T: the target's folder there, unpacked by
benchmarks/lab/pack_pair.py, P: its prompts.json; all eight small servers fit, five of the large):

    python3 -m benchmarks.studies.transition run --target T --prompts P \\
        --git-sha SHA --out $OUT --tag s
    python3 -m benchmarks.studies.transition run --workloads injected --max-total-tokens 32768 \\
        --arms none,static-3,static-7,builtin,goodput --git-sha SHA --out $OUT --tag i
    # the same with --arms static-1,static-5 and tag j; then anywhere:
    python3 -m benchmarks.studies.transition merge runs/transition-*.json \\
        --result benchmarks/results/current/transition-h200-fa3.json.xz \\
        --plot docs/images/transition-h200.svg
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.inject.acceptance import request_ids
from benchmarks.lab.arms import ARMS
from benchmarks.lab.fleet import Engine, keep_logs, serving_fleet
from benchmarks.lab.load import generate_closed
from benchmarks.lab.models import prompt_ids, read_prompts
from benchmarks.lab.run_files import (
    add_merge,
    begin_run,
    publish,
    read_runs,
    run_command,
    write_run,
)
from benchmarks.lab.session import INJECTED
from benchmarks.lab.settings import add_fleet_flags, fleet_plan, numbers, words
from benchmarks.lab.visits import PROMPT_SEED
from benchmarks.stats.windows import MATRIX_ARMS
from benchmarks.studies.transition import summary as transition_summary
from benchmarks.studies.transition.summary import INJECTED_WORKLOAD

# Phases in order, by workload: (the phase's name, where its prompts come from, or the probability
# that a draft is accepted).
WORKLOADS = {
    "alternating": (("low_1", "low"), ("high_1", "high"), ("low_2", "low"), ("high_2", "high")),
    "mixed-text": (("json", "json"), ("code", "code"), ("prose", "prose")),
    INJECTED_WORKLOAD: (("low_1", "0.3"), ("high_1", "0.95"), ("low_2", "0.3"), ("high_2", "0.95")),
}
REAL = ("alternating", "mixed-text")
# 64 requests of 256 new tokens and their prompts, several times over.
MAX_TOTAL_TOKENS = 65536


def parser() -> argparse.ArgumentParser:
    """Returns the command line."""
    top = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = top.add_subparsers(dest="command", required=True)
    run_ = commands.add_parser("run")
    run_.add_argument("--prompts", type=Path, help="token ids per phase, JSON; real acceptance")
    run_.add_argument("--arms", type=words, default=MATRIX_ARMS)
    run_.add_argument("--concurrency", type=numbers, default=(2, 16, 64))
    run_.add_argument("--workloads", type=words, default=REAL)
    # As the host's own benchmark: four requests one after the other, 256 tokens each.
    run_.add_argument("--waves", type=int, default=4, help="requests per phase and slot [4]")
    run_.add_argument("--new-tokens", type=int, default=256, help="of every request [256]")
    add_fleet_flags(run_, MAX_TOTAL_TOKENS)
    run_.set_defaults(repeats=3, context_length=2048)
    add_merge(commands, has_plot=True, has_incomplete=True)
    return top


def run(args: argparse.Namespace) -> int:
    """Runs every arm through every workload; returns 1 if a server or a pass is missing."""
    deadline = time.monotonic() + args.deadline
    record, path = begin_run(args, "transition")
    record["passes"] = passes = []
    arms = [ARMS[name] for name in args.arms]
    prompts = prompts_of(args)
    num_wanted = len(arms) * args.repeats * len(args.concurrency) * len(args.workloads)
    with tempfile.TemporaryDirectory(prefix="transition-bench-") as scratch:
        plan = fleet_plan(args, Path(scratch))
        if INJECTED_WORKLOAD not in args.workloads:
            plan = replace(plan, inject_seed=None)
        with serving_fleet(arms, plan, deadline, at_once=True) as engines:
            for engine in engines:  # compiles and warms caches
                send_workload(engine, args.workloads[0], prompts, Loop(2, 1, args.new_tokens, 0))
            order = list(engines)
            for concurrency in args.concurrency:
                for workload in args.workloads:
                    for repeat in range(args.first_repeat, args.first_repeat + args.repeats):
                        for engine in order:
                            if time.monotonic() > deadline:
                                continue
                            loop = Loop(concurrency, args.waves, args.new_tokens, repeat)
                            phases = send_workload(engine, workload, prompts, loop)
                            where = {"concurrency": concurrency, "workload": workload}
                            one = {"arm": engine.arm.name, **where, "repeat": repeat}
                            passes.append({**one, "phases": phases})
                        order = order[1:] + order[:1]
                        write_run(record, path)
        keep_logs(arms, plan.folder, path.with_suffix(".log"))
    print(transition_summary.pass_table(passes))
    if len(passes) < num_wanted:
        print(f"{num_wanted - len(passes)} passes are missing")
    return 1 if len(passes) < num_wanted else 0


def prompts_of(args: argparse.Namespace) -> dict[str, list[list[int]]]:
    """Returns token ids per source of prompts.

    Raises:
        SystemExit: Real and injected acceptance are mixed, or a file is missing.
    """
    if INJECTED_WORKLOAD not in args.workloads:
        if args.prompts is None:
            raise SystemExit("--prompts is missing: real acceptance needs real prompts.")
        return read_prompts(args.prompts)
    if set(args.workloads) != {INJECTED_WORKLOAD}:
        raise SystemExit(
            f"--workloads {','.join(args.workloads)}: {INJECTED_WORKLOAD} needs servers of its "
            "own; take a command for it alone."
        )
    prompts = prompt_ids(args.waves * max(args.concurrency), args.prompt_tokens, PROMPT_SEED)
    return {probability: prompts for _, probability in WORKLOADS[INJECTED_WORKLOAD]}


class Loop(NamedTuple):
    """A closed loop."""

    concurrency: int
    waves: int  # requests per phase and slot
    new_tokens: int
    repeat: int


def send_workload(
    engine: Engine, workload: str, prompts: Mapping[str, Sequence[Sequence[int]]], loop: Loop
) -> dict[str, dict[str, Any]]:
    """Runs the phases one after the other; returns tokens, seconds and rounds of each."""
    is_injected = workload == INJECTED_WORKLOAD
    engine.server.command(accept_length=INJECTED if is_injected else None)
    phases: dict[str, dict[str, Any]] = {}
    for name, source in WORKLOADS[workload]:
        sent = cycled(prompts[source], loop.waves * loop.concurrency)
        ids = injected_ids(source, name, len(sent), loop) if is_injected else None
        start = time.perf_counter()
        answers = generate_closed(
            engine.server.url, sent, loop.new_tokens, loop.concurrency, ignore_eos=True, ids=ids
        )
        seconds = time.perf_counter() - start
        rounds = [each["meta_info"].get("spec_verify_ct") or loop.new_tokens for each in answers]
        phases[name] = {
            "num_tokens": sum(len(each["output_ids"]) for each in answers),
            "seconds": round(seconds, 6),
            "num_rounds": sum(rounds),
        }
    return phases


def injected_ids(probability: str, phase: str, number: int, loop: Loop) -> list[str]:
    """Returns an id per request of a phase, the same in every arm."""
    named = request_ids(probability, number, loop.repeat)
    return [f"{each}-{phase}-c{loop.concurrency}" for each in named]


def cycled(prompts: Sequence[Sequence[int]], number: int) -> list[Sequence[int]]:
    """Returns ``number`` prompts, from the first again when they run out."""
    return [prompts[index % len(prompts)] for index in range(number)]


def merge(args: argparse.Namespace) -> int:
    """Writes the result file, and a plot if wanted, from run files."""
    result = transition_summary.merged(read_runs(args.files), args.incomplete)
    shows = (transition_summary.cell_table, transition_summary.figure_table)
    return publish(args, result, *shows, plot="benchmarks.studies.transition.plot:plot_transition")


def main() -> int:
    """Runs one command."""
    return run_command(parser(), run, merge)


if __name__ == "__main__":
    sys.exit(main())
