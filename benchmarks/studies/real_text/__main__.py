"""Real text: nothing injected, no dummy weights. Which depth serves it, and does ours keep up?

Closed loops of 1 to 256 clients ask the Qwen2.5-Coder pair what it was not trained on: one domain
alone, the domains in phases, all mixed. Answers end where the target ends them, at NEW_TOKENS at
the latest. All arms have the same requests in the same order, and room for all clients; a static
depth that is clearly behind in a cell is left out of its later repeats. Greedy texts are compared
with those of no speculation, request by request.

On a machine with a GPU, from the project's root (T: what benchmarks/lab/pack_pair.py unpacked, H:
the head, unpacked by examples/training/packing.py, P: prompts.json; seven servers fit into 80 GB;
with several GPUs a command on each, CUDA_VISIBLE_DEVICES, --port, --tag and --first-repeat apart):

    python3 -m benchmarks.studies.real_text run --target T --draft H --prompts P \\
        --git-sha SHA --out $OUT --tag 1 --deadline 1200
    python3 -m benchmarks.studies.real_text merge runs/real-text-*.json \\
        --result benchmarks/results/current/real-text-h200.json.xz
"""

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain, cycle, islice, product
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.lab.arms import ARMS
from benchmarks.lab.fleet import Engine, keep_logs, serving_fleet
from benchmarks.lab.load import Round, post_generate
from benchmarks.lab.models import read_prompts
from benchmarks.lab.run_files import (
    add_merge,
    begin_run,
    publish,
    read_runs,
    run_command,
    write_run,
)
from benchmarks.lab.settings import (
    CPU_COMMON,
    FLEET_COMMON,
    add_fleet_flags,
    numbers,
    plan_with,
    words,
)
from benchmarks.studies.real_text import summary

NEW_TOKENS = 256
FEWEST_ANSWERED = 8  # in a window
SETTLE_S = 0.5  # from the moment at which all clients are served
MAX_TOTAL_TOKENS = 131072  # 256 requests of 500 tokens
MOST_CLIENTS = 256
GPU_COMMON = (
    *("--mem-fraction-static", "0.8", "--max-running-requests", str(MOST_CLIENTS)),
    *("--cuda-graph-max-bs-decode", str(MOST_CLIENTS), "--skip-tokenizer-init"),
    *("--random-seed", "1"),
)
CLOSING_S = 30.0


class Cell(NamedTuple):
    """What is asked, by how many clients, how it is drawn."""

    traffic: str
    concurrency: int
    temperature: float


def parser() -> argparse.ArgumentParser:
    """Returns the command line."""
    top = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = top.add_subparsers(dest="command", required=True)
    run_ = commands.add_parser("run")
    run_.add_argument("--prompts", type=Path, required=True, help="token ids by domain, JSON")
    run_.add_argument("--arms", type=words, default=summary.ARMS)
    run_.add_argument("--traffic", type=words, default=(*summary.OF_ALL, *summary.DOMAINS))
    run_.add_argument("--concurrency", type=numbers, default=(1, 8, 32, 128, 256))
    run_.add_argument("--temperature", type=float, default=0.0)
    run_.add_argument("--new-tokens", type=int, default=NEW_TOKENS)
    add_fleet_flags(run_, MAX_TOTAL_TOKENS)
    run_.set_defaults(repeats=9, context_length=0)
    add_merge(commands)
    return top


def run(args: argparse.Namespace) -> int:
    """Measures every cell, repeat by repeat, until the deadline; returns 1 if a pass is missing."""
    deadline = time.monotonic() + args.deadline - CLOSING_S
    record, path = begin_run(args, "real-text")
    passes: list[dict[str, Any]] = []
    record["passes"] = passes
    arms = [ARMS[name] for name in args.arms]
    prompts = read_prompts(args.prompts)
    num_missing = 0
    with tempfile.TemporaryDirectory(prefix="real-text-bench-") as scratch:
        common = CPU_COMMON if args.dry_cpu else GPU_COMMON
        pool = ("--max-total-tokens", str(args.max_total_tokens))
        plan = plan_with(args, Path(scratch), (*common, *FLEET_COMMON, *pool))
        plan = replace(plan, inject_seed=None)
        with serving_fleet(arms, plan, deadline, at_once=not args.dry_cpu) as engines:
            for engine in engines:  # compiles and warms caches
                ask(engine, Cell("mixed", min(args.concurrency), 0.0), prompts, 0, args.new_tokens)
            for repeat, cell in every_pass(args):
                behind = summary.left_behind(passes, cell)
                texts = {}
                for engine in in_turn(engines, repeat):
                    if engine.arm.name in behind:
                        continue
                    if time.monotonic() > deadline:
                        num_missing += 1
                        continue
                    answers, window = ask(engine, cell, prompts, repeat, args.new_tokens)
                    texts[engine.arm.name] = answers
                    where = {"arm": engine.arm.name, **cell._asdict(), "repeat": repeat}
                    passes.append({**where, **window})
                if not cell.temperature and "none" in texts:
                    add_agreement(passes[-len(texts) :], texts)
                write_run(record, path)
            record["servers"] = [engine.measured for engine in engines]
        keep_logs(arms, plan.folder, path.with_suffix(".log"))
    write_run(record, path)
    print(summary.cell_table(summary.build_result(record["provenance"], passes)))
    print(f"{num_missing} passes are missing")
    return 1 if num_missing else 0


def every_pass(args: argparse.Namespace) -> Iterator[tuple[int, Cell]]:
    """Yields repeats and their cells."""
    repeats = range(args.first_repeat, args.first_repeat + args.repeats)
    for repeat, traffic, concurrency in product(repeats, args.traffic, args.concurrency):
        yield repeat, Cell(traffic, concurrency, args.temperature)


def in_turn(engines: Sequence[Engine], repeat: int) -> list[Engine]:
    """Returns the engines, each repeat another one first."""
    first = repeat % max(len(engines), 1)
    return [*engines[first:], *engines[:first]]


def requests_of(
    cell: Cell, prompts: Mapping[str, Sequence[Sequence[int]]], repeat: int
) -> list[Sequence[int]]:
    """Returns the prompts of a pass, the same for every arm.

    All clients answer once before the last request is sent. A phase is as long for each of them.
    """
    rng = random.Random(f"{cell.traffic} {cell.concurrency} {repeat}")
    number = cell.concurrency + max(cell.concurrency, FEWEST_ANSWERED)
    if cell.traffic == "phases":
        share = max(cell.concurrency, -(-number // len(summary.DOMAINS)))
        shuffled = [shuffled_of(prompts[domain], rng, share) for domain in summary.DOMAINS]
        return list(chain.from_iterable(shuffled))
    if cell.traffic == "mixed":
        return shuffled_of([each for domain in prompts.values() for each in domain], rng, number)
    return shuffled_of(prompts[cell.traffic], rng, number)


def shuffled_of(
    prompts: Sequence[Sequence[int]], rng: random.Random, number: int
) -> list[Sequence[int]]:
    """Returns ``number`` prompts in a drawn order, from the first again when they run out."""
    order = list(prompts)
    rng.shuffle(order)
    return list(islice(cycle(order), number))


def ask(
    engine: Engine,
    cell: Cell,
    prompts: Mapping[str, Sequence[Sequence[int]]],
    repeat: int,
    new_tokens: int,
) -> tuple[list[list[int]], dict[str, Any]]:
    """Runs one closed loop; returns the texts, and what the window saw of them."""
    server = engine.server
    sent = requests_of(cell, prompts, repeat)
    names = [f"{cell.traffic}-{cell.concurrency}-{repeat}-{idx}" for idx in range(len(sent))]
    sampling = {"max_new_tokens": new_tokens, "temperature": cell.temperature}
    last_sent_ns = 0

    def send(prompt: Sequence[int], name: str) -> list[int]:
        nonlocal last_sent_ns
        last_sent_ns = max(last_sent_ns, time.perf_counter_ns())
        (answer,) = post_generate(server.url, [prompt], sampling, rid=[name])
        return list(answer["output_ids"])

    server.command(log_requests=True)
    with ThreadPoolExecutor(cell.concurrency) as clients:
        texts = list(clients.map(send, sent, names))
    answer = server.command()
    return texts, window_of(answer, cell.concurrency, last_sent_ns)


def window_of(answer: Mapping[str, Any], concurrency: int, end_ns: int) -> dict[str, Any]:
    """Returns what was served while all clients were, but for the first SETTLE_S.

    A request's tokens count as spread evenly from its first one to its last: rounds also count
    those that a server gives behind the end of an answer.

    Raises:
        ValueError: The window is empty.
    """
    requests = answer["requests"]
    first_tokens = sorted(first_ns for _, first_ns, _, _ in requests)
    start_ns = first_tokens[concurrency - 1] + int(SETTLE_S * 1e9)
    if end_ns <= start_ns:
        raise ValueError(f"{concurrency} clients: no window of {len(requests)} requests.")
    num_tokens = sum(
        (number - 1) * share_within(first_ns, last_ns, start_ns, end_ns)
        for _, first_ns, last_ns, number in requests
    )
    steps: Counter[str] = Counter()
    for each in map(Round._make, answer["rounds"]):
        if each.batch_size and start_ns < each.time_ns <= end_ns:
            width = each.num_draft_tokens
            steps["none" if width is None else str(width - 1)] += 1
    return {
        "num_tokens": round(num_tokens, 1),
        "seconds": round((end_ns - start_ns) / 1e9, 6),
        "rounds": dict(sorted(steps.items())),
    }


def share_within(first_ns: int, last_ns: int, start_ns: int, end_ns: int) -> float:
    """Returns which share of a span lies within a window."""
    inside = min(last_ns, end_ns) - max(first_ns, start_ns)
    return max(inside, 0) / max(last_ns - first_ns, 1)


def add_agreement(passes: Sequence[dict[str, Any]], texts: Mapping[str, Sequence[Any]]) -> None:
    """Notes of every arm's pass which texts are those of no speculation: 1, or 0."""
    for each in passes:
        pairs = zip(texts[each["arm"]], texts["none"], strict=True)
        each["as_none"] = "".join(str(int(mine == other)) for mine, other in pairs)


def merge(args: argparse.Namespace) -> int:
    """Writes the result file from run files."""
    result = summary.merged(read_runs(args.files))
    return publish(args, result, summary.cell_table, summary.figure_table)


def main() -> int:
    """Runs one command."""
    return run_command(parser(), run, merge)


if __name__ == "__main__":
    sys.exit(main())
