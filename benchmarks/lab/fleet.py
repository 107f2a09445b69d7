"""Several arms' servers alive at once on one GPU, one of them busy at a time.

Interleaving windows of different arms needs all of their servers. They fit side by side if the KV
pool is capped (`--max-total-tokens`); an idle scheduler sleeps (`--sleep-on-idle`) and launches
nothing, so the busy one has the GPU to itself.
"""

import contextlib
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.inject.acceptance import MAX_NEW_TOKENS, request_ids
from benchmarks.lab.arms import Arm
from benchmarks.lab.load import Window, post_generate, post_json, timed_window
from benchmarks.lab.server import Server
from benchmarks.lab.session import INJECTED, Plan, serving_arm

# Between the end of the window and what the watch waits for: the round in flight, and one more.
WATCH_MARGIN_S = 0.05
# A full batch that does not come: prefill, or a server that hangs.
FULL_BATCH_TIMEOUT_S = 120.0
STAYS_S = 0.1  # until a request is aborted that is to leave
# Reserved per request beside prompt and output: what the host allocates ahead of a round.
RESERVED_TOKENS = 40
PORT_STEP = 20  # a server may take ports next to its own
ACCESS = ' HTTP/1.1" 200 OK'  # in the line that the server logs of every request
MAX_LOG_LINES = 500  # of a server's log that are kept beside the record, at both ends


@dataclass(slots=True)
class Engine:
    """A running server of one arm."""

    arm: Arm
    server: Server
    measured: dict[str, Any]  # its record, completed when it stops


@dataclass(frozen=True, slots=True)
class Visit:
    """One batch of equal requests sent to one engine, measured while all of them live."""

    acceptance: str
    batch_size: int
    repeat: int
    settle_s: float
    window_s: float
    timing: bool = False
    policy: str = "own"  # what the arm's server chooses by (inject/engine.py)
    timeout_s: float = FULL_BATCH_TIMEOUT_S  # until the window must be over


@contextlib.contextmanager
def serving_fleet(
    arms: Sequence[Arm],
    plan: Plan,
    deadline: float,
    at_once: bool = False,
    ours_too: bool = False,
    frozen: bool = False,
) -> Iterator[list[Engine]]:
    """Starts the arms; yields those that serve, in the order given.

    Args:
        arms: the arms to start.
        plan: what all of them share; each gets a folder and a port of its own.
        deadline: on the monotonic clock; no server is started after it (at once: none has to be).
        at_once: start all arms at the same time, where memory is plenty. Ours wait for the host's
            own, and for each other, before they use the GPU: they measure rounds at their start.
        ours_too: ours need not wait, where no policy chooses by measured rounds.
        frozen: stop each until its turn comes: ranks of attention DP without requests keep cores
            and links busy.
    """
    plans = {
        arm.name: replace(plan, folder=plan.folder / arm.name, port=plan.port + PORT_STEP * number)
        for number, arm in enumerate(arms)
    }
    engines: dict[str, Engine] = {}
    with contextlib.ExitStack() as stack:

        def start(arm: Arm) -> None:
            engine = _started(arm, plans[arm.name], stack, deadline)
            if engine is not None:
                engines[arm.name] = engine
                if frozen:
                    engine.server.freeze()

        if at_once:
            waiting = [] if ours_too else [arm.name for arm in arms if arm.is_ours]
            turns = {name: plans[name].folder / "turn" for name in waiting}
            plans |= {name: replace(plans[name], turn=turn) for name, turn in turns.items()}
            _start_at_once(start, arms, turns)
        else:
            for arm in arms:
                start(arm)
        yield with_full_pool([engines[arm.name] for arm in arms if arm.name in engines])
        if frozen:
            for engine in engines.values():
                engine.server.thaw()  # each tells at its end what it measured


def _start_at_once(
    start: Callable[[Arm], None], arms: Sequence[Arm], turns: Mapping[str, Path]
) -> None:
    """Starts all arms; those that wait for a file get their turn when the others serve."""
    with ThreadPoolExecutor(max(len(arms), 1)) as starters:
        starting = {arm.name: starters.submit(start, arm) for arm in arms}
        wait([each for name, each in starting.items() if name not in turns])
        for name, turn in turns.items():
            turn.parent.mkdir(parents=True, exist_ok=True)
            turn.touch()
            wait([starting[name]])
    for each in starting.values():
        each.result()  # raises what is no failure of a server


def _started(arm: Arm, plan: Plan, stack: contextlib.ExitStack, deadline: float) -> Engine | None:
    if time.monotonic() > deadline:
        print(f"{arm.name}: left out at the deadline", flush=True)
        return None
    started = time.monotonic()
    try:
        server, measured = stack.enter_context(serving_arm(arm, plan))
    except (RuntimeError, OSError):  # the other arms are still worth measuring
        traceback.print_exc(file=sys.stdout)
        print(f"{arm.name}: failed to start", flush=True)
        return None
    measured["max_total_tokens"] = server.command()["max_total_tokens"]
    print(f"{arm.name}: serving after {time.monotonic() - started:.0f} s", flush=True)
    return Engine(arm, server, measured)


def with_full_pool(engines: Sequence[Engine]) -> list[Engine]:
    """Returns the engines whose KV pool is the largest; memory ran short for the others."""
    pools = [engine.measured["max_total_tokens"] for engine in engines]
    for engine, pool in zip(engines, pools, strict=True):
        if pool < max(pools):
            print(f"{engine.arm.name}: left out, its KV pool has {pool} of {max(pools)} tokens")
    return [engine for engine, pool in zip(engines, pools, strict=True) if pool == max(pools)]


def visit(
    engine: Engine, wanted: Visit, prompts: Sequence[Sequence[int]], max_new_tokens: int
) -> tuple[Window, dict[str, Any]]:
    """Runs one window; returns it with the answer of the plugin (times, if asked for)."""
    rounds, answer = visit_rounds(engine, wanted, prompts, max_new_tokens)
    return timed_window(rounds, wanted.batch_size, wanted.settle_s, wanted.window_s), answer


def visit_rounds(
    engine: Engine, wanted: Visit, prompts: Sequence[Sequence[int]], max_new_tokens: int
) -> tuple[list[list[Any]], dict[str, Any]]:
    """Runs a batch for as long as ``wanted`` says; returns its rounds and the plugin's answer."""
    server = engine.server
    watch = {
        "batch_size": wanted.batch_size,
        "seconds": wanted.settle_s + wanted.window_s + WATCH_MARGIN_S,
    }
    server.command(accept_length=INJECTED, policy=wanted.policy, timing=wanted.timing, watch=watch)
    ids = request_ids(wanted.acceptance, wanted.batch_size, wanted.repeat)
    with running_batch(server.url, prompts, max_new_tokens, ids):
        server.wait_watch(wanted.timeout_s)
    answer = server.command(accept_length=INJECTED) if wanted.timing else {}
    return (answer["rounds"] if wanted.timing else server.rounds()), answer


def keep_logs(arms: Sequence[Arm], folder: Path, path: Path) -> None:
    """Appends start and end of every server's log to one file."""
    with path.open("a") as kept:
        for arm in arms:
            log = folder / arm.name / f"{arm.name}.log"
            if log.exists():
                lines = log.read_text(errors="replace").splitlines(keepends=True)
                lines = [line for line in lines if ACCESS not in line]
                start, rest = lines[:MAX_LOG_LINES], lines[MAX_LOG_LINES:]
                kept.writelines([f"=== {arm.name}\n", *start, "...\n", *rest[-MAX_LOG_LINES:]])


@contextlib.contextmanager
def running_batch(
    url: str, prompts: Sequence[Sequence[int]], max_new_tokens: int, ids: Sequence[str]
) -> Iterator[None]:
    """Sends a batch that decodes for as long as the block lasts."""
    client = threading.Thread(
        target=send_until_aborted, args=(url, prompts, max_new_tokens, ids), daemon=True
    )
    client.start()
    try:
        yield
    finally:
        abort_all(url)
        client.join(FULL_BATCH_TIMEOUT_S)


def send_until_aborted(
    url: str,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    ids: Sequence[str],
    **fields: Any,
) -> None:
    """Sends a batch whose answers nobody reads; an abort ends it. ``fields`` join the body."""
    sampling = {"max_new_tokens": max_new_tokens, "ignore_eos": True}
    with contextlib.suppress(OSError):  # an aborted request may be answered with an error
        post_generate(url, prompts, sampling, rid=list(ids), **fields)


@contextlib.contextmanager
def requests_that_leave(
    url: str, prompt: Sequence[int], max_new_tokens: int, **fields: Any
) -> Iterator[list[str]]:
    """Sends one request after the other, each aborted while it decodes; yields who has left."""
    gone: list[str] = []
    over = threading.Event()

    def leave() -> None:
        while not over.is_set():
            name = f"leaves-{len(gone)}"
            sent = (url, [prompt], max_new_tokens, [name])
            client = threading.Thread(target=send_until_aborted, args=sent, kwargs=fields)
            client.start()
            over.wait(STAYS_S)
            post_json(f"{url}/abort_request", {"rid": name}, 60)
            client.join(FULL_BATCH_TIMEOUT_S)
            gone.append(name)

    leaver = threading.Thread(target=leave)
    leaver.start()
    try:
        yield gone
    finally:
        over.set()
        leaver.join()


def abort_all(url: str) -> None:
    """Ends every request of a server."""
    post_json(f"{url}/abort_request", {"abort_all": True}, 60)


def new_token_limit(
    max_total_tokens: int, context_length: int, prompt_tokens: int, batch_size: int
) -> int:
    """Returns how long each request of a batch may grow: by pool, context and what is drawn."""
    share = min(max_total_tokens // batch_size, context_length)
    return min(share - prompt_tokens - RESERVED_TOKENS, MAX_NEW_TOKENS)


def in_parallel(
    engines: Sequence[Engine], work: Callable[[Engine], dict[str, Any]]
) -> list[dict[str, Any]]:
    """Does the same with every engine at once; returns what succeeded."""

    def attempt(engine: Engine) -> dict[str, Any] | None:
        try:
            return work(engine)
        except (RuntimeError, ValueError, OSError) as error:  # the other arms go on
            print(f"{engine.arm.name}: {error!r}", flush=True)
            return None

    with ThreadPoolExecutor(max(len(engines), 1)) as clients:
        return [done for done in clients.map(attempt, engines) if done is not None]
