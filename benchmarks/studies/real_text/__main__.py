"""Real text: nothing injected, no dummy weights. Which depth serves it, and does ours keep up?

Closed loops of 1 to 256 clients ask the Qwen2.5-Coder pair what it was not trained on: one domain
alone, the domains in phases, all mixed. Answers end where the target ends them, at NEW_TOKENS at
the latest. Every arm answers the same requests, with room for all clients, who are busy from the
first to the last of those that are measured. A static depth that is far behind in a cell is left
out of its later repeats, and of those of later visits (--earlier). Before each pass servers forget
what they wrote. Greedy texts are compared with those of no speculation.

On a machine with a GPU, from the project's root (T: what benchmarks/lab/pack_pair.py unpacked, H:
the head, unpacked by examples/training/packing.py, P: prompts.json; benchmarks/gpus.sh shares the
traffic out to four GPUs):

    python3 -m benchmarks.studies.real_text run --target T --draft H --prompts P \\
        --git-sha SHA --out $OUT --tag 1 --deadline 1200

With --before COMMIT=FOLDER an earlier commit's `goodput` answers the same requests.

With arms whose draft is a table of what was written, on text that repeats (summary.TABLE_TRAFFIC):

    python3 -m benchmarks.studies.real_text run --target T --prompts P --git-sha SHA --out $OUT \\
        --arms none,static-ngram-1,static-ngram-3,static-ngram-7,static-ngram-15,goodput-ngram \\
        --traffic edits,quotes,chat --concurrency 1,8,64 --tag n1 --deadline 1200

Then:

    python3 -m benchmarks.studies.real_text merge runs/real-text-*.json \\
        --result benchmarks/results/current/real-text-h200.json.xz
"""

import argparse
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain, cycle, islice, product
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.lab.arms import ARMS, add_before, earlier
from benchmarks.lab.fleet import Engine, abort_all, keep_logs, serving_fleet
from benchmarks.lab.load import Round, decodes_of, post_generate, post_json, steps_of
from benchmarks.lab.models import read_prompts
from benchmarks.lab.run_files import (
    add_merge,
    begin_run,
    publish,
    read_runs,
    run_command,
    write_run,
)
from benchmarks.lab.settings import add_fleet_flags, fleet_plan, numbers, words
from benchmarks.studies.real_text import summary
from benchmarks.studies.real_text.pace import paces, trail

NEW_TOKENS = 256
# Measured requests of a pass: two a client, and more where clients are few. What a host's cores
# give changes within seconds: many short passes tell more than few long ones. With one a client,
# 41 % of a visit to 8 and 256 clients was measured; the rest went by before and behind.
MEASURED_OF_EACH, MEASURED_OF_ONE = 2, 8  # the latter times the root of the clients
# Requests before them at least, where all are of one kind. The pass before had another, and a
# policy may take some requests to see that: phases are there to show it. Up to 6e34aa9 a lone
# client had one.
FEWEST_BEFORE = 8
# Of /server_info, at the end of a pass: why did it choose so?
KNOWN = ("decisions", "runs", "interruptions", "costs", "cut_runs")
MAX_TOTAL_TOKENS = 114688  # 256 requests of 448 tokens; prompts have 100 on average
MOST_CLIENTS = 256
# Behind the arguments of every fleet, so that they win.
ROOM = (
    *("--max-running-requests", str(MOST_CLIENTS)),
    *("--cuda-graph-max-bs-decode", str(MOST_CLIENTS)),
)
CLOSING_S = 30.0
IDLE_TIMEOUT_S = 10.0  # after a pass, until aborted requests are gone


class Cell(NamedTuple):
    """What is asked, by how many clients, how it is drawn."""

    traffic: str
    concurrency: int
    temperature: float


class Request(NamedTuple):
    """A prompt, whether its answer is measured, and where it ends at the latest, if not there."""

    prompt: Sequence[int]
    is_measured: bool
    most_tokens: int | None = None


class Answer(NamedTuple):
    """What a client got for a measured request."""

    place: int  # in the list of requests
    text: list[int]
    sent_ns: int
    done_ns: int


def parser() -> argparse.ArgumentParser:
    """Returns the command line."""
    top = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = top.add_subparsers(dest="command", required=True)
    run_ = commands.add_parser("run")
    run_.add_argument("--prompts", type=Path, required=True, help="token ids by domain, JSON")
    run_.add_argument("--arms", type=words, default=summary.ARMS)
    run_.add_argument("--traffic", type=words, default=(*summary.OF_ALL, *summary.DOMAINS))
    run_.add_argument("--concurrency", type=numbers, default=summary.CONCURRENCY)
    run_.add_argument("--temperature", type=float, default=0.0)
    run_.add_argument("--new-tokens", type=int, default=NEW_TOKENS)
    run_.add_argument(
        "--earlier", type=Path, nargs="+", default=[], help="run files: who was far behind there"
    )
    run_.add_argument(
        "--trail", action="store_true", help="keep every round, and what ours knew, in run files"
    )
    add_fleet_flags(run_, MAX_TOTAL_TOKENS)
    add_before(run_)
    run_.set_defaults(repeats=9, context_length=0)
    add_merge(commands)
    return top


def run(args: argparse.Namespace) -> int:
    """Measures every cell, repeat by repeat, until the deadline; returns 1 if a pass is missing."""
    deadline = time.monotonic() + args.deadline - CLOSING_S
    record, path = begin_run(args, "real-text")
    passes: list[dict[str, Any]] = []
    record["passes"] = passes
    arms = [*(ARMS[name] for name in args.arms), *earlier(ARMS[summary.OURS], args.before)]
    prompts = prompts_of(args)
    known = [each for record in read_runs(args.earlier) for each in record["passes"]]
    with tempfile.TemporaryDirectory(prefix="real-text-bench-") as scratch:
        plan = fleet_plan(args, Path(scratch))
        room = () if args.dry_cpu else ROOM
        plan = replace(plan, common=(*plan.common, *room), inject_seed=None)
        with serving_fleet(arms, plan, deadline, at_once=not args.dry_cpu) as engines:
            num_missing = len(arms) - len(engines)
            ends = {min(args.concurrency), max(args.concurrency)}
            for engine, concurrency in product(engines, ends):  # compiles and warms caches
                attempt(engine, Cell(args.traffic[-1], concurrency, 0.0), prompts, 0, args)
            for repeat, cell in every_pass(args):
                behind = summary.left_behind([*known, *passes], cell)
                texts = {}
                for engine in in_turn(engines, repeat):
                    if engine.arm.name in behind:
                        continue
                    over = time.monotonic() > deadline
                    found = None if over else attempt(engine, cell, prompts, repeat, args)
                    if found is None:
                        num_missing += 1
                        continue
                    texts[engine.arm.name], measured = found
                    where = {"arm": engine.arm.name, **cell._asdict(), "repeat": repeat}
                    passes.append({**where, **measured})
                if not cell.temperature and "none" in texts:
                    add_agreement(passes[-len(texts) :], texts)
                write_run(record, path)
        record["servers"] = [engine.measured for engine in engines]
        keep_logs(arms, plan.folder, path.with_suffix(".log"))
    write_run(record, path)
    print(summary.cell_table(summary.build_result(record["provenance"], passes)))
    print(f"{num_missing} servers or passes are missing")
    return 1 if num_missing else 0


def prompts_of(args: argparse.Namespace) -> dict[str, list[list[int]]]:
    """Returns token ids by domain.

    Raises:
        SystemExit: The file lacks a domain.
    """
    prompts = read_prompts(args.prompts)
    asked = set(args.traffic) - set(summary.OF_ALL)
    if len(asked) < len(args.traffic):
        asked |= set(summary.DOMAINS)
    if missing := asked - prompts.keys():
        raise SystemExit(
            f"--prompts {args.prompts} lacks {', '.join(sorted(missing))}; allowed is what "
            "`pack_pair prompts qwen-coder` writes."
        )
    return prompts


def every_pass(args: argparse.Namespace) -> Iterator[tuple[int, Cell]]:
    """Yields repeats and their cells, each repeat another one first."""
    cells = list(product(args.traffic, args.concurrency))
    for repeat in range(args.first_repeat, args.first_repeat + args.repeats):
        first = repeat * len(args.concurrency) % len(cells)
        for traffic, concurrency in (*cells[first:], *cells[:first]):
            yield repeat, Cell(traffic, concurrency, args.temperature)


def in_turn(engines: Sequence[Engine], repeat: int) -> list[Engine]:
    """Returns the engines, each repeat another one first."""
    first = repeat % max(len(engines), 1)
    return [*engines[first:], *engines[:first]]


def requests_of(
    cell: Cell, prompts: Mapping[str, Sequence[Sequence[int]]], repeat: int
) -> list[Request]:
    """Returns the requests of a pass, the same for every arm.

    Those that are measured come after as many as there are clients, and eight at least. They end
    anywhere, so that clients are in different parts of an answer. Others follow, so that all are
    served to the end. A phase has a measured request for every client, and two at least, and
    nothing before the first tells of the others.
    """
    rng = random.Random(f"{cell.traffic} {cell.concurrency} {repeat}")
    around = cell.concurrency
    number = max(MEASURED_OF_EACH * around, round(MEASURED_OF_ONE * around**0.5))
    if cell.traffic == "phases":
        share = max(around, 2)
        parts = [shuffled_of(prompts[domain], rng, share) for domain in summary.DOMAINS]
        measured = list(chain.from_iterable(parts))
        before, after = parts[0][:around], parts[-1][:around]
    else:
        alone = prompts.get(cell.traffic)
        every = alone or [each for domain in summary.DOMAINS for each in prompts[domain]]
        first = max(around, FEWEST_BEFORE)
        order = shuffled_of(every, rng, first + number + around)
        before, measured, after = order[:first], order[first:-around], order[-around:]
    return [
        *(Request(prompt, False, rng.randint(1, NEW_TOKENS)) for prompt in before),
        *(Request(prompt, True) for prompt in measured),
        *(Request(prompt, False) for prompt in after),
    ]


def shuffled_of(
    prompts: Sequence[Sequence[int]], rng: random.Random, number: int
) -> list[Sequence[int]]:
    """Returns ``number`` prompts in a drawn order, from the first again when they run out."""
    order = list(prompts)
    rng.shuffle(order)
    return list(islice(cycle(order), number))


def attempt(
    engine: Engine,
    cell: Cell,
    prompts: Mapping[str, Sequence[Sequence[int]]],
    repeat: int,
    args: argparse.Namespace,
) -> tuple[list[list[int]], dict[str, Any]] | None:
    """Runs one closed loop; returns the measured texts and what they took; None if it failed."""
    sampling = {"max_new_tokens": args.new_tokens, "temperature": cell.temperature}
    try:
        forget_texts(engine.server.url)
        engine.server.rounds()
        answers = answers_of(
            engine.server.url, requests_of(cell, prompts, repeat), cell.concurrency, sampling
        )
        rounds = engine.server.rounds()
        spec = engine.server.internal_state().get("adaptive_spec") if args.trail else None
    except (RuntimeError, ValueError, OSError) as error:  # the other arms go on
        print(f"{engine.arm.name} {cell}: {error!r}", flush=True)
        return None
    measured = as_pass(answers, cell.concurrency, rounds)
    if args.trail:
        measured["trail"] = trail([Round(*fields) for fields in rounds])
    if spec:
        measured["known"] = {name: spec.get(name) for name in KNOWN}  # ema has fewer
    return [each.text for each in answers], measured


def forget_texts(url: str) -> None:
    """Empties a server's caches, so that no table drafts what an earlier pass wrote.

    Raises:
        OSError: The server does not become idle.
    """
    post_json(f"{url}/flush_cache?timeout={IDLE_TIMEOUT_S}", {}, 2 * IDLE_TIMEOUT_S)


def answers_of(
    url: str, requests: Sequence[Request], concurrency: int, sampling: Mapping[str, Any]
) -> list[Answer]:
    """Keeps all clients busy until the measured requests are answered; returns those answers.

    The others that are sent last come again and again meanwhile, and are aborted at the end.

    Raises:
        OSError: A request failed; the clients stop.
    """
    queue = enumerate(chain(requests, cycle(requests[-concurrency:])))
    num_measured = sum(each.is_measured for each in requests)
    found: list[Answer] = []
    lock, is_over = threading.Lock(), threading.Event()

    def serve() -> None:
        while not is_over.is_set():
            with lock:
                place, request = next(queue)
            sent_ns = time.perf_counter_ns()
            try:
                asked = {**sampling}
                if request.most_tokens is not None:
                    asked["max_new_tokens"] = min(request.most_tokens, asked["max_new_tokens"])
                (answer,) = post_generate(url, [request.prompt], asked)
            except OSError:  # an aborted request may be answered with an error
                if is_over.is_set():
                    return
                is_over.set()
                raise
            if request.is_measured:
                text = list(answer["output_ids"])
                found.append(Answer(place, text, sent_ns, time.perf_counter_ns()))
                if len(found) == num_measured:
                    is_over.set()
                    abort_all(url)

    with ThreadPoolExecutor(concurrency) as clients:
        for client in [clients.submit(serve) for _ in range(concurrency)]:
            client.result()
    return sorted(found)


def as_pass(
    answers: Sequence[Answer], concurrency: int, rounds: Sequence[Sequence[Any]]
) -> dict[str, Any]:
    """Returns a pass as it is kept.

    All clients are served all the time, so each measured request took its share of that time: what
    passed between sending it and having its answer, over the number of clients.
    """
    start_ns, end_ns = min(each.sent_ns for each in answers), max(each.done_ns for each in answers)
    steps: Counter[str] = Counter()
    within = [each for fields in rounds if start_ns < (each := Round(*fields)).time_ns <= end_ns]
    for each in within:
        if each.batch_size:
            steps[steps_of(each)] += decodes_of(each)
    waited_ns = sum(each.done_ns - each.sent_ns for each in answers)
    return {
        "num_tokens": sum(len(each.text) for each in answers),
        "seconds": round(waited_ns / concurrency / 1e9, 6),
        "rounds": dict(sorted(steps.items())),
        "paces": paces(within),
    }


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
