"""Writes the training prompts as JSON lines: `python -m examples.qwen_coder.build_prompts OUT`."""

import argparse
import sys
from pathlib import Path

from examples.qwen_coder.prompts import build_prompts
from examples.training.data import write_prompts
from examples.training.titles import load_titles


def main() -> int:
    """Builds the prompts and writes one JSON object a line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--prompts", type=int, default=24_000, help="default: %(default)s")
    parser.add_argument("--cache", type=Path, default=Path(".cache"), help="default: %(default)s")
    args = parser.parse_args()
    write_prompts(args.out, build_prompts(load_titles(args.cache), args.prompts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
