"""`make demo`: the same greedy prompts to real servers that take turns, ADAPTIVE_EAGLE one of them.

Succeeds only if ADAPTIVE_EAGLE gave, token for token, the text that no speculation gives, and
really used two tiers. What it does and shows: docs/demo.md.
"""

import argparse
import contextlib
import json
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

from examples.demo.arms import CANDIDATES, EXAMPLES, GOODPUT_CONFIG, HEAD, Arm, arms
from examples.demo.figures import ArmResult
from examples.demo.page import page
from examples.demo.prompts import Tokenizer, load_prompts
from examples.demo.report import checks_of, last_line, report_json, table
from examples.demo.screen import Screen
from examples.demo.traffic import Lane, take_turns
from examples.server import Server
from examples.smollm2.fetch_target import TARGET
from examples.wheels import sha256_of

CACHE = "cache"  # in the output folder; ADAPTIVE_EAGLE keeps its round times there


@contextlib.contextmanager
def serving(wanted: Sequence[Arm], out: Path, screen: Screen) -> Iterator[list[Server]]:
    """Starts all servers: SGLang's own at once, then ours, undisturbed; ends them all."""
    # Round times are measured anew in every run: the machine may be a busier one than last time.
    environment = {"XDG_CACHE_HOME": str(out / CACHE)}
    servers = [
        Server.of_sglang(
            arm.arguments, out / "logs" / f"{arm.name.replace(' ', '-')}.log", environment
        )
        for arm in wanted
    ]
    crowds = [[n for n, arm in enumerate(wanted) if not arm.is_ours]]
    crowds += [[n] for n, arm in enumerate(wanted) if arm.is_ours]
    try:
        for crowd in crowds:
            for number in crowd:
                servers[number].start()
            for number in crowd:
                servers[number].wait_ready()
                screen.say(f"{wanted[number].name}: ready")
        yield servers
    finally:
        with ThreadPoolExecutor(len(servers)) as enders:
            list(enders.map(lambda server: server.stop(), servers))


def main() -> int:
    """Runs the demo; 0 when every check holds."""
    args = _parse()
    signal.signal(signal.SIGTERM, _exit_on_signal)  # so that running servers are stopped, too
    start = time.monotonic()
    model = TARGET.fetch(args.cache).resolve()
    wanted = arms(model, args.full)
    prompts = load_prompts(args.cache, Tokenizer(model).encode, args.prompts_per_phase)
    out: Path = args.out.resolve()
    shutil.rmtree(out / CACHE, ignore_errors=True)
    with Screen(len(wanted) * len(prompts)) as screen:
        screen.say(f"target: {TARGET.name}; draft: {HEAD.relative_to(EXAMPLES.parent)}")
        with serving(wanted, out, screen) as servers:
            lanes = [Lane(*pair) for pair in zip([a.name for a in wanted], servers, strict=True)]
            take_turns(lanes, prompts, args.new_tokens, screen.polled, screen.answered)
            results = [
                ArmResult.of(arm, lane, server.command, server.ready_s)
                for arm, lane, server in zip(wanted, lanes, servers, strict=True)
            ]
    settings = _settings(args, time.monotonic() - start)
    report = report_json(results, settings)
    (out / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    (out / "report.html").write_text(page(results, settings))
    print(f"\n{table(results)}\n\n{settings['elapsed_s']:.0f} s; {out / 'report.html'}")
    for check in checks_of(results):
        print(f"{'ok' if check.is_met else 'FAILED'}: {check.claim}: {check.got}")
    print(last_line(results), flush=True)
    return 0 if report["passed"] else 1


def _exit_on_signal(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _settings(args: argparse.Namespace, elapsed_s: float) -> dict[str, Any]:
    return {
        "target": TARGET.name,
        "draft_sha256": sha256_of(HEAD / "model.safetensors"),
        "candidates": json.loads(CANDIDATES.read_text()),
        "config": json.loads(GOODPUT_CONFIG.read_text()),
        "prompts_per_phase": args.prompts_per_phase,
        "new_tokens": args.new_tokens,
        "temperature": 0,
        "concurrency": 1,
        "elapsed_s": round(elapsed_s, 1),
    }


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--prompts-per-phase", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--new-tokens", type=int, default=128, help="default: %(default)s")
    parser.add_argument("--full", action="store_true", help="every static depth, both policies")
    parser.add_argument("--cache", type=Path, default=Path(".cache"), help="default: %(default)s")
    parser.add_argument("--out", type=Path, default=Path("demo"), help="default: %(default)s")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
