"""The servers that the demo compares: one model pair, served in four ways, or in seven."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

EXAMPLES = Path(__file__).resolve().parent.parent
HEAD = EXAMPLES / "smollm2" / "eagle3-head"
CANDIDATES = EXAMPLES / "demo" / "candidates.json"  # for SGLang's policy
GOODPUT_CONFIG = EXAMPLES / "demo" / "goodput.json"  # the same candidates
NONE, STATIC, BUILTIN, OURS, EMA = "none", "static 3", "SGLang adaptive", "ADAPTIVE_EAGLE", "ema"
ALONE = ("--sleep-on-idle", "--skip-tokenizer-init")  # prompts and answers are token ids
LIMITS = ("--context-length", "2048", "--max-total-tokens", "4096", "--max-running-requests", "8")


class Arm(NamedTuple):
    """One way to serve the same prompts."""

    name: str
    arguments: tuple[str, ...]
    is_fixed: bool = False  # never changes its steps
    is_ours: bool = False


def arms(model: Path, is_full: bool = False) -> list[Arm]:
    """Returns the arms, ours last: what it measures at its start is then undisturbed."""
    return list(_arms(model, is_full))


def _arms(model: Path, is_full: bool) -> Iterator[Arm]:
    base = ("--model-path", str(model), "--random-seed", "1", *ALONE, *LIMITS)
    draft = (*base, "--speculative-draft-model-path", str(HEAD))
    config = "--speculative-adaptive-config"
    yield Arm(NONE, base, is_fixed=True)
    for steps in (1, 3, 5) if is_full else (3,):
        shape = ("--speculative-num-steps", str(steps), "--speculative-eagle-topk", "1")
        shape += ("--speculative-num-draft-tokens", str(steps + 1))
        eagle = ("--speculative-algorithm", "EAGLE3", *shape)
        yield Arm(f"static {steps}", (*draft, *eagle), is_fixed=True)
    builtin = ("--speculative-algorithm", "EAGLE3", "--speculative-adaptive")
    yield Arm(BUILTIN, (*draft, *builtin, config, str(CANDIDATES)))
    adaptive = (*draft, "--speculative-algorithm", "ADAPTIVE_EAGLE", config)
    if is_full:
        yield Arm(EMA, (*adaptive, str(CANDIDATES)), is_ours=True)
    yield Arm(OURS, (*adaptive, str(GOODPUT_CONFIG)), is_ours=True)
