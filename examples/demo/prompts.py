"""The demo's traffic: prose, code and JSON.

Prose (MT-bench) and code (HumanEval) come from PyPI packages and share nothing with the text the
draft head was trained on. The JSON prompts come from the training templates, with another seed:
they show traffic that is easy to predict, and say nothing about unseen JSON.
"""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.public_prompts import Rows, human_eval, mt_bench_questions
from examples.smollm2.prompts import json_prompt

PROSE_CATEGORIES = ("writing", "roleplay", "stem", "humanities")
PHASES = ("prose", "code", "JSON")
JSON_SEED = 2026  # the head was trained with seed 7
MAX_PROMPT_TOKENS = 200  # a longer prompt costs a CPU more time than its answer


@dataclass(frozen=True, slots=True)
class DemoPrompt:
    """One prompt, already tokens, so that every arm gets exactly the same."""

    phase: str
    source: str
    input_ids: tuple[int, ...]


class Tokenizer:
    """The target's own tokenizer and chat template, without importing a library of models."""

    def __init__(self, folder: Path) -> None:
        from jinja2 import Environment
        from tokenizers import Tokenizer as FromFile

        self._tokenizer: Any = FromFile.from_file(str(folder / "tokenizer.json"))
        template = json.loads((folder / "tokenizer_config.json").read_text())["chat_template"]
        # As transformers renders it.
        self._chat = Environment(trim_blocks=True, lstrip_blocks=True).from_string(template)

    def encode(self, text: str, *, is_chat: bool) -> tuple[int, ...]:
        """Returns the ids of a user turn, or of raw text to be continued."""
        if is_chat:
            turn = [{"role": "user", "content": text}]
            text = self._chat.render(messages=turn, add_generation_prompt=True)
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)


Encode = Callable[..., tuple[int, ...]]


def load_prompts(cache: Path, encode: Encode, per_phase: int) -> list[DemoPrompt]:
    """Returns `per_phase` prompts for each of `PHASES`, in the order they are sent."""
    prose = short_enough(prose_texts(mt_bench_questions(cache)), encode, is_chat=True)
    code = short_enough(code_texts(human_eval(cache)), encode, is_chat=False)
    array = short_enough(json_texts(4 * per_phase), encode, is_chat=False)
    chosen = (prose[:per_phase], code[:per_phase], array[:per_phase])
    for phase, prompts in zip(PHASES, chosen, strict=True):
        if len(prompts) < per_phase:
            raise ValueError(f"{phase}: {len(prompts)} prompts, {per_phase} wanted; ask for fewer")
    return [
        DemoPrompt(phase, source, ids)
        for phase, prompts in zip(PHASES, chosen, strict=True)
        for source, ids in prompts
    ]


def short_enough(
    texts: Sequence[tuple[str, str]], encode: Encode, *, is_chat: bool
) -> list[tuple[str, tuple[int, ...]]]:
    """Returns (source, ids) of the texts of at most `MAX_PROMPT_TOKENS`."""
    encoded = [(source, encode(text, is_chat=is_chat)) for source, text in texts]
    return [(source, ids) for source, ids in encoded if len(ids) <= MAX_PROMPT_TOKENS]


def prose_texts(questions: Rows) -> list[tuple[str, str]]:
    """Returns the first turns of MT-bench's prose questions, categories taking turns."""
    by_category: dict[str, list[tuple[str, str]]] = {name: [] for name in PROSE_CATEGORIES}
    for question in questions:
        if question["category"] in by_category:
            entry = (f"MT-bench {question['question_id']}", question["turns"][0])
            by_category[question["category"]].append(entry)
    rows = zip(*by_category.values(), strict=True)
    return [entry for row in rows for entry in row]


def code_texts(problems: Rows) -> list[tuple[str, str]]:
    """Returns HumanEval's problems: a signature and a docstring to be continued."""
    return [(problem["task_id"], problem["prompt"]) for problem in problems]


def json_texts(count: int) -> list[tuple[str, str]]:
    """Returns beginnings of JSON arrays of records."""
    rng = random.Random(JSON_SEED)
    return [
        (f"JSON template {index}", json_prompt(rng, as_continuation=True).text)
        for index in range(count)
    ]
