"""What does a draft tree accept beside the chain of its depth, with a real pair?

SGLang's own static EAGLE-3 with the SmolLM2 pair, greedy, at every shape of SHAPES: accept length
(tokens per request and round, bonus token included) on prose, code, JSON and maths. From it the
lift: the logits by which a tree's hazard, taken as equal at every depth, lies above the chain's.
The first guess of policy/acceptance/tree_hazards.py and the trees of the matrix come from here.
Time is not measured.

On the machine with the H200, or on the CPU host (T, P as in studies/transition; 30 minutes there):

    python3 -m benchmarks.studies.tree_acceptance run --target T --prompts P \\
        --git-sha SHA --out $OUT
    python3 -m benchmarks.studies.tree_acceptance run --dry-cpu --alone --target T --prompts P \
        --num-prompts 8 --new-tokens 96 --deadline 36000 --out $OUT
    python3 -m benchmarks.studies.tree_acceptance merge $OUT/tree-acceptance-1.json \\
        --result benchmarks/results/current/tree-acceptance.json.xz
"""

import argparse
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.lab.arms import Arm, static
from benchmarks.lab.fleet import Engine, keep_logs, serving_fleet
from benchmarks.lab.load import post_generate
from benchmarks.lab.models import read_prompts
from benchmarks.lab.run_files import (
    add_merge,
    begin_run,
    publish,
    read_runs,
    run_command,
    write_run,
)
from benchmarks.lab.settings import add_fleet_flags, fleet_plan, words
from benchmarks.stats.differences import differences, keys
from benchmarks.stats.provenance import check_same_code
from benchmarks.stats.tables import table
from sglang_adaptive_spec.tiers import Tier, chain_tier

CHAINS = (chain_tier(1), chain_tier(2), chain_tier(3), chain_tier(5))
TREES = tuple(
    Tier(*shape)
    for shape in (
        *((1, 2, 3), (1, 4, 5), (1, 8, 9), (2, 4, 10)),
        *((3, 2, 6), (3, 4, 8), (3, 4, 16), (5, 4, 12), (5, 4, 24)),
    )
)
SHAPES = {tier.label: tier for tier in (*CHAINS, *TREES)}
PHASES = ("prose", "code", "json", "maths")  # of those that pack_pair.py writes
SERVERS_AT_ONCE = 7
MAX_TOTAL_TOKENS = 16384
DIGITS = 4

Raw = Mapping[str, Any]


def static_shape(tier: Tier) -> Arm:
    """Returns the host's own EAGLE-3 at one shape."""
    return replace(static(tier), name=tier.label)


def parser() -> argparse.ArgumentParser:
    """Returns the command line."""
    top = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = top.add_subparsers(dest="command", required=True)
    run_ = commands.add_parser("run")
    run_.add_argument("--prompts", type=Path, required=True, help="token ids per phase, JSON")
    run_.add_argument("--shapes", type=words, default=tuple(SHAPES))
    run_.add_argument("--num-prompts", type=int, default=16, help="of every phase [16]")
    run_.add_argument("--new-tokens", type=int, default=128, help="of every request [128]")
    add_fleet_flags(run_, MAX_TOTAL_TOKENS)
    run_.set_defaults(context_length=2048)
    add_merge(commands)
    return top


def run(args: argparse.Namespace) -> int:
    """Sends every phase to a server of every shape; returns 1 if one is missing."""
    deadline = time.monotonic() + args.deadline
    record, path = begin_run(args, "tree-acceptance")
    record["shapes"] = shapes = {}
    phases = read_prompts(args.prompts)
    with tempfile.TemporaryDirectory(prefix="tree-bench-") as scratch:
        plan = replace(fleet_plan(args, Path(scratch)), inject_seed=None)
        at_once = 1 if args.alone else SERVERS_AT_ONCE
        for first in range(0, len(args.shapes), at_once):
            arms = [static_shape(SHAPES[name]) for name in args.shapes[first : first + at_once]]
            with serving_fleet(arms, plan, deadline, at_once=not args.alone) as engines:
                for engine in engines:
                    shapes[engine.arm.name] = accepted(engine, phases, args)
                    write_run(record, path)
            keep_logs(arms, plan.folder, path.with_suffix(".log"))
    print(shape_table(build_result(record["provenance"], shapes)))
    missing = set(args.shapes) - set(shapes)
    if missing:
        print(f"missing: {sorted(missing)}")
    return 1 if missing else 0


def accepted(
    engine: Engine, phases: Mapping[str, Sequence[Sequence[int]]], args: argparse.Namespace
) -> dict[str, list[int]]:
    """Returns tokens after the first, and rounds, of each phase."""
    found = {}
    for phase in PHASES:
        sampling = {"max_new_tokens": args.new_tokens, "ignore_eos": True}
        prompts = phases[phase][: args.num_prompts]
        metas = [
            answer["meta_info"] for answer in post_generate(engine.server.url, prompts, sampling)
        ]
        num_tokens = sum(meta["completion_tokens"] - 1 for meta in metas)
        found[phase] = [num_tokens, sum(meta["spec_verify_ct"] for meta in metas)]
    return found


def hazard_of(accept_length: float, num_steps: int) -> float:
    """Returns the hazard that, equal at every depth, gives an accept length; by bisection."""
    low, high = 1e-6, 1.0 - 1e-6
    for _ in range(60):
        middle = (low + high) / 2
        if sum(middle**step for step in range(num_steps + 1)) > accept_length:
            high = middle
        else:
            low = middle
    return (low + high) / 2


def logit_of(accept_length: float, num_steps: int) -> float:
    """Returns the logit of that hazard."""
    hazard = hazard_of(accept_length, num_steps)
    return math.log(hazard / (1.0 - hazard))


def build_result(origin: Raw, raw: Mapping[str, Mapping[str, Sequence[int]]]) -> dict[str, Any]:
    """Returns the result file: accept lengths, and the lift of every tree whose chain ran, too."""
    lengths = {
        name: {phase: round(tokens / rounds, DIGITS) for phase, (tokens, rounds) in found.items()}
        for name, found in raw.items()
    }
    lifts = {}
    for tier in TREES:
        chain = chain_tier(tier.num_steps).label
        if tier.label in raw and chain in raw:
            lifts[tier.label] = {
                phase: round(
                    logit_of(tokens / rounds, tier.num_steps)
                    - logit_of(raw[chain][phase][0] / raw[chain][phase][1], tier.num_steps),
                    DIGITS,
                )
                for phase, (tokens, rounds) in raw[tier.label].items()
            }
    return {
        "provenance": dict(origin),
        "accept_length": lengths,
        "lift": lifts,
        "mean_lift": {
            name: round(statistics.fmean(by_phase.values()), DIGITS)
            for name, by_phase in lifts.items()
        },
        "raw": {name: dict(found) for name, found in raw.items()},
    }


def check_tree_acceptance(result: Raw) -> list[str]:
    """Returns what is wrong with the shape or the figures of a result."""
    problems = keys("file", result, {"provenance", "accept_length", "lift", "mean_lift", "raw"})
    if problems:
        return problems
    missing = sorted(set(SHAPES) - set(result["raw"]))
    problems = [f"raw lacks {missing}"] if missing else []
    return problems + differences(result, build_result(result["provenance"], result["raw"]), "")


def shape_table(result: Raw) -> str:
    """Returns accept lengths and lifts of every shape."""
    rows = [
        (
            name,
            *(f"{value:.3f}" for value in by_phase.values()),
            f"{result['mean_lift'][name]:.2f}" if name in result["mean_lift"] else "",
        )
        for name, by_phase in result["accept_length"].items()
    ]
    return table(("steps-topk-tokens", *PHASES, "lift"), rows)


def merge(args: argparse.Namespace) -> int:
    """Writes the result file from run files."""
    records = read_runs(args.files)
    raw = {name: found for record in records for name, found in record["shapes"].items()}
    return publish(args, build_result(check_same_code(records), raw), shape_table)


def main() -> int:
    """Runs one command."""
    return run_command(parser(), run, merge)


if __name__ == "__main__":
    sys.exit(main())
