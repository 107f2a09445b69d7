"""Does a zero-step round give what a round without speculation gives?

Two servers alive together, `none` and `zero`: ours by default, whose policy is kept at zero steps
and chooses only how many decodes a round runs. Windows of the two take turns. Between two tokens of
a stream lies the time from one round's result to the next, or none within a run. Before the first
window ours has stayed at zero steps for `--stay-s`: the longer it has, the less often its draft is
caught up whole (loop/catch_up.py). `text` is taken from a result of studies/transition with the
SmolLM2 pair, where the policy chooses all. With `--before` rounds of one decode are compared, too:
ours (`single`) and an earlier commit's (`before`).

On the machine with the H200, from the project's root (T as in studies/transition; 150 s each):

    python3 -m benchmarks.studies.never_below_none run --git-sha SHA --out $OUT --tag 8b
    python3 -m benchmarks.studies.never_below_none run --target T --model smollm2 \\
        --git-sha SHA --out $OUT --tag smollm2
    python3 -m benchmarks.studies.never_below_none merge runs/never-below-none-*.json \\
        --text benchmarks/results/archive/transition-smollm2-h100.json.xz \\
        --result benchmarks/results/current/never-below-none-h200.json.xz
"""

import argparse
import itertools
import math
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.inject.engine import SINGLE, STEPS
from benchmarks.lab.arms import OURS, Arm, add_before, earlier
from benchmarks.lab.fleet import (
    Engine,
    Visit,
    keep_logs,
    new_token_limit,
    serving_fleet,
    visit_rounds,
)
from benchmarks.lab.load import SKIPPED_ROUNDS, decodes_of, full_run
from benchmarks.lab.models import prompt_ids
from benchmarks.lab.run_files import (
    add_merge,
    begin_run,
    publish,
    read_runs,
    run_command,
    write_run,
)
from benchmarks.lab.settings import PYTHON_TREE, add_fleet_flags, fleet_plan, numbers
from benchmarks.lab.visits import PROMPT_SEED
from benchmarks.stats.differences import GPU, differences, keys, measured_on
from benchmarks.stats.figures import HEADER, Figure, Ratio, ratio_at_same_place, stated
from benchmarks.stats.provenance import check_same_code
from benchmarks.stats.result_file import read_result
from benchmarks.stats.tables import table

NONE, ZERO, BEFORE = "none", "zero", "before"
ACCEPTANCE = "0.3"  # of drafts that nobody proposes
MAX_TOTAL_TOKENS = 65536
STAY_S = 30.0  # of one request, whose context has an end
LEAST_SMALL, LEAST_LARGE, SMALL_BATCH = 0.99, 0.985, 40  # of none, by batch size

Raw = Mapping[str, Any]


def parser() -> argparse.ArgumentParser:
    """Returns the command line."""
    top = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = top.add_subparsers(dest="command", required=True)
    run_ = commands.add_parser("run")
    run_.add_argument("--model", default="8b", help="what the result calls it [8b]")
    run_.add_argument("--batches", type=numbers, default=(1, 4, 16, 40, 64, 128))
    run_.add_argument("--settle-s", type=float, default=1.0, help="before a window [1.0]")
    run_.add_argument("--window-s", type=float, default=1.0)
    run_.add_argument("--stay-s", type=float, default=60.0, help="at zero steps before [60]")
    add_fleet_flags(run_, MAX_TOTAL_TOKENS)
    add_before(run_)
    run_.set_defaults(repeats=3)
    add_merge(commands)
    merge_ = commands.choices["merge"]
    merge_.add_argument("--text", type=Path, help="a result of studies/transition, same code")
    return top


def arms_of(before: str | None) -> list[Arm]:
    """Returns the servers; the last only where an earlier commit is named."""
    none, zero = Arm(NONE, environment=PYTHON_TREE), Arm(ZERO, OURS, environment=PYTHON_TREE)
    return [none, zero, *(replace(arm, name=BEFORE) for arm in earlier(zero, before))]


def visits_of(arms: Sequence[str]) -> list[tuple[str, str, str]]:
    """Returns what is measured in turn: what windows are called, the server, its policy."""
    visits = [(NONE, NONE, "own"), (ZERO, ZERO, f"{STEPS}0")]
    if BEFORE in arms:
        visits += [(SINGLE, ZERO, SINGLE), (BEFORE, BEFORE, SINGLE)]
    return [visit for visit in visits if visit[1] in arms]


def run(args: argparse.Namespace) -> int:
    """Measures every batch size; returns 1 if a window is missing."""
    deadline = time.monotonic() + args.deadline
    record, path = begin_run(args, "never-below-none")
    record |= {"model": args.model, "windows": [], "servers": []}
    arms = arms_of(args.before)
    num_missing = 0
    with tempfile.TemporaryDirectory(prefix="zero-bench-") as scratch:
        plan = fleet_plan(args, Path(scratch))
        prompts = prompt_ids(max(args.batches), plan.prompt_tokens, PROMPT_SEED)
        with serving_fleet(arms, plan, deadline, at_once=True, ours_too=True) as engines:
            by_name = {engine.arm.name: engine for engine in engines}
            visits = visits_of(list(by_name))
            stay(by_name[ZERO], args, prompts)
            # Every batch size once before any twice: at the deadline all have as many pairs.
            for repeat, size in itertools.product(range(1, args.repeats + 1), args.batches):
                if time.monotonic() > deadline:
                    print(f"left out at the deadline: {size}, pass {repeat}", flush=True)
                    num_missing += 1
                    continue
                limit = new_token_limit(
                    args.max_total_tokens, args.context_length, plan.prompt_tokens, size
                )
                for name, server, policy in visits if repeat % 2 else reversed(visits):
                    engine = by_name[server]
                    wanted = Visit(
                        ACCEPTANCE, size, repeat, args.settle_s, args.window_s, policy=policy
                    )
                    try:
                        rounds, _ = visit_rounds(engine, wanted, prompts[:size], limit)
                        window = window_of(rounds, size, args.settle_s)
                    except (RuntimeError, ValueError, OSError) as error:
                        print(f"{name} {size}: {error}", flush=True)
                        num_missing += 1
                        continue
                    place = {"arm": name, "batch": size, "repeat": repeat}
                    record["windows"].append({**place, **window})
                write_run(record, path)
            record["servers"] = [engine.measured for engine in engines]
            write_run(record, path)
        keep_logs(arms, Path(scratch), path.with_suffix(".log"))
    write_run(record, path)
    print(figure_table(build_result(record["provenance"], [record], {})))
    return int(num_missing > 0)


def stay(engine: Engine, args: argparse.Namespace, prompts: Sequence[Sequence[int]]) -> None:
    """Keeps an engine at zero steps for a while, one request after the other."""
    limit = new_token_limit(args.max_total_tokens, args.context_length, args.prompt_tokens, 1)
    num_stays = math.ceil(args.stay_s / STAY_S)
    for _ in range(num_stays):
        seconds = args.stay_s / num_stays
        wanted = Visit(ACCEPTANCE, 1, 0, seconds, args.window_s, policy=f"{STEPS}0")
        visit_rounds(engine, wanted, prompts[:1], limit)


def window_of(rounds: Sequence[Sequence[Any]], size: int, settle_s: float) -> dict[str, Any]:
    """Returns tokens, seconds, decodes of rounds and the gaps between them, in ms.

    Raises:
        ValueError: Too few rounds in which all requests lived.
    """
    run_ = full_run(rounds, size)[SKIPPED_ROUNDS:]
    if run_:
        start_ns = run_[0].time_ns + int(settle_s * 1e9)
        run_ = [each for each in run_ if each.time_ns >= start_ns]
    if len(run_) < SKIPPED_ROUNDS:
        raise ValueError(f"batch {size}: {len(run_)} rounds after {settle_s} s; run longer.")
    gaps = [(late.time_ns - early.time_ns) / 1e6 for early, late in itertools.pairwise(run_)]
    return {
        "num_tokens": sum(each.num_tokens for each in run_[1:]),
        "seconds": round((run_[-1].time_ns - run_[0].time_ns) / 1e9, 6),
        "decodes": dict(sorted(Counter(str(decodes_of(each)) for each in run_).items())),
        "gaps_ms": [round(gap, 2) for gap in gaps],
    }


def gap_p99_ms(windows: Sequence[Raw]) -> float:
    """Returns the 99th percentile of the gaps between two tokens of a stream.

    The tokens of a run come at once.
    """
    gaps: list[float] = [gap for each in windows for gap in each["gaps_ms"]]
    num_tokens = sum(
        int(decodes) * rounds for each in windows for decodes, rounds in each["decodes"].items()
    )
    gaps += [0.0] * max(num_tokens - len(gaps) - len(windows), 0)
    return sorted(gaps)[min(len(gaps) - 1, int(0.99 * len(gaps)))]


def of(record: Raw, arm: str, size: int | str) -> list[Raw]:
    """Returns the windows of an arm at a batch size."""
    return [
        each for each in record["windows"] if (each["arm"], str(each["batch"])) == (arm, str(size))
    ]


def over(record: Raw, size: int | str, arm: str, other: str) -> Ratio:
    """Returns tokens/s of an arm over those of another, window by window."""
    mine, others = (
        {each["repeat"]: each["num_tokens"] / each["seconds"] for each in of(record, name, size)}
        for name in (arm, other)
    )
    return ratio_at_same_place(mine, others)


def build_result(origin: Raw, records: Sequence[Raw], text: Raw) -> dict[str, Any]:
    """Returns the result file."""
    kept = [
        {name: record.get(name, {}) for name in ("model", "windows", "servers")}
        for record in records
    ]
    zero, single, decodes, gaps = (
        {record["model"]: dict[str, Any]() for record in kept} for _ in range(4)
    )
    for record in kept:
        model = record["model"]
        for size in dict.fromkeys(str(each["batch"]) for each in record["windows"]):
            if not (of(record, ZERO, size) and of(record, NONE, size)):
                continue
            zero[model][size] = stated(over(record, size, ZERO, NONE))
            if of(record, BEFORE, size):
                single[model][size] = stated(over(record, size, SINGLE, BEFORE))
            rounds: Counter[str] = Counter()
            for each in of(record, ZERO, size):
                rounds.update(each["decodes"])
            decodes[model][size] = dict(sorted(rounds.items()))
            gaps[model][size] = {arm: gap_p99_ms(of(record, arm, size)) for arm in (ZERO, NONE)}
    return {
        "provenance": dict(origin),
        "zero_over_none": zero,
        "single_over_before": single,
        "decodes": decodes,
        "gap_p99_ms": gaps,
        "text": dict(text),
        "raw": kept,
    }


def text_of(path: Path | None) -> dict[str, Any]:
    """Returns tokens/s by workload, requests and arm."""
    text: dict[str, Any] = {}
    for cell in read_result(path)["cells"] if path is not None else ():
        of_workload = text.setdefault(cell["workload"], {})
        of_workload[str(cell["concurrency"])] = cell["tokens_per_s"]
    return text


def figure_table(result: Raw) -> str:
    """Returns every ratio with its verdict, and the runs."""
    figures, rows = [], []
    for record in result["raw"]:
        model = record["model"]
        for size, cell in result["zero_over_none"][model].items():
            limit = LEAST_SMALL if int(size) <= SMALL_BATCH else LEAST_LARGE
            claim = f"{model}, batch {size}: zero steps over none"
            figures.append(Figure(claim, over(record, size, ZERO, NONE), limit))
            if size in result["single_over_before"][model]:
                claim = f"{model}, batch {size}: one decode a round over before"
                figures.append(Figure(claim, over(record, size, SINGLE, BEFORE), 1.0))
            gap, runs = result["gap_p99_ms"][model][size], result["decodes"][model][size]
            rows.append((model, size, cell["ratio"], runs, gap[ZERO], gap[NONE]))
    head = ("model", "batch", "over none", "decodes: rounds", "gap p99 ms", "of none")
    return "\n".join((table(HEADER, [each.row() for each in figures]), table(head, rows)))


def check_never_below_none(result: Raw, gpu: str = GPU) -> list[str]:
    """Returns what is wrong with the shape or the figures of a result."""
    wanted = {"provenance", "zero_over_none", "single_over_before", "decodes", "gap_p99_ms"}
    wanted |= {"text", "raw"}
    problems = keys("file", result, wanted)
    if problems:
        return problems
    again = build_result(result["provenance"], result["raw"], result["text"])
    again["raw"] = result["raw"]  # older runs kept more
    return [*measured_on(result["provenance"], gpu), *differences(result, again, "")]


def merge(args: argparse.Namespace) -> int:
    """Writes the result file from run files."""
    records = read_runs(args.files)
    result = build_result(check_same_code(records), records, text_of(args.text))
    return publish(args, result, figure_table)


def main() -> int:
    """Runs one command."""
    return run_command(parser(), run, merge)


if __name__ == "__main__":
    sys.exit(main())
