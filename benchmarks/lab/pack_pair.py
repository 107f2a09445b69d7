"""Takes a pair's target to a machine without a network, in pieces small enough to travel.

    python -m benchmarks.lab.pack_pair pack PAIR            # here: .cache/pieces/PAIR
    python -m benchmarks.lab.pack_pair prompts PAIR         # here: what it is asked, alone
    python -m benchmarks.lab.pack_pair keep PAIR FOLDER     # there, in each call with a piece
    python -m benchmarks.lab.pack_pair unpack PAIR FOLDER   # there, once: FOLDER/target, /head

PAIR is smollm2 or qwen-coder. The target travels as its GGUF, and is dequantised there. The head is
in the checkout; one that is packed is unpacked there. Prompts travel as token ids
(benchmarks/lab/held_out.py), so that no tokenizer is needed.
"""

import argparse
import importlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

from benchmarks.lab import held_out

PIECES = Path(".cache/pieces")
PIECE_BYTES = 28 * 2**20  # beside a checkout of 36 MiB, where 64 MiB travel at once
PAIRS = {"smollm2": "examples.smollm2", "qwen-coder": "examples.qwen_coder"}


def target_of(pair: str) -> Any:
    """Returns the target of a pair, an `examples.gguf_to_hf.fetch.GgufModel`."""
    return importlib.import_module(f"{PAIRS[pair]}.fetch_target").TARGET


def head_of(pair: str) -> Path:
    """Returns the folder of a pair's head in this checkout."""
    return Path(*PAIRS[pair].split(".")) / "eagle3-head"


def pack(pair: str, cache: Path) -> None:
    """Writes the pieces and the prompts."""
    folder = PIECES / pair
    folder.mkdir(parents=True, exist_ok=True)
    gguf = target_of(pair).fetch_gguf(cache)
    with gguf.open("rb") as source:
        number = 0
        while content := source.read(PIECE_BYTES):
            (folder / f"part.{number:02d}").write_bytes(content)
            number += 1
    gguf.unlink()
    print(f"{folder}: {number} pieces of {PIECE_BYTES / 2**20:.0f} MiB at most")
    write_prompts(pair, cache)


def write_prompts(pair: str, cache: Path) -> None:
    """Writes the prompts of every phase to prompts.json."""
    from examples.demo.prompts import Tokenizer

    folder = PIECES / pair
    folder.mkdir(parents=True, exist_ok=True)
    encode = Tokenizer(target_of(pair).fetch(cache)).encode
    phases = held_out.PHASES[pair](cache)
    ids = {
        phase: [encode(text, is_chat=is_turn) for text, is_turn in prompts]
        for phase, prompts in {**phases, **held_out.repeating_phases(cache)}.items()
    }
    (folder / "prompts.json").write_text(json.dumps(ids))
    print({phase: len(prompts) for phase, prompts in ids.items()})


def keep(pair: str, folder: Path) -> None:
    """Copies the pieces that came with this call to ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    for piece in (PIECES / pair).iterdir():
        shutil.copy(piece, folder)
    print(sorted(path.name for path in folder.iterdir()))


def unpack(pair: str, folder: Path) -> None:
    """Joins the pieces in ``folder``, converts the target, and unpacks a packed head beside it."""
    from examples.training import packing

    gguf = folder / "target.gguf"
    with gguf.open("wb") as sink:
        for part in sorted(folder.glob("part.*")):
            with part.open("rb") as source:
                shutil.copyfileobj(source, sink)
    target_of(pair).convert(gguf, folder / "target")
    gguf.unlink()
    head = head_of(pair)
    if (head / packing.PACKED).exists():
        packing.unpack(head, folder / "head", folder / "target")


def main(argv: list[str] | None = None) -> int:
    """Runs one step."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    steps = parser.add_subparsers(dest="step", required=True)
    for step in (pack, write_prompts, keep, unpack):
        command = steps.add_parser(step.__name__.removeprefix("write_"))
        command.add_argument("pair", choices=PAIRS)
        if step in (pack, write_prompts):
            command.add_argument("--cache", dest="where", type=Path, default=Path(".cache"))
        else:
            command.add_argument("where", metavar="FOLDER", type=Path)
        command.set_defaults(run=step)
    args = parser.parse_args(argv)
    args.run(args.pair, args.where)
    return 0


if __name__ == "__main__":
    sys.exit(main())
