"""Is the policy as fast as the best depth where contexts are long, and while they grow?

Llama-8B shapes, dummy weights, injected acceptance, SGLang's default attention, the model's own
context length. Windows of the arms take turns, as in the matrix. While contexts grow one batch
lives from 1,024 tokens a request to 16,384, and a window is a tenth of the way, but for the last:
all arms cover the same contexts, so their windows are compared pair by pair.

On the machine with the H200, from the project's root (three servers side by side fit its memory
with 170,000 tokens each, two with what growing needs; benchmarks/gpus.sh shares the arms out):

    python3 -m benchmarks.studies.long_context run --arms goodput,none,static-3 \\
        --git-sha SHA --out $OUT --tag a1
    python3 -m benchmarks.studies.long_context grow --arms goodput,none \\
        --git-sha SHA --out $OUT --tag g1
    # the other arms on other GPUs, with tags of their own; then anywhere:
    python3 -m benchmarks.studies.long_context merge runs/long-context-*.json \\
        --result benchmarks/results/current/long-context-h200.json.xz
"""

import argparse
import itertools
import re
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.inject.acceptance import MIXED
from benchmarks.lab.arms import ARMS, Arm
from benchmarks.lab.fleet import (
    FULL_BATCH_TIMEOUT_S,
    Engine,
    Visit,
    keep_logs,
    new_token_limit,
    serving_fleet,
    visit_rounds,
)
from benchmarks.lab.load import (
    SKIPPED_ROUNDS,
    Round,
    Window,
    as_raw,
    full_run,
    timed_windows,
    window_of,
)
from benchmarks.lab.models import CONTEXT_LENGTH, prompt_ids
from benchmarks.lab.run_files import (
    add_merge,
    begin_run,
    publish,
    read_runs,
    run_command,
    write_run,
)
from benchmarks.lab.settings import add_fleet_flags, fleet_plan, words
from benchmarks.stats.differences import differences, gaps, keys, measured_on
from benchmarks.stats.figures import HEADER, Figure, Ratio, lowest, ratio_at_same_place
from benchmarks.stats.provenance import check_same_code
from benchmarks.stats.tables import table
from benchmarks.stats.windows import WINDOW_KEYS, build_cell, by_cell, fair_best_static, kept

CELLS = "4x16384,16x4096,64x2048"
GROWTH = "16x1024-16384"
CELL = re.compile(r"(\d+)x(\d+)(?:-(\d+))?")  # requests, prompt's tokens, tokens when grown
ACCEPTANCES = ("0.5", "0.8", MIXED)
# Spans of the way that contexts grow, and how many count: whoever finishes first ends the batch.
NUM_SPANS, NUM_MEASURED = 10, 9
GROWTH_S = 400.0  # at most
SERVERS_THAT_GROW = 2  # side by side
LEAST = 0.97  # of the best static arm
REPORTED = "goodput"

Raw = Mapping[str, Any]


def parser() -> argparse.ArgumentParser:
    """Returns the command line."""
    top = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = top.add_subparsers(dest="command", required=True)
    for name, cells, tokens in (("run", CELLS, 170_000), ("grow", GROWTH, 16 * 16_500)):
        run_ = commands.add_parser(name)
        run_.add_argument("--arms", type=words, required=True, help=f"of {', '.join(ARMS)}")
        run_.add_argument("--cells", type=words, default=words(cells), help=f"[{cells}]")
        run_.add_argument("--acceptances", type=words, default=ACCEPTANCES)
        run_.add_argument("--window-s", type=float, default=0.2, help="of one window [0.2]")
        run_.add_argument("--windows", type=int, default=6, help="of a visit, in a row [6]")
        run_.add_argument("--settle-s", type=float, default=0.5, help="before them [0.5]")
        add_fleet_flags(run_, tokens)
        run_.set_defaults(context_length=CONTEXT_LENGTH)
    add_merge(commands)
    return top


def size_of(cell: str) -> tuple[int, int, int]:
    """Returns a cell's requests, their prompts' tokens, and those of each when it has grown.

    Raises:
        ValueError: It is no cell.
    """
    found = CELL.fullmatch(cell)
    if found is None:
        raise ValueError(f"cell {cell!r}; allowed: REQUESTSxTOKENS or REQUESTSxTOKENS-TOKENS.")
    requests, tokens, grown = found.groups()
    return int(requests), int(tokens), int(grown or tokens)


def run(args: argparse.Namespace) -> int:
    """Runs the arms over the cells, few at a time where contexts grow; 1 if a visit is missing."""
    deadline = time.monotonic() + args.deadline
    record, path = begin_run(args, "long-context")
    record["servers"], record["windows"] = [], []
    group_size = SERVERS_THAT_GROW if args.command == "grow" else len(args.arms)
    groups = [
        args.arms[first : first + group_size] for first in range(0, len(args.arms), group_size)
    ]
    num_missing = 0
    with tempfile.TemporaryDirectory(prefix="long-bench-") as scratch:
        plan = fleet_plan(args, Path(scratch))
        for group in groups:
            arms = [ARMS[name] for name in group]
            with serving_fleet(arms, plan, deadline, at_once=True) as engines:
                num_missing += len(arms) - len(engines)
                places = itertools.product(args.cells, args.acceptances)
                for turn, (cell, acceptance) in enumerate(places):
                    first = turn % max(len(engines), 1)  # nobody is always the first
                    for engine in [*engines[first:], *engines[:first]]:
                        if time.monotonic() > deadline:
                            print(f"left out at the deadline: {engine.arm.name} {cell}", flush=True)
                            num_missing += 1
                            continue
                        windows = undrafted(record["windows"], engine.arm, cell, acceptance)
                        if not windows or args.command == "run":  # to grow takes minutes
                            windows = visit(engine, cell, acceptance, args)
                        num_missing += not windows
                        record["windows"] += windows
                    write_run(record, path)
            keep_logs(arms, plan.folder, path.with_suffix(".log"))
            record["servers"] += [engine.measured for engine in engines]
            write_run(record, path)
    print(cell_table(build_result(record["provenance"], [record])))
    return 1 if num_missing else 0


def undrafted(windows: Sequence[Raw], arm: Arm, cell: str, acceptance: str) -> list[dict[str, Any]]:
    """Returns what an arm without drafts did in a cell already: acceptance is nothing to it."""
    if arm.speculative:
        return []
    mine = [each for each in windows if (each["arm"], each["cell"]) == (arm.name, cell)]
    first = mine[0]["acceptance"] if mine else None
    return [{**each, "acceptance": acceptance} for each in mine if each["acceptance"] == first]


def visit(
    engine: Engine, cell: str, acceptance: str, args: argparse.Namespace
) -> list[dict[str, Any]]:
    """Returns the windows of one batch; none, and says so, where it was not to be measured."""
    size, prompt_tokens, last_tokens = size_of(cell)
    prompts = prompt_ids(size, prompt_tokens, args.seed)
    wanted = Visit(acceptance, size, args.first_repeat, args.settle_s, args.window_s * args.windows)
    try:
        if args.command == "grow":  # until the first request has written all its tokens
            new_tokens = last_tokens - prompt_tokens
            wanted = replace(wanted, window_s=GROWTH_S, timeout_s=GROWTH_S + FULL_BATCH_TIMEOUT_S)
            rounds, _ = visit_rounds(engine, wanted, prompts, new_tokens)
            windows = spans(rounds, size, new_tokens)
        else:
            limit = new_token_limit(args.max_total_tokens, args.context_length, prompt_tokens, size)
            rounds, _ = visit_rounds(engine, wanted, prompts, limit)
            windows = timed_windows(rounds, size, args.settle_s, args.window_s, args.windows)
    except (RuntimeError, ValueError, OSError) as error:
        print(f"{engine.arm.name} {cell} {acceptance}: {error}", flush=True)
        return []
    place = {"arm": engine.arm.name, "cell": cell, "acceptance": acceptance}
    return [
        {**place, "repeat": args.first_repeat, "place": number, **as_raw(each)}
        for number, each in enumerate(windows)
    ]


def spans(rounds: Sequence[Sequence[Any]], size: int, new_tokens: int) -> list[Window]:
    """Returns a window for every span of the tokens that a batch writes, all that it completed."""
    found, part, written = [], list[Round](), 0
    limits = [size * new_tokens * (number + 1) // NUM_SPANS for number in range(NUM_MEASURED)]
    for each in full_run(rounds, size)[SKIPPED_ROUNDS:]:
        part.append(each)
        written += each.num_tokens
        if limits and written >= limits[0]:
            found.append(window_of(part, size, len(rounds)))
            part, limits = [each], limits[1:]
    return found


def build_result(origin: Raw, records: Sequence[Raw]) -> dict[str, Any]:
    """Returns the result file: per cell and acceptance what a cell of the matrix has."""
    cells = []
    for (name, acceptance), arms in by_cell(records, "windows", ("cell", "acceptance")).items():
        windows = {arm: kept(mine, WINDOW_KEYS) for arm, mine in arms.items()}
        built = build_cell(size_of(name)[0], acceptance, windows)
        cells.append({"cell": name, **built})
    servers = [server for record in records for server in record["servers"]]
    return {"provenance": dict(origin), "cells": cells, "servers": servers}


def name_of(cell: Raw) -> str:
    """Returns a cell's name: requests, contexts and acceptance."""
    return f"{cell['cell']} {cell['acceptance']}"


def ratio(cell: Raw, over: str, under: str) -> Ratio:
    """Returns the throughput of one arm over another's, from windows at the same place."""
    mine, others = (
        {
            (each["repeat"], each["place"]): rate
            for each, rate in zip(cell["windows"][arm], cell["raw"][arm], strict=True)
        }
        for arm in (over, under)
    )
    return ratio_at_same_place(mine, others)


def ratios(result: Raw) -> list[tuple[str, str, Ratio]]:
    """Returns of every cell its name, its best static arm, and goodput over that one.

    The best is chosen on the odd windows and compared on the even ones.
    """
    found = []
    for cell in result["cells"]:
        best, even = fair_best_static(cell)
        found.append((name_of(cell), best, ratio(even, REPORTED, best)))
    return found


def cell_table(result: Raw) -> str:
    """Returns tokens/s of every arm by cell."""
    arms = list(dict.fromkeys(arm for cell in result["cells"] for arm in cell["tokens_per_s"]))
    rows = [
        (name_of(cell), *(cell["tokens_per_s"].get(arm) for arm in arms))
        for cell in result["cells"]
    ]
    return table(("cell", *arms), rows)


def figure_table(result: Raw) -> str:
    """Returns every claim with its verdict, the worst first."""
    found = ratios(result)
    worst = lowest(
        f"{REPORTED} / best static, lowest cell", [(name, one) for name, _, one in found], LEAST
    )
    rows = [worst.row()]
    rows += [Figure(f"{name}: {REPORTED} / {best}", one, LEAST).row() for name, best, one in found]
    return "\n".join((table(HEADER, rows), cell_table(result)))


def check_long_context(result: Raw) -> list[str]:
    """Returns what is wrong with the shape or the figures of a result."""
    problems = keys("file", result, {"provenance", "cells", "servers"})
    if problems:
        return problems
    there = {name_of(cell): cell for cell in result["cells"]}
    wanted = {f"{cell} {name}" for cell in words(CELLS) for name in ACCEPTANCES}
    problems += [*measured_on(result["provenance"]), *gaps("cells", there, wanted)]
    for name, cell in there.items():
        built = build_cell(cell["batch_size"], cell["acceptance"], cell["windows"])
        problems += differences(cell, {"cell": cell["cell"], **built}, name)
    return problems


def merge(args: argparse.Namespace) -> int:
    """Writes the result file from run files."""
    records = read_runs(args.files)
    return publish(args, build_result(check_same_code(records), records), figure_table)


def main() -> int:
    """Runs one command."""
    return run_command(parser(), run, merge)


if __name__ == "__main__":
    sys.exit(main())
