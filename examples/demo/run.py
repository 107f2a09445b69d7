"""`make demo`: the same greedy prompts to six real servers, ADAPTIVE_EAGLE the last two of them.

Succeeds only if both ADAPTIVE_EAGLE arms gave, token for token, the text that no speculation gives,
and `ema` really moved between tiers. What it does and shows: docs/demo.md.
"""

import argparse
import json
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from examples.demo.prompts import PHASES, DemoPrompt, Tokenizer, load_prompts
from examples.demo.report import (
    EMA,
    GOODPUT,
    REFERENCE,
    ArmResult,
    checks_of,
    figures_of,
    last_line,
    report_json,
    table,
    wall_time_lines,
)
from examples.demo.server import Server
from examples.demo.timeline import draw
from examples.demo.traffic import Answer, send_all
from examples.smollm2.fetch_target import MODEL_NAME, fetch_target
from examples.wheels import sha256_of

EXAMPLES = Path(__file__).resolve().parent.parent
HEAD = EXAMPLES / "smollm2" / "eagle3-head"
CONFIG = EXAMPLES / "demo" / "adaptive_spec.json"  # policy ema
GOODPUT_CONFIG = EXAMPLES / "demo" / "goodput.json"
ALGORITHM = "ADAPTIVE_EAGLE"
STATIC_STEPS = (1, 3, 5)
CACHE = "cache"  # in the output folder; `goodput` keeps its round times there
LIMITS = ("--context-length", "2048", "--max-total-tokens", "4096", "--max-running-requests", "8")


class Progress:
    """Says how far an arm is: on a terminal after each answer, in a log after each phase."""

    def __init__(self, arm: str, prompts: Sequence[DemoPrompt]) -> None:
        self._arm = arm
        self._expected = {p: sum(prompt.phase == p for prompt in prompts) for p in PHASES}
        self._answers: list[Answer] = []

    def __call__(self, answer: Answer) -> None:
        """Takes note of one more answer."""
        self._answers.append(answer)
        done = [a for a in self._answers if a.phase == answer.phase]
        is_last = len(done) == self._expected[answer.phase]
        if is_last or sys.stdout.isatty():
            figures = figures_of(done)
            line = (
                f"  {self._arm:<10} {answer.phase:<12} {len(done)}/{self._expected[answer.phase]}"
            )
            line += f"  {figures.tokens_per_s:5.1f} tok/s  accept {figures.accept_length:.2f}"
            print(line, end="\n" if is_last else "\r", flush=True)


def arms(model: Path) -> dict[str, list[str]]:
    """Returns the server arguments of every arm, by name."""
    base = ["--model-path", str(model), "--random-seed", "1", *LIMITS]
    draft = ["--speculative-draft-model-path", str(HEAD)]
    static = {
        f"static {steps}": [
            *(*base, *draft, "--speculative-algorithm", "EAGLE3"),
            *("--speculative-num-steps", str(steps), "--speculative-eagle-topk", "1"),
            *("--speculative-num-draft-tokens", str(steps + 1)),
        ]
        for steps in STATIC_STEPS
    }
    adaptive = [*base, *draft, "--speculative-algorithm", ALGORITHM]
    configs = {EMA: CONFIG, GOODPUT: GOODPUT_CONFIG}
    by_policy = {
        policy: [*adaptive, "--speculative-adaptive-config", str(config)]
        for policy, config in configs.items()
    }
    return {REFERENCE: base, **static, **by_policy}


def run_arm(
    name: str, args: list[str], prompts: Sequence[DemoPrompt], new_tokens: int, out: Path
) -> ArmResult:
    """Starts a server, sends it all prompts and stops it."""
    log = out / "logs" / f"{name.replace(' ', '-')}.log"
    # Round times are measured anew in every run: the machine may be a busier one than last time.
    with Server.of_sglang(args, log, {"XDG_CACHE_HOME": str(out / CACHE)}) as server:
        print(f"{name}: ready after {server.ready_s:.0f} s", flush=True)
        progress = Progress(name, prompts)
        answers, snapshots = send_all(server, prompts, new_tokens, progress)
        spec = server.internal_state().get("adaptive_spec")
        return ArmResult(name, server.command, server.ready_s, answers, snapshots, spec)


def main() -> int:
    """Runs the demo; 0 when every check holds."""
    args = _parse()
    signal.signal(signal.SIGTERM, _exit_on_signal)  # so that a running server is stopped, too
    start = time.monotonic()
    print(f"target: {MODEL_NAME}; draft: {HEAD.relative_to(EXAMPLES.parent)}", flush=True)
    model = fetch_target(args.cache).resolve()
    prompts = load_prompts(args.cache, Tokenizer(model).encode, args.prompts_per_phase)
    out: Path = args.out.resolve()
    shutil.rmtree(out / CACHE, ignore_errors=True)
    results = [
        run_arm(name, server_args, prompts, args.new_tokens, out)
        for name, server_args in arms(model).items()
    ]
    elapsed_s = time.monotonic() - start
    report = report_json(results, _settings(args, elapsed_s))
    (out / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    draw(results, out / "timeline.svg")
    print(f"\n{table(results)}\n\n{elapsed_s:.0f} s; {out / 'report.json'}, {out / 'timeline.svg'}")
    print("\n".join(wall_time_lines(results)))
    for check in checks_of(results):
        print(f"{'ok' if check.is_met else 'FAILED'}: {check.claim}: {check.got}")
    print(last_line(results), flush=True)
    return 0 if report["passed"] else 1


def _exit_on_signal(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _settings(args: argparse.Namespace, elapsed_s: float) -> dict[str, Any]:
    return {
        "target": MODEL_NAME,
        "draft_sha256": sha256_of(HEAD / "model.safetensors"),
        "adaptive_configs": {
            EMA: json.loads(CONFIG.read_text()),
            GOODPUT: json.loads(GOODPUT_CONFIG.read_text()),
        },
        "prompts_per_phase": args.prompts_per_phase,
        "new_tokens": args.new_tokens,
        "temperature": 0,
        "concurrency": 1,
        "elapsed_s": elapsed_s,
    }


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--prompts-per-phase", type=int, default=8, help="default: %(default)s")
    parser.add_argument("--new-tokens", type=int, default=36, help="default: %(default)s")
    parser.add_argument("--cache", type=Path, default=Path(".cache"), help="default: %(default)s")
    parser.add_argument("--out", type=Path, default=Path("demo"), help="default: %(default)s")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
