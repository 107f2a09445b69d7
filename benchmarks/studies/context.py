"""Does the policy know how much context a batch has, on the backend that users get?

The server records every round (config key ``record``); what each round was told of its context is
set against the prompts' length and the tokens that the rounds before it gave. Under the overlap
schedule a round may lack the tokens of the one in flight, and nothing else. No flag but the models,
ADAPTIVE_EAGLE and what dummy weights force: SGLang's own attention backend, the model's own context
length. Acceptance is injected.

On the machine with the GPU, from the project's root (90 s):

    python3 -m benchmarks.studies.context run --git-sha SHA --out $OUT
    python3 -m benchmarks.studies.context merge runs/context-1.json \\
        --result benchmarks/results/current/context-fa3-h200.json
"""

import argparse
import re
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.lab.arms import OURS, Arm, recording
from benchmarks.lab.fleet import keep_logs
from benchmarks.lab.load import generate_closed
from benchmarks.lab.models import prompt_ids
from benchmarks.lab.run_files import add_merge, begin_run, merge_lists, run_command, write_run
from benchmarks.lab.session import serving_arm
from benchmarks.lab.settings import CPU_COMMON, PYTHON_TREE, add_fleet_flags, numbers, plan_with
from benchmarks.stats.differences import keys
from benchmarks.stats.tables import table
from sglang_adaptive_spec.trace.format import TraceRound, read_trace
from sglang_adaptive_spec.trace.record import FLUSH_S

# Weights that are not there have no tokenizer either; the host's warm-up has a prompt of its own.
FORCED = ("--skip-tokenizer-init",)
NO_WARM_UP = "--skip-server-warmup"
CHANCES = (0.3, 0.7, 0.9)
BACKEND = re.compile(r"ttention backend[^\n]*", re.IGNORECASE)

Raw = Mapping[str, Any]


def parser() -> argparse.ArgumentParser:
    """Returns the command line."""
    top = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = top.add_subparsers(dest="command", required=True)
    run_ = commands.add_parser("run")
    run_.add_argument("--lengths", type=numbers, default=(500, 6000), help="of prompts, in tokens")
    run_.add_argument("--requests", type=int, default=16, help="at once [16]")
    run_.add_argument("--new-tokens", type=int, default=256, help="of a text [256]")
    add_fleet_flags(run_, max_total_tokens=0)
    run_.set_defaults(context_length=131072)
    add_merge(commands)
    return top


def run(args: argparse.Namespace) -> int:
    """Serves one wave of requests per prompt length, each on a server of its own."""
    record, path = begin_run(args, "context")
    record["waves"] = waves = []
    with tempfile.TemporaryDirectory(prefix="context-bench-") as scratch:
        for number, length in enumerate(args.lengths):
            folder = Path(scratch) / str(length)
            trace = folder / "rounds.jsonl"
            arm = recording(Arm(f"goodput-{length}", OURS), trace)
            plan = plan_with(args, folder, (*(CPU_COMMON if args.dry_cpu else FORCED), NO_WARM_UP))
            environment = {**plan.environment, **PYTHON_TREE}
            plan = replace(plan, environment=environment, port=args.port + number)
            with serving_arm(arm, plan) as (server, measured):
                prompts = prompt_ids(args.requests, length, args.seed)
                chances = [CHANCES[index % len(CHANCES)] for index in range(len(prompts))]
                ids = [f"p{chance:.4f}-context-r{n}" for n, chance in enumerate(chances)]
                generate_closed(
                    server.url,
                    prompts,
                    args.new_tokens,
                    args.requests,
                    ignore_eos=True,
                    ids=ids,
                )
                time.sleep(FLUSH_S + 1)  # the recorder writes the last rounds
                backends = sorted(set(BACKEND.findall(server.log.read_text(errors="replace"))))
            rounds = [as_raw(one) for one in read_trace(trace).rounds]
            plugin = measured.pop("plugin")
            measured["policy"] = {name: plugin[name] for name in ("rounds", "seeding")}
            waves.append(
                {"prompt_tokens": length, "log": backends, "server": measured, "rounds": rounds}
            )
            keep_logs([arm], folder, path.with_suffix(".log"))
            write_run(record, path)
    print(wave_table(build_result(record["provenance"], waves)))
    return 0


def as_raw(one: TraceRound) -> list[Any]:
    """Returns a round as it is kept: context told, requests, accepted drafts, decodes."""
    correct = list(one.num_correct_drafts)
    return [one.context_tokens, list(one.requests), correct, one.num_decodes]


def compare(wave: Raw) -> dict[str, Any]:
    """Returns how far what rounds were told is off, in tokens and in rounds."""
    emitted: dict[int, int] = {}
    before = 0  # tokens of the round before, which may have been in flight
    wrong, largest, behind = 0, 0, 0
    for told, requests, num_correct, *rest in wave["rounds"]:
        num_decodes = rest[0] if rest else 1  # files from before rounds had several
        true = sum(wave["prompt_tokens"] + emitted.get(request, 0) for request in requests)
        wrong += not 0 <= true - told <= before
        behind += told < true
        largest = max(largest, true)
        for request, correct in zip(requests, num_correct, strict=True):
            emitted[request] = emitted.get(request, 0) + correct + num_decodes
        before = num_decodes * len(requests) + sum(num_correct)
    return {
        "num_rounds": len(wave["rounds"]),
        "num_wrong": wrong,
        "num_without_the_round_in_flight": behind,
        "largest_context_tokens": largest,
        "largest_told_tokens": max(told for told, *_ in wave["rounds"]),
    }


def build_result(origin: Raw, waves: Sequence[Raw]) -> dict[str, Any]:
    """Returns the result file."""
    summary = {str(wave["prompt_tokens"]): compare(wave) for wave in waves}
    return {"provenance": dict(origin), "waves": summary, "raw": list(waves)}


def check_context(result: Raw) -> list[str]:
    """Returns what is wrong with the shape or the figures of a result."""
    problems = keys("file", result, {"provenance", "waves", "raw"})
    if problems:
        return problems
    if result["waves"] != build_result(result["provenance"], result["raw"])["waves"]:
        problems.append("waves is not what raw gives")
    for name, wave in result["waves"].items():
        if wave["num_wrong"] or not wave["num_rounds"]:
            problems.append(f"{name}: {wave['num_wrong']} rounds were told another context")
    return problems


def wave_table(result: Raw) -> str:
    """Returns a row per prompt length."""
    head = ("prompt tokens", "rounds", "told wrongly", "largest context", "largest told")
    rows = [
        (
            name,
            str(wave["num_rounds"]),
            str(wave["num_wrong"]),
            str(wave["largest_context_tokens"]),
            str(wave["largest_told_tokens"]),
        )
        for name, wave in result["waves"].items()
    ]
    return table(head, rows)


def merge(args: argparse.Namespace) -> int:
    """Writes the result file from run files."""
    return merge_lists(args, ["waves"], build_result, wave_table)


def main() -> int:
    """Runs one command."""
    return run_command(parser(), run, merge)


if __name__ == "__main__":
    sys.exit(main())
