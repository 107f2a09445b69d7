"""Seeded training prompts: chat, code in six languages, JSON, maths, summaries, translation.

Prompts of benchmarks (HumanEval, MBPP, MT-bench, GSM8K) are absent: they are what the head is
measured on. Texts to be summarised or translated are docstrings of the running Python's standard
library, so another Python gives another set.
"""

import inspect
import json
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from examples.smollm2.prompts import WORDS as COMMON
from examples.smollm2.prompts import LibraryEntry, code_prompt, json_prompt, library_entries
from examples.training.data import Prompt, hold_out

WORDS: dict[str, list[str]] = json.loads(Path(__file__).with_name("words.json").read_text())
NUM_PROMPTS = 24_000  # of the training
# Of all prompts. Chat and code are what people send; they also vary most.
SHARES = {
    "chat": 0.32,
    "code": 0.36,
    "json": 0.08,
    "maths": 0.08,
    "summary": 0.08,
    "translation": 0.08,
}
MOST = {"a": 90, "b": 12, "c": 9, "d": 7}  # of the numbers in a maths prompt
MIN_TEXT_CHARS, MAX_TEXT_CHARS = 200, 800
SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
MOST_TRIES = 20  # a prompt wanted
LIBRARY_SHARE = 0.4  # of code, or more where tasks repeat: about Python's own library


def build_prompts(titles: Sequence[str], num_prompts: int, seed: int = 7) -> list[Prompt]:
    """Returns about ``num_prompts`` different prompts, shuffled, one in twenty held out.

    Args:
        titles: Of encyclopedia articles: what chat is about.
        num_prompts: How many; SHARES has the domains'.
        seed: Another one, other prompts.
    """
    rng = random.Random(seed)
    subjects = [title for title in titles if title.isascii()]
    library = list(library_entries())
    texts = library_texts(library)
    make: dict[str, Callable[[], Prompt]] = {
        "chat": lambda: _chat(rng, subjects),
        "code": lambda: _code(rng, library),
        "json": lambda: _json(rng),
        "maths": lambda: _maths(rng),
        "summary": lambda: _summary(rng, texts),
        "translation": lambda: _translation(rng, texts),
    }
    prompts = [
        prompt
        for domain, share in SHARES.items()
        for prompt in _different(make[domain], round(share * num_prompts))
    ]
    return hold_out(prompts, rng)


def _different(make: Callable[[], Prompt], wanted: int) -> list[Prompt]:
    found: dict[str, Prompt] = {}
    num_tries = 0
    while len(found) < wanted:
        if num_tries == MOST_TRIES * wanted:
            found_so_far = f"{len(found)} different prompts of a kind"
            raise ValueError(f"{found_so_far}, {wanted} wanted; ask for fewer.")
        num_tries += 1
        prompt = make()
        found.setdefault(prompt.text, prompt)
    return list(found.values())


def library_texts(library: Sequence[LibraryEntry]) -> list[str]:
    """Returns docstrings that are long enough to say something; long ones end with a line."""
    docs = [inspect.getdoc(entry.object) or "" for entry in library]
    cut = [doc if len(doc) <= MAX_TEXT_CHARS else _whole_lines(doc) for doc in docs]
    return list(dict.fromkeys(doc for doc in cut if len(doc) >= MIN_TEXT_CHARS))


def _whole_lines(doc: str) -> str:
    return doc[:MAX_TEXT_CHARS].rsplit("\n", 1)[0]


def _chat(rng: random.Random, subjects: Sequence[str]) -> Prompt:
    return Prompt("chat", True, rng.choice(WORDS["chat"]).format(*rng.sample(subjects, 2)))


def _code(rng: random.Random, library: Sequence[LibraryEntry]) -> Prompt:
    if rng.random() < LIBRARY_SHARE:
        return code_prompt(rng, library, as_source=rng.random() < 1 / 3)  # to be continued
    task, language = rng.choice(WORDS["tasks"]), rng.choice(WORDS["languages"])
    return Prompt("code", True, rng.choice(WORDS["code"]).format(language=language, task=task))


def _json(rng: random.Random) -> Prompt:
    if rng.random() < 1 / 2:
        return json_prompt(rng, as_continuation=rng.random() < 1 / 2)
    keys = rng.sample(COMMON["keys"], rng.randint(3, 6))
    record = "; ".join(f"{key} {rng.choice(COMMON['names'])} {rng.randint(1, 99)}" for key in keys)
    fields = {"keys": ", ".join(keys), "thing": rng.choice(WORDS["things"]), "record": record}
    return Prompt("json", True, rng.choice(WORDS["json"]).format(**fields))


def _maths(rng: random.Random) -> Prompt:
    x, y = rng.sample(COMMON["names"], 2)
    numbers = {name: rng.randint(2, most) for name, most in MOST.items()}
    item = rng.choice(COMMON["items"])
    text = rng.choice(WORDS["maths"]).format(x=x, y=y, item=item, **numbers)
    return Prompt("maths", True, text)


def _summary(rng: random.Random, texts: Sequence[str]) -> Prompt:
    return Prompt("summary", True, rng.choice(WORDS["summary"]).format(text=rng.choice(texts)))


def _translation(rng: random.Random, texts: Sequence[str]) -> Prompt:
    sentences = SENTENCE_END.split(" ".join(rng.choice(texts).split()))
    start = rng.randrange(len(sentences))
    text = " ".join(sentences[start : start + rng.randint(1, 3)])
    template, tongue = rng.choice(WORDS["translation"]), rng.choice(WORDS["tongues"])
    return Prompt("translation", True, template.format(text=text, tongue=tongue))
