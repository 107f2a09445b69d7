"""What SGLang's own benchmark client says of ours and of no speculation, on real text.

`sglang.bench_serving` sends chat requests over HTTP, so many at once, and prints what users feel:
tokens per second, time to the first token, time per token. What is kept are its numbers. Both
servers have every flag at its default, but that their pool lets two fit on a GPU and they sleep
while they wait; SGLang's prefix tree is the one in Python. They answer the same requests in turn,
their prefix caches emptied before each pass.

On a machine with a GPU, from the project's root (T and H as in studies/real_text; R: what
`examples.qwen_coder.held_out --requests` writes):

    python3 -m benchmarks.studies.from_outside run --target T --draft H --requests R \\
        --git-sha SHA --out $OUT --tag 1
    python3 -m benchmarks.studies.from_outside merge runs/from-outside-*.json \\
        --result benchmarks/results/current/from-outside-h200.json.xz
"""

import argparse
import importlib.util
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.lab.arms import ARMS
from benchmarks.lab.fleet import Engine, keep_logs, serving_fleet
from benchmarks.lab.run_files import add_merge, begin_run, merge_lists, run_command, write_run
from benchmarks.lab.settings import CPU_COMMON, PYTHON_TREE, add_fleet_flags, numbers, plan_with
from benchmarks.stats.differences import GPU, differences, keys, measured_on
from benchmarks.stats.figures import (
    HEADER,
    Figure,
    Ratio,
    geometric_mean,
    ratio_at_same_place,
    stated,
)
from benchmarks.stats.tables import table

NONE, OURS = "none", "goodput"
CONCURRENCY = (1, 8, 64, 256)
FEWEST_REQUESTS, WAVES = 16, 2  # of a pass: WAVES for every client
MAX_TOTAL_TOKENS = 400_000  # 11 GB for Qwen2.5-Coder-1.5B; 256 requests need a third
CLIENT_TIMEOUT_S = 300.0
TOKENIZER_OFF = "--skip-tokenizer-init"  # text goes in and comes out here
# Else the client takes it that every answer has the tokens that it may have.
TELLS_TOKENS = {"stream_options": {"include_usage": True}}
THROUGHPUT = "output_throughput"  # tokens/s
KEPT = (
    *("completed", "duration", "total_output_tokens", THROUGHPUT, "accept_length"),
    *("median_e2e_latency_ms", "median_ttft_ms", "p99_ttft_ms", "median_tpot_ms", "p99_tpot_ms"),
)
SHOWN = (THROUGHPUT, "median_ttft_ms", "median_tpot_ms", "p99_tpot_ms")
DIGITS = 2
OVER_NONE = 0.98

Raw = Mapping[str, Any]


def parser() -> argparse.ArgumentParser:
    """Returns the command line."""
    top = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = top.add_subparsers(dest="command", required=True)
    run_ = commands.add_parser("run")
    run_.add_argument("--requests", type=Path, required=True, help="of the OpenAI API, JSON lines")
    run_.add_argument("--concurrency", type=numbers, default=CONCURRENCY)
    add_fleet_flags(run_, MAX_TOTAL_TOKENS)
    run_.set_defaults(context_length=0, repeats=5)
    add_merge(commands)
    return top


def run(args: argparse.Namespace) -> int:
    """Has both servers asked by the client, again and again; returns 1 if a pass is missing."""
    deadline = time.monotonic() + args.deadline
    record, path = begin_run(args, "from-outside")
    record |= {"passes": [], "servers": []}
    arms = [replace(ARMS[name], environment=PYTHON_TREE) for name in (NONE, OURS)]
    lines = args.requests.read_text().splitlines()
    with tempfile.TemporaryDirectory(prefix="from-outside-bench-") as scratch:
        forced = [each for each in CPU_COMMON if each != TOKENIZER_OFF] if args.dry_cpu else []
        room = ("--max-total-tokens", str(args.max_total_tokens), "--sleep-on-idle")
        plan = replace(plan_with(args, Path(scratch), (*forced, *room)), inject_seed=None)
        with serving_fleet(arms, plan, deadline, at_once=not args.dry_cpu) as engines:
            num_missing = len(arms) - len(engines)
            environment = client_environment(Path(scratch))
            for repeat in range(args.first_repeat, args.first_repeat + args.repeats):
                for concurrency in args.concurrency:
                    asked = Path(scratch) / "requests.jsonl"
                    number = requests_of(lines, concurrency, repeat, asked)
                    for engine in engines if repeat % 2 else reversed(engines):
                        left_s = min(deadline - time.monotonic(), CLIENT_TIMEOUT_S)
                        found = (
                            attempt(engine, environment, asked, concurrency, number, left_s)
                            if left_s > 0
                            else None
                        )
                        if found is None:
                            num_missing += 1
                            continue
                        where = {"arm": engine.arm.name, "concurrency": concurrency}
                        record["passes"].append({**where, "repeat": repeat, **found})
                    write_run(record, path)
        record["servers"] = [engine.measured for engine in engines]
        keep_logs(arms, plan.folder, path.with_suffix(".log"))
    write_run(record, path)
    print(figure_table(build_result(record["provenance"], record["servers"], record["passes"])))
    print(f"{num_missing} servers or passes are missing")
    return 1 if num_missing else 0


def requests_of(lines: Sequence[str], concurrency: int, repeat: int, path: Path) -> int:
    """Writes the requests of a pass, drawn anew in each repeat; returns their number."""
    number = min(max(FEWEST_REQUESTS, WAVES * concurrency), len(lines))
    drawn = random.Random(f"{concurrency} {repeat}").sample(lines, number)
    asked = ({**json.loads(line), **TELLS_TOKENS} for line in drawn)
    path.write_text("".join(f"{json.dumps(each)}\n" for each in asked))
    return number


def client_environment(folder: Path) -> dict[str, str]:
    """Returns the client's environment, with a module that it imports and does not need.

    `sglang.bench_serving` imports `datasets` for other requests than ours; SGLang runs without it.
    """
    environment = dict(os.environ)
    if importlib.util.find_spec("datasets") is None:
        (folder / "datasets.py").write_text("load_dataset = None\n")
        paths = [str(folder), environment.get("PYTHONPATH")]
        environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    return environment


def attempt(
    engine: Engine,
    environment: Mapping[str, str],
    asked: Path,
    concurrency: int,
    number: int,
    timeout_s: float,
) -> dict[str, Any] | None:
    """Returns the client's numbers of one pass; None if it failed."""
    found = asked.with_name("found.jsonl")
    found.unlink(missing_ok=True)
    command = [sys.executable, "-m", "sglang.bench_serving", "--backend", "sglang-oai-chat"]
    command += ["--base-url", engine.server.url, "--dataset-name", "openai"]
    command += ["--dataset-path", str(asked), "--num-prompts", str(number)]
    command += ["--max-concurrency", str(concurrency), "--output-file", str(found)]
    command += ["--disable-ignore-eos", "--disable-tqdm", "--flush-cache"]
    said = ""
    try:
        done = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
        said = f"{done.stdout[-500:]}{done.stderr[-500:]}"
        told = json.loads(found.read_text())
        if done.returncode == 0 and told["completed"] == number:
            return {name: told.get(name) for name in KEPT}
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:  # the other passes go on
        said += repr(error)
    print(f"{engine.arm.name} {concurrency}: {said}", flush=True)
    return None


def build_result(origin: Raw, servers: Sequence[Raw], passes: Sequence[Raw]) -> dict[str, Any]:
    """Returns the result file: by number of clients, means of the client's numbers, and ratios."""
    cells = {
        str(concurrency): {
            "means": {arm: means(of(passes, arm, concurrency)) for arm in (NONE, OURS)},
            "over_none": stated(over(passes, concurrency)),
        }
        for concurrency in sorted({each["concurrency"] for each in passes})
        if of(passes, NONE, concurrency) and of(passes, OURS, concurrency)
    }
    return {
        "provenance": dict(origin),
        "cells": cells,
        "passes": list(passes),
        "servers": list(servers),
    }


def of(passes: Sequence[Raw], arm: str, concurrency: int) -> dict[int, Raw]:
    """Returns the passes of an arm with so many clients, by repeat."""
    wanted = (arm, concurrency)
    return {each["repeat"]: each for each in passes if (each["arm"], each["concurrency"]) == wanted}


def means(passes: Mapping[int, Raw]) -> dict[str, float]:
    """Returns the mean of every number that is shown."""
    return {
        name: round(statistics.fmean(each[name] for each in passes.values()), DIGITS)
        for name in SHOWN
    }


def over(passes: Sequence[Raw], concurrency: int) -> Ratio:
    """Returns tokens/s of ours over those of no speculation, repeat by repeat."""
    mine, others = (
        {repeat: each[THROUGHPUT] for repeat, each in of(passes, arm, concurrency).items()}
        for arm in (OURS, NONE)
    )
    return ratio_at_same_place(mine, others)


def figure_table(result: Raw) -> str:
    """Returns the claims with their verdicts, and the client's numbers."""
    ratios = {name: over(result["passes"], int(name)) for name in result["cells"]}
    figures = [
        Figure(f"{name} clients: ours / none", ratio, OVER_NONE) for name, ratio in ratios.items()
    ]
    if ratios:
        mean = geometric_mean([*ratios.values()])
        figures.append(Figure(f"ours / none, all {len(ratios)} cells", mean, OVER_NONE))
    rows = [
        (name, arm, *cell["means"][arm].values())
        for name, cell in result["cells"].items()
        for arm in (NONE, OURS)
    ]
    return "\n".join(
        (
            table(HEADER, [each.row() for each in figures]),
            table(("clients", "arm", "tokens/s", *SHOWN[1:]), rows),
        )
    )


def check_from_outside(result: Raw, gpu: str = GPU) -> list[str]:
    """Returns what is wrong with the shape or the figures of the result."""
    problems = keys("file", result, {"provenance", "cells", "passes", "servers"})
    if problems:
        return problems
    again = build_result(result["provenance"], result["servers"], result["passes"])
    return [*measured_on(result["provenance"], gpu), *differences(result, again, "")]


def merge(args: argparse.Namespace) -> int:
    """Writes the result file from run files of different repeats."""
    return merge_lists(args, ["servers", "passes"], build_result, figure_table)


def main() -> int:
    """Runs one command."""
    return run_command(parser(), run, merge)


if __name__ == "__main__":
    sys.exit(main())
