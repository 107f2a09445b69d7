"""Visits every server in every cell of batch size and acceptance, the servers in turn."""

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.inject.acceptance import DEFAULT_NAMES
from benchmarks.lab.fleet import (
    Engine,
    Visit,
    new_token_limit,
    visit_rounds,
)
from benchmarks.lab.load import Window, as_raw, timed_windows
from benchmarks.lab.models import prompt_ids
from benchmarks.lab.session import Plan
from benchmarks.lab.settings import cells_of, numbers, words

# Room for 128 requests of 128 prompt tokens and about 340 new ones, four times in 139 GiB.
MAX_TOTAL_TOKENS = 65536
PROMPT_SEED = 1


def add_visit_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the cells to visit and how long."""
    parser.add_argument("--batches", type=numbers, default=(1, 4, 16, 32, 64, 128))
    parser.add_argument("--acceptances", type=words, default=DEFAULT_NAMES)
    parser.add_argument("--window-s", type=float, default=0.2, help="of one window [0.2]")
    parser.add_argument("--windows", type=int, default=3, help="of a visit, in a row [3]")
    # Alike in every arm: what comes before a window makes its contexts longer, and its rounds.
    parser.add_argument("--settle-s", type=float, default=0.5, help="before them, every arm [0.5]")
    parser.add_argument(
        "--settle-request-s",
        type=float,
        default=2.0,
        help="at least so long times the requests, so that one request shows its kind too [2.0]",
    )
    parser.add_argument("--at-once", action="store_true", help="start all arms together")


def visit_cells(
    engines: Sequence[Engine],
    plan: Plan,
    args: argparse.Namespace,
    deadline: float,
    windows: list[dict[str, Any]],
    keep: Callable[[], None],
) -> int:
    """Visits every engine in every cell, in turn; returns how many visits are missing."""
    num_missing = 0
    prompts = prompt_ids(max(args.batches), plan.prompt_tokens, PROMPT_SEED)
    order = list(engines)
    for batch_size, acceptance in cells_of(args.batches, args.acceptances):
        limit = new_token_limit(
            args.max_total_tokens, args.context_length, plan.prompt_tokens, batch_size
        )
        settle_s = settle_s_of(args, batch_size)
        for repeat in range(args.first_repeat, args.first_repeat + args.repeats):
            for engine in order:
                wanted = Visit(
                    acceptance, batch_size, repeat, settle_s, args.window_s * args.windows
                )
                if time.monotonic() > deadline:
                    num_missing += 1
                    continue
                try:
                    rounds, _ = visit_rounds(engine, wanted, prompts[:batch_size], limit)
                    measured = timed_windows(
                        rounds, batch_size, settle_s, args.window_s, args.windows
                    )
                except (RuntimeError, ValueError, OSError) as error:
                    print(f"{engine.arm.name} {batch_size} {acceptance}: {error}", flush=True)
                    num_missing += 1
                    continue
                windows += [
                    as_record(engine, wanted, place, window)
                    for place, window in enumerate(measured)
                ]
            order = order[1:] + order[:1]  # nobody is always the first after another
        keep()
    return num_missing


def as_record(engine: Engine, wanted: Visit, place: int, window: Window) -> dict[str, Any]:
    """Returns a window as it is kept in the file; ``place`` is its number in the visit."""
    return {
        "arm": engine.arm.name,
        "batch_size": wanted.batch_size,
        "acceptance": wanted.acceptance,
        "repeat": wanted.repeat,
        "place": place,
        **as_raw(window),
    }


def settle_s_of(args: Any, batch_size: int) -> float:
    """Returns how long a batch runs before its first window, in every arm."""
    return float(max(args.settle_s, args.settle_request_s / batch_size))
