"""Trains the head, from nothing to what the repository holds: one command, one GPU, half an hour.

    python -m examples.qwen_coder.train WORK

What WORK holds is not made again, so a command that was ended goes on where it was:

    prompts.jsonl    24,000 prompts
    text.jsonl.xz    the target's own answers, written by SGLang
    checkpoint.pt    the training so far
    head/            the head in bfloat16, as SGLang loads it
    packed-4/        the same in 4 bits a weight, without the target's output rows; packed-8/ in 8
"""

import argparse
import sys
from pathlib import Path

from examples.qwen_coder.fetch_target import TARGET
from examples.qwen_coder.prompts import build_prompts
from examples.server import Server, free_port
from examples.training import packing, train_head, write_text
from examples.training.build_prompts import load_titles
from examples.training.data import write_prompts

NUM_PROMPTS = 24_000
READY_TIMEOUT_S = 900.0  # kernels may have to be compiled first
# 30 M trained parameters: 16 MB in 4 bits. Rows of 16,384 tokens are the target's.
SIZES = ("--intermediate-size", "3072", "--draft-vocab-size", "16384", "--freeze-output")
BITS = (4, 8)


def main(argv: list[str] | None = None) -> int:
    """Makes what is missing."""
    args, of_training = _parse(argv)
    args.work.mkdir(parents=True, exist_ok=True)
    target = args.target or TARGET.fetch(args.cache)
    prompts, text, head = (args.work / name for name in ("prompts.jsonl", "text.jsonl.xz", "head"))
    if not prompts.exists():
        write_prompts(prompts, build_prompts(load_titles(args.cache), args.prompts))
    if not text.exists():
        _write_text(target, prompts, text, args)
    if not (head / "config.json").exists():  # the last that training writes
        wanted = ["--model", str(target), "--prompts", str(prompts), "--samples", str(text)]
        wanted += ["--out", str(head), "--checkpoint", str(args.work / "checkpoint.pt")]
        wanted += ["--train-seconds", str(args.train_seconds), *SIZES, *of_training]
        train_head.main(wanted)
    for bits in BITS:
        packing.pack(head, args.work / f"packed-{bits}", target, bits)
    return 0


def _write_text(target: Path, prompts: Path, text: Path, args: argparse.Namespace) -> None:
    port = free_port()
    launch = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(target.resolve())]
    launch += ["--skip-tokenizer-init", *args.server_args]
    server = Server(launch, port, args.work.resolve() / "server.log")
    server.start()
    try:
        server.wait_ready(READY_TIMEOUT_S)
        url = ["--url", f"http://127.0.0.1:{port}"]
        wanted = ["--model", str(target), "--prompts", str(prompts), "--out", str(text)]
        write_text.main([*wanted, *url, "--passes", "2", "--seconds", str(args.write_seconds)])
    finally:
        server.stop()


def _parse(argv: list[str] | None) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0],
        epilog="Other flags are those of examples.training.train_head, and win over the head's.",
    )
    parser.add_argument("work", type=Path)
    parser.add_argument("--target", type=Path, help="its model folder [fetched]")
    parser.add_argument("--cache", type=Path, default=Path(".cache"), help="default: %(default)s")
    parser.add_argument("--prompts", type=int, default=NUM_PROMPTS, help="[%(default)s]")
    parser.add_argument("--write-seconds", type=float, default=420.0, help="[%(default)s]")
    parser.add_argument("--train-seconds", type=float, default=1100.0, help="[%(default)s]")
    parser.add_argument("--server-args", type=str.split, default=[], help="in one word")
    return parser.parse_known_args(argv)


if __name__ == "__main__":
    sys.exit(main())
