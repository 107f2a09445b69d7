"""Arrivals that rise past saturation and fall again: what do requests feel, what is served?

Open loop: requests arrive at drawn times whatever the server does, in every arm the same ones, of
different lengths and acceptance. The host's defaults in every arm (its own list of captured batch
sizes, its own limit of running requests, which is lower with speculation), Llama-8B shapes.

On the machine with the H200, from the project's root (one server at a time, about 400 s):

    python3 -m benchmarks.ramp run --git-sha SHA --out $OUT --tag 1
    python3 -m benchmarks.ramp merge runs/ramp-*.json \\
        --result benchmarks/results/ramp-h200.json --plot docs/images/ramp-h200.svg
"""

import argparse
import asyncio
import json
import random
import resource
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from benchmarks import ramp_summary
from benchmarks.arms import ARMS
from benchmarks.fleet import keep_logs
from benchmarks.models import prompt_ids
from benchmarks.run_files import (
    add_merge,
    begin_run,
    read_runs,
    run_command,
    write_result,
    write_run,
)
from benchmarks.server import Server
from benchmarks.session import INJECTED, serving_arm
from benchmarks.settings import CPU_COMMON, PYTHON_TREE, add_fleet_flags, plan_with, words

# The only choices are those that the machine and the missing weights force.
GPU_DEFAULTS = ("--attention-backend", "flashinfer", "--skip-tokenizer-init", "--random-seed", "1")
PROMPT_TOKENS = (64, 512)
NEW_TOKENS = (64, 384)
CHANCES = (0.3, 0.5, 0.7, 0.85, 0.95)
TIMEOUT_S = 240.0


class Arrival(NamedTuple):
    """A request of the ramp."""

    at_s: float
    request_id: str
    prompt_tokens: int
    new_tokens: int


def arrivals(
    seconds: float,
    low: float,
    peak: float,
    seed: int,
    longest: float = 1.0,
    chances: Sequence[float] = CHANCES,
) -> list[Arrival]:
    """Returns Poisson arrivals whose rate rises from ``low`` to ``peak`` a second and falls again.

    Args:
        seconds: how long requests arrive.
        low: requests a second at both ends.
        peak: requests a second in the middle.
        seed: of times, lengths and acceptance.
        longest: scales the lengths.
        chances: that a draft is accepted; a request draws one of them.
    """
    rng = random.Random(seed)
    made: list[Arrival] = []
    now = rng.expovariate(peak)
    while now < seconds:
        rate = low + (peak - low) * (1 - abs(2 * now / seconds - 1))
        if rng.random() < rate / peak:  # thins the peak's rate down to the present one
            made.append(
                Arrival(
                    round(now, 6),
                    f"p{rng.choice(chances):.4f}-ramp{seed}-r{len(made)}",
                    int(rng.randint(*PROMPT_TOKENS) * longest),
                    int(rng.randint(*NEW_TOKENS) * longest),
                )
            )
        now += rng.expovariate(peak)
    return made


def parser() -> argparse.ArgumentParser:
    """Returns the command line."""
    top = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = top.add_subparsers(dest="command", required=True)
    run_ = commands.add_parser("run")
    run_.add_argument("--arms", type=words, default=ramp_summary.ARMS)
    run_.add_argument("--seconds", type=float, default=60.0, help="of arrivals [60]")
    run_.add_argument("--low", type=float, default=2.0, help="requests a second [2]")
    run_.add_argument("--peak", type=float, default=120.0, help="requests a second [120]")
    run_.add_argument("--longest", type=float, default=1.0, help="scales the lengths [1]")
    add_fleet_flags(run_, max_total_tokens=0)
    add_merge(commands, has_plot=True)
    return top


def run(args: argparse.Namespace) -> int:
    """Serves the ramp with one arm after the other; returns 1 if one is missing."""
    deadline = time.monotonic() + args.deadline
    # Every waiting request holds a connection; past saturation there are thousands.
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    record, path = begin_run(args, "ramp")
    record["passes"] = passes = []
    with tempfile.TemporaryDirectory(prefix="ramp-bench-") as scratch:
        for name in args.arms:
            if time.monotonic() > deadline:
                print(f"{name}: left out at the deadline")
                continue
            common = CPU_COMMON if args.dry_cpu else GPU_DEFAULTS
            plan = plan_with(args, Path(scratch) / name, common)
            plan = replace(plan, environment={**plan.environment, **PYTHON_TREE})
            try:
                with serving_arm(ARMS[name], plan) as (server, measured):
                    warm = arrivals(2.0, args.peak / 8, args.peak / 8, 0, args.longest)
                    send_ramp(server, warm)
                    for repeat in range(args.first_repeat, args.first_repeat + args.repeats):
                        sent = arrivals(args.seconds, args.low, args.peak, repeat, args.longest)
                        passes.append({"arm": name, "repeat": repeat, **send_ramp(server, sent)})
                passes[-1]["server_argv"] = measured["server_argv"]
                if plugin := measured["plugin"]:
                    passes[-1]["tiers"] = {
                        name: plugin[name] for name in ("rounds", "skipped_tiers")
                    }
            except (RuntimeError, OSError):  # the other arms are still worth running
                traceback.print_exc(file=sys.stdout)
            keep_logs([ARMS[name]], Path(scratch), path.with_suffix(".log"))
            write_run(record, path)
    print(ramp_summary.pass_table(passes))
    return 1 if len(passes) < len(args.arms) * args.repeats else 0


def send_ramp(server: Server, sent: Sequence[Arrival], prompt_seed: int = 0) -> dict[str, Any]:
    """Sends every request at its time; returns times per request and tokens per moment."""
    start_ns, answer = send_arrivals(server, sent, prompt_seed)
    return ramp_summary.as_pass(sent, start_ns, answer["requests"], answer["rounds"])


def send_arrivals(
    server: Server, sent: Sequence[Arrival], prompt_seed: int = 0
) -> tuple[int, dict[str, Any]]:
    """Sends every request at its time; returns when the first was due, and what was measured.

    Prompts of the same ``prompt_seed`` begin alike: what was sent before is in the prefix cache.
    """
    server.command(accept_length=INJECTED, log_requests=True)
    prompts = [
        prompt_ids(1, each.prompt_tokens, prompt_seed + index)[0] for index, each in enumerate(sent)
    ]
    start_ns = time.perf_counter_ns()
    asyncio.run(_send_all(server.url, sent, prompts))
    return start_ns, server.command(accept_length=INJECTED)


async def _send_all(url: str, sent: Sequence[Arrival], prompts: Sequence[Sequence[int]]) -> None:
    loop = asyncio.get_running_loop()
    start = loop.time()

    async def send(each: Arrival, prompt: Sequence[int]) -> None:
        await asyncio.sleep(max(start + each.at_s - loop.time(), 0.0))
        sampling = {"temperature": 0, "max_new_tokens": each.new_tokens, "ignore_eos": True}
        body = {"input_ids": prompt, "rid": each.request_id, "sampling_params": sampling}
        await asyncio.wait_for(post(url, body), TIMEOUT_S)

    await asyncio.gather(*(send(*pair) for pair in zip(sent, prompts, strict=True)))


async def post(url: str, body: Mapping[str, Any]) -> None:
    """Sends one request on a connection of its own and reads the answer to its end.

    Thousands may wait at once, which rules threads out.

    Raises:
        RuntimeError: The answer's status is not 200.
    """
    where = urlsplit(url)
    content = json.dumps(body).encode()
    head = (
        f"POST /generate HTTP/1.1\r\nHost: {where.netloc}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    try:
        writer.write(head.encode() + content)
        status = await reader.readline()
        await reader.read()
    finally:
        writer.close()
    if status.split()[1:2] != [b"200"]:
        raise RuntimeError(f"{body['rid']}: the server answered {status!r}.")


def merge(args: argparse.Namespace) -> int:
    """Writes the result file, and a plot if wanted, from run files."""
    result = ramp_summary.merged(read_runs(args.files))
    write_result(result, args.result)
    print(ramp_summary.arm_table(result))
    if args.plot is not None:
        from benchmarks.plots import plot_ramp

        plot_ramp(result, args.plot)
    return 0


def main() -> int:
    """Runs one command."""
    return run_command(parser(), run, merge)


if __name__ == "__main__":
    sys.exit(main())
