"""What does the overlap schedule bring, with a fixed depth and with one that changes?

Arms in pairs: with the overlap schedule (SGLang's default) and with --disable-overlap-schedule, for
`static-3` and `goodput`. 8B shapes with dummy weights and injected acceptance, visited and counted
as in the matrix. `grammar` asks the SmolLM2 pair for JSON by a schema, where
every round's mask waits for the tokens of the round before.

On the machine with the H200, from the project's root (T, P as in studies/transition):

    python3 -m benchmarks.studies.overlap run --git-sha SHA --out $OUT --tag 1
    python3 -m benchmarks.studies.overlap grammar --target T --prompts P \\
        --git-sha SHA --out $OUT --tag 2
    # then anywhere:
    python3 -m benchmarks.studies.overlap merge runs/overlap-*.json \\
        --result benchmarks/results/current/overlap-h200.json.xz

$OUT/overlap-TAG.json is written after every cell, the servers' last lines beside it at the end.
"""

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.lab.arms import ARMS, Arm
from benchmarks.lab.fleet import Engine, keep_logs, serving_fleet
from benchmarks.lab.load import as_raw, generate, steady_window
from benchmarks.lab.models import read_prompts
from benchmarks.lab.run_files import (
    add_merge,
    begin_run,
    publish,
    read_runs,
    run_command,
    write_run,
)
from benchmarks.lab.session import Plan
from benchmarks.lab.settings import add_fleet_flags, fleet_plan, numbers, words
from benchmarks.lab.visits import MAX_TOTAL_TOKENS, add_visit_flags, visit_cells
from benchmarks.studies.matrix import tables as matrix_tables
from benchmarks.studies.overlap import summary as overlap_summary

SYNCHRONOUS = ("--disable-overlap-schedule",)
# The CPU host's own switch: SGLang turns the overlap schedule off on a CPU (patches/cpu).
CPU_OVERLAP = {"SGLANG_CPU_HOST_OVERLAP": "1"}


def variants(base: Arm) -> list[Arm]:
    """Returns an arm with and without overlap."""
    return [base, replace(base, name=f"{base.name}-no-overlap", extra=SYNCHRONOUS)]


OVERLAP_ARMS = {
    arm.name: arm for name in ("none", "static-3", "goodput") for arm in variants(ARMS[name])
}
DEFAULT_ARMS = ("static-3", "static-3-no-overlap", "goodput", "goodput-no-overlap")
GRAMMAR_ARMS = ("none", "none-no-overlap", *DEFAULT_ARMS)
# So many objects that every answer runs to its limit of tokens.
SCHEMA = {
    "type": "array",
    "minItems": 400,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "size": {"enum": ["small", "medium", "large"]},
            "count": {"type": "integer", "minimum": 0, "maximum": 999},
            "is_new": {"type": "boolean"},
        },
        "required": ["name", "size", "count", "is_new"],
        "additionalProperties": False,
    },
}
KINDS: dict[str, dict[str, str]] = {"schema": {"json_schema": json.dumps(SCHEMA)}, "free": {}}
NO_TOKENIZER = "--skip-tokenizer-init"  # a grammar needs one
ONE_LINE = "--constrained-json-disable-any-whitespace"  # or a small model writes blanks for ever


def parser() -> argparse.ArgumentParser:
    """Returns the command line."""
    top = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = top.add_subparsers(dest="command", required=True)
    run_ = commands.add_parser("run")
    run_.add_argument("--arms", type=words, default=DEFAULT_ARMS, help=", ".join(OVERLAP_ARMS))
    add_visit_flags(run_)
    add_fleet_flags(run_, MAX_TOTAL_TOKENS)
    run_.set_defaults(batches=(1, 4, 32), acceptances=("0.7",), repeats=2, deadline=205.0)
    grammar_ = commands.add_parser("grammar")
    grammar_.add_argument("--prompts", type=Path, required=True, help="token ids per phase, JSON")
    grammar_.add_argument("--phase", default="prose", help="the prompts to take [prose]")
    grammar_.add_argument("--arms", type=words, default=GRAMMAR_ARMS)
    grammar_.add_argument("--batches", type=numbers, default=(1, 8, 32))
    grammar_.add_argument("--new-tokens", type=int, default=384, help="of every request [384]")
    add_fleet_flags(grammar_, MAX_TOTAL_TOKENS)
    grammar_.set_defaults(repeats=3, context_length=2048, deadline=205.0)
    add_merge(commands)
    return top


def run(args: argparse.Namespace) -> int:
    """Runs either part; returns 1 if a server or a visit is missing."""
    deadline = time.monotonic() + args.deadline
    record, path = begin_run(args, "overlap")
    record |= {"windows": [], "grammar": [], "refused": {}, "servers": []}
    arms = [OVERLAP_ARMS[name] for name in args.arms]
    is_grammar = args.command == "grammar"
    with tempfile.TemporaryDirectory(prefix="overlap-bench-") as scratch:
        plan = fleet_plan(args, Path(scratch))
        if args.dry_cpu:
            plan = replace(plan, environment={**plan.environment, **CPU_OVERLAP})
        if is_grammar:
            plan = with_tokenizer(plan)
        with serving_fleet(arms, plan, deadline, at_once=not args.dry_cpu) as engines:
            record["refused"] = refusals(arms, engines, plan)
            write_run(record, path)
            visit = grammar_cells if is_grammar else injected_cells
            num_missing = visit(engines, plan, args, deadline, record, path)
        keep_logs(arms, plan.folder, path.with_suffix(".log"))
        record["servers"] = [engine.measured for engine in engines]
        write_run(record, path)
    if record["windows"]:
        print(matrix_tables.window_table(record["windows"]))
    print(overlap_summary.cell_table(overlap_summary.merged([record])))
    for name, error in record["refused"].items():
        print(f"{name}: refused, {error}")
    return 1 if num_missing or len(engines) < len(arms) else 0


def with_tokenizer(plan: Plan) -> Plan:
    """Returns a plan of real acceptance whose servers have a tokenizer."""
    common = [word for word in plan.common if word != NO_TOKENIZER]
    return replace(plan, common=(*common, ONE_LINE), inject_seed=None)


def refusals(arms: Sequence[Arm], engines: Sequence[Engine], plan: Plan) -> dict[str, str]:
    """Returns the error with which each server ended that does not serve."""
    serving = {engine.arm.name for engine in engines}
    return {
        arm.name: last_error(plan.folder / arm.name / f"{arm.name}.log")
        for arm in arms
        if arm.name not in serving
    }


def last_error(log: Path) -> str:
    """Returns the last line of a log that names an error."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    errors = [line for line in lines if re.match(r"(\w+\.)*\w*(Error|Exception)\b", line)]
    return errors[-1] if errors else "no error in its log"


def injected_cells(
    engines: Sequence[Engine],
    plan: Plan,
    args: argparse.Namespace,
    deadline: float,
    record: dict[str, Any],
    path: Path,
) -> int:
    """Visits the cells of the matrix; returns how many visits are missing."""
    return visit_cells(
        engines, plan, args, deadline, record["windows"], lambda: write_run(record, path)
    )


def grammar_cells(
    engines: Sequence[Engine],
    _plan: Plan,
    args: argparse.Namespace,
    deadline: float,
    record: dict[str, Any],
    path: Path,
) -> int:
    """Asks every engine for JSON by a schema and for free text; returns the missing visits."""
    prompts = read_prompts(args.prompts)[args.phase]
    num_missing, order = 0, list(engines)
    for batch_size in args.batches:
        batch = [prompts[row % len(prompts)] for row in range(batch_size)]
        for kind in KINDS:
            for repeat in range(args.repeats + 1):  # the first compiles the grammar: not kept
                for engine in order:
                    if time.monotonic() > deadline:
                        num_missing += 1
                        continue
                    try:
                        window = constrained_window(engine, kind, batch, args.new_tokens)
                    except (RuntimeError, ValueError, OSError) as error:
                        print(f"{engine.arm.name} {batch_size} {kind}: {error}", flush=True)
                        num_missing += 1
                        continue
                    where = {"batch_size": batch_size, "kind": kind, "repeat": repeat}
                    if repeat:
                        record["grammar"].append({"arm": engine.arm.name, **where, **window})
                order = order[1:] + order[:1]
            write_run(record, path)
    return num_missing


def constrained_window(
    engine: Engine, kind: str, batch: Sequence[Sequence[int]], new_tokens: int
) -> dict[str, Any]:
    """Sends one batch; returns the part of it in which all requests lived."""
    engine.server.command()
    generate(engine.server.url, batch, new_tokens, **KINDS[kind])
    return as_raw(steady_window(engine.server.rounds(), len(batch)))


def merge(args: argparse.Namespace) -> int:
    """Writes the result file from run files."""
    result = overlap_summary.merged(read_runs(args.files))
    return publish(args, result, overlap_summary.cell_table, overlap_summary.figure_table)


def main() -> int:
    """Runs one command."""
    return run_command(parser(), run, merge)


if __name__ == "__main__":
    sys.exit(main())
