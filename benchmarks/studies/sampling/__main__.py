"""Is sampling lossless when the tier changes in every round? Next tokens against no speculation.

The SmolLM2 pair with real acceptance answers a few prompts many thousand times. Every batch holds
all prompts in turn, so that its rows accept differently. Arms: `none` and the same with other seeds
(`none-again`, in which nothing may be found), `static-3`, `ema-alternate` (ADAPTIVE_EAGLE, another
of 0, 1, 3, 5, 7 steps each round) and `wrong`: the same with the host's
--speculative-accept-threshold-single 0.2, which accepts every draft of target probability 0.2 or
more (sglang 0.5.21 jit include speculative/sampling.cuh:TreeSpeculativeSamplingTargetOnly); it must
be found. `wrong-slightly` has 0.5. `static-3-rejection` and `alternate-rejection` verify with the
host's --speculative-use-rejection-sampling, for which the head is widened (wide_head.py).
`packed-lengths` and `packed-confidence` verify other lengths of each row in every round, too, drawn
at random or chosen by the draft's confidence with random weights; `packed-rejection` is the former
with the host's rejection sampling.

Greedy texts of all prompts are compared with those of `none`, too. Speed is not measured: all arms
sample at the same time.

On the machine with the H200, from the project's root (T, P as in studies/transition):

    python3 -m benchmarks.studies.sampling run --target T --prompts P \\
        --git-sha SHA --out $OUT --tag 1
    # cells that it did not reach, as it says, with other seeds: --cells ... --seed 2 --tag 2
    python3 -m benchmarks.studies.sampling run --target T --prompts P \\
        --git-sha SHA --out $OUT --tag 3 --seed 3 \\
        --arms none,static-3-rejection,alternate-rejection,wrong-slightly \\
        --cells t0.8,t1,top_p,top_k
    # then anywhere:
    python3 -m benchmarks.studies.sampling merge runs/sampling-*.json \\
        --result benchmarks/results/current/sampling-h200.json.xz

$OUT/sampling-TAG.json is written after every cell, the servers' last lines beside it at the end. No
cell is begun that would last past `--deadline`, judged by the longest one so far.
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.inject.engine import CONFIDENCE, LENGTHS
from benchmarks.lab.arms import ALL_TIERS, ARMS, OURS, Arm
from benchmarks.lab.fleet import Engine, in_parallel, keep_logs, serving_fleet
from benchmarks.lab.load import Round, generate_closed, post_generate
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
from benchmarks.studies.sampling import summary as sampling_summary
from benchmarks.studies.sampling import tables as sampling_tables
from benchmarks.studies.sampling.summary import (
    BY_CONFIDENCE,
    BY_LENGTHS,
    CELLS,
    CONTROL,
    NONE,
    OURS_REJECTION,
    PACKED_REJECTION,
    SLIGHTLY_WRONG,
    STATIC_REJECTION,
    WRONG,
    agreement,
)
from benchmarks.studies.sampling.wide_head import widen_head

TOO_EAGER, EAGER = (("--speculative-accept-threshold-single", limit) for limit in ("0.2", "0.5"))
BY_REJECTION = ("--speculative-use-rejection-sampling",)
PACKED = {**ALL_TIERS, "policy": "goodput", "packing": True, "memory_budget_gb": 64}
AT_RANDOM = Arm(BY_LENGTHS, OURS, {**PACKED, "confidence": False}, policy=LENGTHS)
SAMPLED_ARMS = {
    NONE: ARMS["none"],
    CONTROL: replace(ARMS["none"], name=CONTROL),
    "static-3": ARMS["static-3"],
    "ema-alternate": ARMS["ema-alternate"],
    WRONG: replace(ARMS["ema-alternate"], name=WRONG, extra=TOO_EAGER),
    SLIGHTLY_WRONG: replace(ARMS["ema-alternate"], name=SLIGHTLY_WRONG, extra=EAGER),
    STATIC_REJECTION: replace(ARMS["static-3"], name=STATIC_REJECTION, extra=BY_REJECTION),
    OURS_REJECTION: Arm(OURS_REJECTION, OURS, ALL_TIERS, policy="alternate", extra=BY_REJECTION),
    BY_LENGTHS: AT_RANDOM,
    BY_CONFIDENCE: Arm(BY_CONFIDENCE, OURS, {**PACKED, "confidence": True}, policy=CONFIDENCE),
    PACKED_REJECTION: replace(AT_RANDOM, name=PACKED_REJECTION, extra=BY_REJECTION),
}
DEFAULT_ARMS = (NONE, CONTROL, "static-3", "ema-alternate", WRONG)
# Free text, code, JSON that accepts much, and text that accepts little: the first of each.
DEFAULT_PHASES = ("prose", "code", "json", "low")
# A request of every batch in flight, and what a round allocates ahead, several times over.
MAX_TOTAL_TOKENS = 65536
# The first request at a temperature compiles kernels.
FIRST_ANSWER_S = 280.0
GREEDY = "greedy"


class Load(NamedTuple):
    """What is sent to every arm."""

    prompts: list[list[int]]
    num_batches: int
    batch_size: int
    in_flight: int
    new_tokens: int


def parser() -> argparse.ArgumentParser:
    """Returns the command line."""
    top = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = top.add_subparsers(dest="command", required=True)
    run_ = commands.add_parser("run")
    run_.add_argument("--prompts", type=Path, required=True, help="token ids per phase, JSON")
    run_.add_argument("--arms", type=words, default=DEFAULT_ARMS, help=", ".join(SAMPLED_ARMS))
    run_.add_argument(
        "--cells", type=words, default=(GREEDY, *CELLS), help=f"of {GREEDY}, {', '.join(CELLS)}"
    )
    run_.add_argument("--phases", type=words, default=DEFAULT_PHASES, help="a prompt of each")
    run_.add_argument("--samples", type=int, default=20480, help="per arm and position [20480]")
    run_.add_argument("--batch", type=int, default=64, help="requests of a batch [64]")
    run_.add_argument("--in-flight", type=int, default=2, help="batches of an arm [2]")
    run_.add_argument("--new-tokens", type=int, default=8, help="positions [8]")
    run_.add_argument("--greedy-tokens", type=int, default=128, help="of a greedy text [128]")
    run_.add_argument("--concurrency", type=numbers, default=(8, 64), help="of greedy requests")
    run_.add_argument("--dtype", help="of the weights, instead of that in the model's config")
    add_fleet_flags(run_, MAX_TOTAL_TOKENS)
    run_.set_defaults(context_length=2048, deadline=200.0)
    add_merge(commands)
    return top


def run(args: argparse.Namespace) -> int:
    """Samples every arm in every cell; returns 1 if anything is missing."""
    deadline = time.monotonic() + args.deadline
    record, path = begin_run(args, "sampling")
    record |= {"samples": [], "greedy": [], "servers": []}
    prompts = read_prompts(args.prompts)
    with tempfile.TemporaryDirectory(prefix="sampling-bench-") as scratch:
        plan = replace(fleet_plan(args, Path(scratch)), inject_seed=None)
        if args.dtype:
            plan = replace(plan, common=(*plan.common, "--dtype", args.dtype))
        arms = seeded_arms(args, plan, Path(scratch))
        at_once = not args.dry_cpu  # memory is short there, and each server profiles it
        with serving_fleet(arms, plan, deadline, at_once, ours_too=True) as engines:
            num_missing = len(arms) - len(engines)
            warm_up(engines, prompts[args.phases[0]][:1])
            num_missing += run_cells(
                engines, prompts, args, deadline, record, lambda: write_run(record, path)
            )
        keep_logs(arms, plan.folder, path.with_suffix(".log"))
        record["servers"] = [engine.measured for engine in engines]
        write_run(record, path)
    result = sampling_summary.merged([record])
    print(sampling_tables.cell_table(result))
    print(sampling_tables.figure_table(result))
    if num_missing:
        print(f"{num_missing} servers or cells are missing, see above")
    return 1 if num_missing else 0


def seeded_arms(args: argparse.Namespace, plan: Plan, scratch: Path) -> list[Arm]:
    """Returns the arms, each with a random seed of its own and with the draft that it needs."""
    arms = []
    for name in args.arms:
        arm = SAMPLED_ARMS[name]
        extra = (*arm.extra, "--random-seed", str(seed_of(args.seed, name)))
        if BY_REJECTION[0] in arm.extra:
            draft = widen_head(plan.pair.draft, plan.pair.target, scratch / "wide-head")
            extra += ("--speculative-draft-model-path", str(draft))
        arms.append(replace(arm, extra=extra))
    return arms


def seed_of(seed: int, arm: str) -> int:
    """Returns an arm's random seed: arms of equal seeds could draw the same, and seem too equal."""
    return 1000 * seed + list(SAMPLED_ARMS).index(arm)


def warm_up(engines: Sequence[Engine], prompts: Sequence[Sequence[int]]) -> None:
    """Lets kernels be compiled, first by one engine of either kind, then for all the others."""

    def send(engine: Engine) -> dict[str, Any]:
        engine.server.command(policy=engine.arm.policy)
        for sampling in CELLS.values():
            wanted = {**sampling, "max_new_tokens": 8}
            post_generate(engine.server.url, prompts, wanted, FIRST_ANSWER_S)
        return {}

    firsts = {bool(engine.arm.speculative): engine for engine in reversed(engines)}
    in_parallel(list(firsts.values()), send)
    in_parallel(engines, send)


def run_cells(
    engines: Sequence[Engine],
    prompts: dict[str, list[list[int]]],
    args: argparse.Namespace,
    deadline: float,
    record: dict[str, Any],
    keep: Callable[[], None],
) -> int:
    """Runs the cells while there is time; returns how many of an arm or cell are missing."""
    num_missing, longest_s = 0, 0.0
    chosen = {f"{phase} 0": prompts[phase][0] for phase in args.phases}
    num_batches = -(-args.samples // args.batch)
    load = Load(list(chosen.values()), num_batches, args.batch, args.in_flight, args.new_tokens)
    for number, name in enumerate(args.cells):
        start = time.monotonic()
        if start + longest_s > deadline:
            print(f"{name}: left out at the deadline", flush=True)
            num_missing += len(engines)
            continue
        if name == GREEDY:
            done = greedy_cell(engines, prompts, args)
            record["greedy"] += done
            num_missing += (len(engines) - 1) * len(args.concurrency) - len(done)
        else:
            done = in_parallel(engines, partial(sample, cell=name, load=load, number=number))
            for each in done:
                each |= {"seed": seed_of(args.seed, each["arm"]), "prompts": list(chosen)}
            record["samples"] += done
            num_missing += len(engines) - len(done)
        keep()
        longest_s = max(longest_s, time.monotonic() - start)
        print(f"{name}: {time.monotonic() - start:.1f} s", flush=True)
    return num_missing


def sample(engine: Engine, cell: str, load: Load, number: int) -> dict[str, Any]:
    """Samples one arm; returns how often each token came, by prompt and position."""
    seed = 1000 * number + seed_of(1, engine.arm.name)
    engine.server.command(policy=engine.arm.policy, seed=seed)
    sampling = {**CELLS[cell], "max_new_tokens": load.new_tokens, "ignore_eos": True}
    rows = [row % len(load.prompts) for row in range(load.batch_size)]
    batch = [load.prompts[row] for row in rows]
    counts = [[Counter[str]() for _ in range(load.new_tokens)] for _ in load.prompts]

    def send(_: int) -> list[dict[str, Any]]:
        return post_generate(engine.server.url, batch, sampling)

    with ThreadPoolExecutor(load.in_flight) as clients:
        for answers in clients.map(send, range(load.num_batches)):
            for row, answer in zip(rows, answers, strict=True):
                for counter, token in zip(counts[row], answer["output_ids"], strict=True):
                    counter[str(token)] += 1
    depths = list(depths_of(engine.server.rounds()))
    return {
        "cell": cell,
        "arm": engine.arm.name,
        "counts": [[dict(counter) for counter in positions] for positions in counts],
        "rounds": dict(Counter(depths)),
        "num_switches": sum(one != other for one, other in pairwise(depths)),
    }


def depths_of(rounds: Sequence[Sequence[Any]]) -> Iterator[str]:
    """Yields the depth of every decode round, in order."""
    for fields in rounds:
        each = Round(*fields)
        if each.batch_size:
            width = each.num_draft_tokens
            yield "none" if width is None else str(width - 1)


def greedy_cell(
    engines: Sequence[Engine], prompts: dict[str, list[list[int]]], args: argparse.Namespace
) -> list[dict[str, Any]]:
    """Returns, per arm and concurrency, how far each greedy text is that of `none`."""
    every = [prompt for phase in prompts.values() for prompt in phase]

    def texts(engine: Engine) -> dict[str, Any]:
        engine.server.command(policy=engine.arm.policy)
        answered = {
            at_once: generate_closed(engine.server.url, every, args.greedy_tokens, at_once)
            for at_once in args.concurrency
        }
        return {
            "arm": engine.arm.name,
            "texts": {
                at_once: [answer["output_ids"] for answer in answers]
                for at_once, answers in answered.items()
            },
        }

    by_arm = {each["arm"]: each["texts"] for each in in_parallel(engines, texts)}
    reference = by_arm.pop(NONE, {})
    return [
        {
            "arm": arm,
            "seed": args.seed,
            "concurrency": at_once,
            "agreed": [
                agreement(mine, theirs)
                for mine, theirs in zip(by_arm[arm][at_once], reference[at_once], strict=True)
            ],
        }
        for arm in by_arm
        for at_once in reference
    ]


def merge(args: argparse.Namespace) -> int:
    """Writes the result file from run files."""
    result = sampling_summary.merged(read_runs(args.files))
    return publish(args, result, sampling_tables.cell_table, sampling_tables.figure_table)


def main() -> int:
    """Runs one command."""
    return run_command(parser(), run, merge)


if __name__ == "__main__":
    sys.exit(main())
