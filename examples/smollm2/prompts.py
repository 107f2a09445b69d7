"""Seeded template prompts in four domains: prose, code, JSON, maths.

Benchmark prompts (MT-bench, HumanEval, GSM8K) are deliberately absent: the demo evaluates on them.
The code prompts quote the running Python's standard library, so another Python gives another set.
"""

import importlib
import inspect
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.training.data import Prompt, hold_out

PROSE_TEMPLATES = (
    "Explain {} to a ten-year-old.",
    "Write a short essay about {}.",
    "What is {} and why does it matter?",
    "List ten facts about {}.",
    "Write a poem about {}.",
    "Compare {} with {}.",
    "Write a short story that mentions {} and {}.",
    "Give me a step-by-step guide to learning about {}.",
    "Write a letter to a friend about {}.",
    "Summarise the history of {} in three paragraphs.",
)
CODE_TEMPLATES = (
    "Write a Python function that does the following: {doc}",
    "Write a Python example that uses {module}.{name}.",
    "Write unit tests in Python for a function called {name}: {doc}",
    "Explain what {module}.{name} does in Python and show code.",
    "Write a Python class with methods to {doc}",
)
MATHS_TEMPLATES = (
    "{x} has {a} {item}. {y} has {b} times as many. How many {item} do they have together?",
    "{x} buys {a} {item} at ${c} each and gives {b} to {y}. "
    "How much did {x} spend and how many {item} are left?",
    "A box holds {b} {item}. {x} fills {c} boxes and keeps {a} {item} loose. "
    "How many {item} are there in total?",
)
WORDS: dict[str, list[str]] = json.loads(Path(__file__).with_name("words.json").read_text())

MAX_DOC_CHARS, MIN_SOURCE_CHARS, MAX_SOURCE_CHARS = 120, 200, 900


@dataclass(frozen=True, slots=True)
class LibraryEntry:
    """A documented public callable of the standard library."""

    module: str
    name: str
    doc: str
    object: Callable[..., Any]


def build_prompts(titles: Sequence[str], per_domain: int, seed: int = 7) -> list[Prompt]:
    """Returns `4 * per_domain` shuffled prompts, one in twenty held out."""
    rng = random.Random(seed)
    subjects = [title for title in titles if title.isascii()]
    rng.shuffle(subjects)
    prompts = [prose_prompt(rng, subjects) for _ in range(per_domain)]
    library = list(library_entries())
    prompts += [code_prompt(rng, library, as_source=i % 3 == 0) for i in range(per_domain)]
    prompts += [json_prompt(rng, as_continuation=i % 2 == 1) for i in range(per_domain)]
    prompts += [maths_prompt(rng) for _ in range(per_domain)]
    return hold_out(prompts, rng)


def prose_prompt(rng: random.Random, subjects: Sequence[str]) -> Prompt:
    """Asks for prose about one or two encyclopedia subjects."""
    template = rng.choice(PROSE_TEMPLATES)
    return Prompt("prose", True, template.format(*rng.sample(subjects, template.count("{}"))))


def library_entries() -> Iterator[LibraryEntry]:
    """Yields every public documented callable of the listed modules."""
    for module_name in WORDS["modules"]:
        for name, value in vars(importlib.import_module(module_name)).items():
            doc = inspect.getdoc(value) if callable(value) and not name.startswith("_") else None
            if doc:
                yield LibraryEntry(module_name, name, doc.split("\n")[0][:MAX_DOC_CHARS], value)


def code_prompt(rng: random.Random, library: Sequence[LibraryEntry], *, as_source: bool) -> Prompt:
    """Asks for Python, or shows the first two thirds of a function's source to be continued."""
    entry = rng.choice(library)
    source = _source_of(entry.object) if as_source else ""
    if len(source) > MIN_SOURCE_CHARS:
        return Prompt("code", False, source[: len(source) * 2 // 3])
    template = rng.choice(CODE_TEMPLATES)
    return Prompt(
        "code", True, template.format(module=entry.module, name=entry.name, doc=entry.doc)
    )


def _source_of(value: Callable[..., Any]) -> str:
    try:
        return inspect.getsource(value)[:MAX_SOURCE_CHARS]
    except (OSError, TypeError):  # built in C
        return ""


def json_prompt(rng: random.Random, *, as_continuation: bool) -> Prompt:
    """Shows the start of a JSON array of records, or asks for one."""
    keys = ["id", *rng.sample(WORDS["keys"][1:], rng.randint(2, 5))]
    records = [_record(rng, index + 1, keys) for index in range(rng.randint(2, 4))]
    if as_continuation:
        array = json.dumps(records, indent=rng.choice([None, 2]))
        # Two characters: "\n]" of an indented array, "}]" of a compact one.
        return Prompt("json", False, array[:-2].rstrip() + ",")
    request = (
        f"Write a JSON array with ten objects. Each object has the keys {', '.join(keys)}. "
        f"Example: {json.dumps(records[0])}"
    )
    return Prompt("json", True, request)


def _record(rng: random.Random, record_id: int, keys: Sequence[str]) -> dict[str, Any]:
    name = rng.choice(WORDS["names"])
    values = {
        "id": record_id,
        "name": name,
        "city": rng.choice(WORDS["cities"]),
        "age": rng.randint(18, 80),
        "active": rng.random() < 0.5,
        "score": round(rng.random() * 100, 1),
        "tags": rng.sample(["a", "b", "new", "old", "vip"], 2),
        "price": round(rng.random() * 50, 2),
        "quantity": rng.randint(1, 9),
        "status": rng.choice(["open", "closed", "pending"]),
        "created": f"2024-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}",
        "email": f"{name.lower()}@example.com",
    }
    return {key: values[key] for key in keys}


def maths_prompt(rng: random.Random) -> Prompt:
    """Poses a word problem of two operations."""
    a, b, c = rng.randint(2, 60), rng.randint(2, 12), rng.randint(2, 9)
    x, y = rng.sample(WORDS["names"], 2)
    item = rng.choice(WORDS["items"])
    template = rng.choice(MATHS_TEMPLATES)
    return Prompt("math", True, template.format(x=x, y=y, a=a, b=b, c=c, item=item))
