"""Does a server with a raised cap survive a full batch whose requests all have penalties?

More requests than may run are sent at once, all with frequency, presence and repetition penalties
and a logit bias, half of them sampled. Each of these keeps a tensor of requests x vocabulary in
fp32. The least free memory of the GPU is watched. Without speculation beside it.

On the machine with the GPU, from the project's root (150 s):

    python3 -m benchmarks.studies.penalties run --git-sha SHA --out $OUT
    python3 -m benchmarks.studies.penalties merge runs/penalties-1.json \\
        --result benchmarks/results/current/penalties-h200.json
"""

import argparse
import asyncio
import resource
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.lab.arms import ARMS
from benchmarks.lab.arrivals import post
from benchmarks.lab.fleet import keep_logs
from benchmarks.lab.models import prompt_ids
from benchmarks.lab.run_files import add_merge, begin_run, merge_lists, run_command, write_run
from benchmarks.lab.session import serving_arm
from benchmarks.lab.settings import CPU_COMMON, PYTHON_TREE, add_fleet_flags, plan_with, words
from benchmarks.stats.differences import Gap, keys
from benchmarks.stats.tables import table

FORCED = ("--skip-tokenizer-init",)
GREEDY: dict[str, Any] = {"temperature": 0}
PENALTIES: dict[str, Any] = {
    "frequency_penalty": 0.5,
    "presence_penalty": 0.5,
    "repetition_penalty": 1.1,
}
SAMPLED: dict[str, Any] = {"temperature": 0.8, "top_p": 0.9, "top_k": 40}
TIMEOUT_S = 300.0
WATCH_S = 0.1

Raw = Mapping[str, Any]


def parser() -> argparse.ArgumentParser:
    """Returns the command line."""
    top = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = top.add_subparsers(dest="command", required=True)
    run_ = commands.add_parser("run")
    run_.add_argument("--arms", type=words, default=("goodput", "none"))
    run_.add_argument("--requests", type=int, default=2300, help="sent at once [2300]")
    run_.add_argument("--new-tokens", type=int, default=96, help="of a text [96]")
    add_fleet_flags(run_, max_total_tokens=0)
    add_merge(commands)
    return top


class FreeMemory(threading.Thread):
    """Keeps the least free memory of the first GPU, in MiB; None without one."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.least_mib: int | None = None
        self._over = threading.Event()

    def run(self) -> None:
        """Asks until it is stopped."""
        query = ["nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits", "--id=0"]
        while not self._over.wait(WATCH_S):
            try:
                told = subprocess.run(query, check=True, capture_output=True, text=True).stdout
            except (OSError, subprocess.CalledProcessError):
                return
            free = int(told)
            self.least_mib = free if self.least_mib is None else min(self.least_mib, free)

    def stop(self) -> int | None:
        """Returns what it saw."""
        self._over.set()
        self.join()
        return self.least_mib


def run(args: argparse.Namespace) -> int:
    """Sends the same requests to every arm; returns 1 if a server did not answer all of them."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    record, path = begin_run(args, "penalties")
    record["arms"] = arms = []
    with tempfile.TemporaryDirectory(prefix="penalties-bench-") as scratch:
        for name in args.arms:
            plan = plan_with(args, Path(scratch) / name, CPU_COMMON if args.dry_cpu else FORCED)
            plan = replace(plan, environment={**plan.environment, **PYTHON_TREE})
            arms.append(arm := {"arm": name, "num_answered": 0})
            try:
                with serving_arm(ARMS[name], plan) as (server, measured):
                    watch = FreeMemory()
                    watch.start()
                    arm["num_answered"] = asyncio.run(send(server.url, args))
                    arm["least_free_mib"] = watch.stop()
                    sizes = [fields[1] for fields in server.rounds()]
                    arm["largest_batch"] = max(sizes)
                    arm["log"] = [
                        line
                        for line in server.log.read_text(errors="replace").splitlines()
                        if "running requests" in line or "stay free" in line
                    ]
                arm["server_argv"] = measured["server_argv"]
                if plugin := measured["plugin"]:
                    arm["rounds"] = plugin["rounds"]
                    arm["tiers"] = plugin["tiers"]
            except (RuntimeError, OSError):  # the other arm is still worth running
                traceback.print_exc(file=sys.stdout)
            keep_logs([ARMS[name]], Path(scratch), path.with_suffix(".log"))
            write_run(record, path)
    result = build_result(record["provenance"], arms)
    print(arm_table(result))
    return 0 if all(arm["num_answered"] == args.requests for arm in arms) else 1


async def send(url: str, args: argparse.Namespace) -> int:
    """Sends all requests at once; returns how many were answered."""
    prompts = prompt_ids(args.requests, args.prompt_tokens, args.seed)
    shared: dict[str, Any] = {"max_new_tokens": args.new_tokens, "ignore_eos": True}
    shared |= {"logit_bias": {"100": 0.5}}
    kinds: list[dict[str, Any]] = [GREEDY, SAMPLED]
    bodies = [
        {
            "input_ids": prompt,
            "rid": f"p0.7000-penalties-r{number}",
            "sampling_params": kinds[number % 2] | PENALTIES | shared,
        }
        for number, prompt in enumerate(prompts)
    ]
    sent = (asyncio.wait_for(post(url, body), TIMEOUT_S) for body in bodies)
    done = await asyncio.gather(*sent, return_exceptions=True)
    return sum(one is None for one in done)


def build_result(origin: Raw, arms: Sequence[Raw]) -> dict[str, Any]:
    """Returns the result file."""
    return {"provenance": dict(origin), "arms": list(arms)}


def check_penalties(result: Raw) -> list[str]:
    """Returns what is wrong with a result; that SGLang's own server ended is said, and no fault."""
    problems = keys("file", result, {"provenance", "arms"})
    for arm in result.get("arms", []):
        if not arm["num_answered"] or "largest_batch" not in arm:
            ended = f"{arm['arm']}: the server did not survive"
            problems.append(ended if ARMS[arm["arm"]].is_ours else Gap(ended))
    return problems


def arm_table(result: Raw) -> str:
    """Returns a row per arm."""
    head = ("arm", "answered", "largest batch", "least free MiB")
    rows = [
        tuple(
            str(arm.get(key)) for key in ("arm", "num_answered", "largest_batch", "least_free_mib")
        )
        for arm in result["arms"]
    ]
    return table(head, rows)


def merge(args: argparse.Namespace) -> int:
    """Writes the result file from run files."""
    return merge_lists(args, ["arms"], build_result, arm_table)


def main() -> int:
    """Runs one command."""
    return run_command(parser(), run, merge)


if __name__ == "__main__":
    sys.exit(main())
