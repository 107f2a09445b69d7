"""The first slice on a GPU: what ADAPTIVE_EAGLE costs and gives there.

    python -m benchmarks.slice run --out DIR             four arms and the alternation
    python -m benchmarks.slice plain --out DIR           zero steps against none, interleaved
    python -m benchmarks.slice smollm2 --target T --prompts P --out DIR      the real small pair
    python -m benchmarks.slice merge FILE.. --result benchmarks/results/slice-h200.json

Each command but the last writes DIR/PURPOSE-TAG.json after every arm, so a time limit loses one
arm at most. docs/benchmarks.md says how to run it in few calls and how to read it.
"""

import argparse
import json
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import summary, tables
from benchmarks.arms import ARMS, Arm
from benchmarks.models import ModelPair, write_dummy_pair
from benchmarks.provenance import provenance
from benchmarks.run_files import add_merge, read_runs, run_command, write_result
from benchmarks.session import Plan, run_pass
from benchmarks.settings import (
    CPU_COMMON,
    CPU_ENVIRONMENT,
    DUMMY_WEIGHTS,
    EAGLE3_HEAD,
    GPU_COMMON,
    words,
)
from benchmarks.smollm2 import SLICE_PHASES, read_prompts, run_phases

DEFAULTS: dict[str, dict[str, str]] = {
    "run": {
        "arms": "none,static-3,builtin,ema,ema-alternate",
        "acceptance": "natural,sim3.5",
        "batches": "1,5,8,24,48,64,100",
    },
    "plain": {
        "arms": "none,plain,none,plain",
        "acceptance": "natural",
        "batches": "1,16,64,128",
    },
    "smollm2": {
        "arms": "none,static-3,builtin,ema",
        "acceptance": "natural",
        "batches": "4",  # requests in flight
    },
}
MAX_LOG_LINES = 2000  # of a server's log kept beside the record
PURPOSES = {"run": "slice", "plain": "plain", "smollm2": "smollm2"}


def parser() -> argparse.ArgumentParser:
    """Returns the command line."""
    top = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = top.add_subparsers(dest="command", required=True)
    for name, defaults in DEFAULTS.items():
        sub = commands.add_parser(name)
        for flag, value in defaults.items():
            sub.add_argument(f"--{flag}", type=words, default=words(value), help=f"[{value}]")
        _add_run_flags(sub)
        if name == "smollm2":
            sub.add_argument("--prompts", type=Path, required=True, help="ids per phase, JSON")
    add_merge(commands)
    return top


def _add_run_flags(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--out", type=Path, required=True)
    sub.add_argument("--tag", default="1", help="names the file; one per pass [1]")
    sub.add_argument("--git-sha", help="where the repository itself is absent")
    sub.add_argument("--deadline", type=float, help="seconds after which no arm is started")
    sub.add_argument("--repeats", type=int, default=3)
    sub.add_argument("--prompt-tokens", type=int, default=128)
    sub.add_argument("--context-length", type=int, default=8192)
    sub.add_argument("--new-tokens", type=int, default=128, help="natural acceptance")
    sub.add_argument("--new-tokens-sim", type=int, default=320, help="simulated acceptance")
    sub.add_argument("--settle-tokens", type=int, default=48)
    sub.add_argument("--settle-tokens-sim", type=int, default=128)
    sub.add_argument("--port", type=int, default=31300)
    sub.add_argument("--target", type=Path, help="a model folder instead of dummy weights")
    sub.add_argument("--draft", type=Path, help="the draft beside --target")
    sub.add_argument("--dry-cpu", action="store_true", help="the same path without a GPU")


def plan_of(args: argparse.Namespace, scratch: Path) -> Plan:
    """Returns what every arm is put through."""
    common = [*(CPU_COMMON if args.dry_cpu else GPU_COMMON)]
    common += ["--context-length", str(args.context_length)]
    if args.target is None:
        pair = write_dummy_pair(scratch / "models")
        common += DUMMY_WEIGHTS
    else:
        pair = ModelPair(args.target, args.draft or EAGLE3_HEAD)
    return Plan(
        pair=pair,
        common=tuple(common),
        environment=dict(CPU_ENVIRONMENT) if args.dry_cpu else {},
        folder=scratch,
        port=args.port,
        acceptance=args.acceptance,
        batch_sizes=tuple(int(size) for size in args.batches),
        repeats=args.repeats,
        prompt_tokens=args.prompt_tokens,
        new_tokens={"natural": args.new_tokens, "sim": args.new_tokens_sim},
        settle_tokens={"natural": args.settle_tokens, "sim": args.settle_tokens_sim},
        has_graphs=not args.dry_cpu,
    )


def run(args: argparse.Namespace) -> int:
    """Runs the arms in the order given; returns 1 if one failed or was left out."""
    started = time.monotonic()
    purpose = PURPOSES[args.command]
    args.out.mkdir(parents=True, exist_ok=True)
    record: dict[str, Any] = {"purpose": purpose, "provenance": provenance(args.git_sha)}
    record["passes"] = passes = []
    left_out, failed = [], []
    with tempfile.TemporaryDirectory(prefix="slice-bench-") as scratch:
        plan = plan_of(args, Path(scratch))
        one_pass = _one_pass(args, plan)
        for name in args.arms:
            if args.deadline is not None and time.monotonic() - started > args.deadline:
                left_out.append(name)
                continue
            arm_started = time.monotonic()
            try:
                passes.append(one_pass(ARMS[name]))
            except (RuntimeError, ValueError, OSError):  # the other arms are still worth running
                traceback.print_exc(file=sys.stdout)
                failed.append(name)
            print(f"{name}: {time.monotonic() - arm_started:.0f} s", flush=True)
            keep(record, Path(scratch) / f"{name}.log", args.out / f"{purpose}-{args.tag}.json")
    print(tables.start_table(passes))
    print(tables.phase_table(passes) if purpose == "smollm2" else tables.cell_table(passes))
    for names, why in ((left_out, "left out at the deadline"), (failed, "failed, see above")):
        if names:
            print(f"{why}: {', '.join(names)}")
    return 1 if left_out or failed else 0


def keep(record: dict[str, Any], server_log: Path, path: Path) -> None:
    """Writes the record so far, and beside it the end of a server's log."""
    path.write_text(json.dumps(record, indent=1))
    if server_log.exists():
        lines = server_log.read_text(errors="replace").splitlines(keepends=True)
        with path.with_suffix(".log").open("a") as log:
            log.writelines([f"=== {server_log.name}\n", *lines[-MAX_LOG_LINES:]])


def _one_pass(args: argparse.Namespace, plan: Plan) -> Callable[[Arm], dict[str, Any]]:
    if args.command == "smollm2":
        prompts = read_prompts(args.prompts)
        phases = {name: prompts[name] for name in SLICE_PHASES if name in prompts}
        return lambda arm: run_phases(arm, plan, phases)
    return lambda arm: run_pass(arm, plan)


def merge(args: argparse.Namespace) -> int:
    """Writes the result file from run files."""
    result = summary.merged(read_runs(args.files))
    write_result(result, args.result)
    print(tables.target_table(result))
    return 0


def main() -> int:
    """Runs one command."""
    return run_command(parser(), run, merge)


if __name__ == "__main__":
    sys.exit(main())
