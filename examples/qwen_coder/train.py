"""Trains the head, from prompts to what a repository can hold, on all GPUs of a machine.

    python -m examples.qwen_coder.train WORK

Prompts, text and heads that WORK holds are not made again, so a command that was ended goes on:

    prompts.jsonl    24,000 prompts
    text.jsonl       the target's own answers, written by SGLang, a replica on each GPU
    head-0/ ...      a head for each GPU, each with other SETTINGS; head-0.pt: its training so far
    packed-4/        the best head in 4 bits a weight, without output rows; packed-8/ in 8
    unpacked-4/ ...  the same as SGLang loads it
    acceptance.json  what drafts hold on held-out text: of every head, and of the best one's bits

One GPU trains with the first SETTINGS. Other flags are those of train_head, and win.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from examples.qwen_coder.fetch_target import TARGET
from examples.qwen_coder.prompts import NUM_PROMPTS, build_prompts
from examples.server import Server, free_port
from examples.training import measure, packing, train_head, write_text
from examples.training.build_prompts import load_titles
from examples.training.data import write_prompts
from examples.training.measure import Acceptance

READY_TIMEOUT_S = 900.0  # kernels may have to be compiled first
# 30 M trained parameters: 16 MB in 4 bits. Rows of 16,384 tokens are the target's.
SIZES = ("--intermediate-size", "3072", "--draft-vocab-size", "16384", "--freeze-output")
# The first gave the shipped head. Half its rate: 2.74 drafts accepted in a row instead of 2.99.
# The last unrolls as deep as served chains are.
SETTINGS = (
    ("--learning-rate", "8e-4"),
    ("--learning-rate", "1.6e-3"),
    ("--learning-rate", "8e-4", "--num-steps", "7", "--batch-size", "48"),
)
BITS = (4, 8)

ByDomain = dict[str, Acceptance]


def main(argv: list[str] | None = None) -> int:
    """Makes what is missing."""
    args, of_training = _parse(argv)
    args.work.mkdir(parents=True, exist_ok=True)
    target = args.target or TARGET.fetch(args.cache)
    prompts, text = args.work / "prompts.jsonl", args.work / "text.jsonl"
    if not prompts.exists():
        write_prompts(prompts, build_prompts(load_titles(args.cache), args.prompts))
    if not text.exists():
        _write_text(target, prompts, text, args)
    heads = [args.work / f"head-{number}" for number in range(min(args.gpus, len(SETTINGS)))]
    wanted = ["--model", str(target), "--prompts", str(prompts), "--samples", str(text)]
    wanted += ["--train-seconds", str(args.train_seconds), *SIZES]
    train_each(heads, wanted, of_training)
    found = acceptance_of({head.name: head for head in heads}, target, text)
    best = max(heads, key=lambda head: mean_of(found[head.name]))
    stored: dict[str, Path] = {}
    for bits in BITS:
        packed, unpacked = args.work / f"packed-{bits}", args.work / f"unpacked-{bits}"
        packing.pack(best, packed, target, bits)
        packing.unpack(packed, unpacked, target)
        stored[f"{best.name} in {bits} bits"] = unpacked
    found |= acceptance_of(stored, target, text)
    written = json.dumps(found, indent=1, default=asdict)
    (args.work / "acceptance.json").write_text(f"{written}\n")
    print({name: round(mean_of(each), 3) for name, each in found.items()})
    return 0


def _write_text(target: Path, prompts: Path, text: Path, args: argparse.Namespace) -> None:
    launch = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(target.resolve())]
    launch += ["--skip-tokenizer-init", "--dp-size", str(args.gpus), *args.server_args]
    log = args.work.resolve() / "server.log"
    with Server(launch, free_port(), log, ready_timeout_s=READY_TIMEOUT_S) as server:
        wanted = ["--model", str(target), "--prompts", str(prompts), "--out", str(text)]
        wanted += ["--url", server.url, "--batch", str(2048 * args.gpus)]
        write_text.main([*wanted, "--passes", "2", "--seconds", str(args.write_seconds)])


def train_each(heads: Sequence[Path], arguments: Sequence[str], last: Sequence[str]) -> None:
    """Trains the heads that are missing, one on each GPU, all at the same time.

    Args:
        heads: their folders.
        arguments: of every training.
        last: the user's own, which win over SETTINGS.

    Raises:
        RuntimeError: A training ended early.
    """
    gpus = gpu_names(len(heads))
    training: dict[str, subprocess.Popen[bytes]] = {}
    for number, head in enumerate(heads):
        if (head / "config.json").exists():  # the last that training writes
            continue
        command = [sys.executable, "-m", "examples.training.train_head", *arguments]
        command += ["--out", str(head), "--checkpoint", str(head.with_suffix(".pt"))]
        command += [*SETTINGS[number], *last]
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": gpus[number]}
        training[head.name] = subprocess.Popen(command, env=environment)
    failed = [name for name, process in training.items() if process.wait()]
    if failed:
        raise RuntimeError(f"the training of {', '.join(failed)} ended early; start again.")


def gpu_names(number: int) -> list[str]:
    """Returns what CUDA_VISIBLE_DEVICES says, or else counts."""
    given = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return given or [str(each) for each in range(number)]


def acceptance_of(heads: Mapping[str, Path], target: Path, text: Path) -> dict[str, ByDomain]:
    """Returns what drafts hold on the held-out text, by the names of some heads."""
    found = measure.measured(target, [*heads.values()], text)
    return dict(zip(heads, found, strict=True))


def mean_of(by_domain: ByDomain) -> float:
    """Returns the drafts accepted in a row, domains counting alike."""
    return statistics.fmean(each.num_correct_drafts for each in by_domain.values())


def _parse(argv: list[str] | None) -> tuple[argparse.Namespace, list[str]]:
    import torch

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("work", type=Path)
    parser.add_argument("--target", type=Path, help="its model folder [fetched]")
    parser.add_argument("--cache", type=Path, default=Path(".cache"), help="default: %(default)s")
    parser.add_argument("--gpus", type=int, default=max(torch.cuda.device_count(), 1))
    parser.add_argument("--prompts", type=int, default=NUM_PROMPTS, help="[%(default)s]")
    parser.add_argument("--write-seconds", type=float, default=420.0, help="[%(default)s]")
    parser.add_argument("--train-seconds", type=float, default=1100.0, help="[%(default)s]")
    server = "more of the server's: --server-args='--flag value'"
    parser.add_argument("--server-args", type=str.split, default=[], help=server)
    args, of_training = parser.parse_known_args(argv)
    needed = ["--model", "", "--prompts", "", "--out", "", "--samples", ""]
    train_head.parser().parse_args([*needed, *of_training])  # refuses them before hours of work
    return args, of_training


if __name__ == "__main__":
    sys.exit(main())
