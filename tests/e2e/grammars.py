"""Schemas and regexes to constrain answers with, each with what a valid answer must fulfil.

Every one of them ends by itself within `NUM_TOKENS`: strings and numbers are bounded.
"""

import json
import re
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from tests.e2e.server import Server
from tests.e2e.traffic import PROMPTS, Answers, greedy

NUM_TOKENS = 320  # the tiny models know single bytes only


class Grammar(NamedTuple):
    """A constraint, as a sampling parameter, and its check."""

    name: str
    parameter: dict[str, str]
    holds: Callable[[str], bool]


def from_schema(name: str, schema: dict[str, Any], holds: Callable[[Any], bool]) -> Grammar:
    """Returns the constraint of a JSON schema; ``holds`` gets the parsed answer."""

    def is_valid(text: str) -> bool:
        # xgrammar 0.2.7 lets NUL into strings, without speculation, too: not `strict`.
        return holds(json.loads(text, strict=False))

    return Grammar(name, {"json_schema": json.dumps(schema)}, is_valid)


def from_regex(name: str, pattern: str) -> Grammar:
    """Returns the constraint of a regular expression."""
    return Grammar(name, {"regex": pattern}, partial(is_full_match, pattern))


def is_full_match(pattern: str, text: str) -> bool:
    return re.fullmatch(pattern, text) is not None


def record(required: dict[str, Any], **rest: Any) -> dict[str, Any]:
    """Returns the schema of an object that has exactly these properties."""
    return {
        "type": "object",
        "properties": required,
        "required": list(required),
        "additionalProperties": False,
        **rest,
    }


WORD = {"type": "string", "pattern": "^[a-z]{3,12}$"}
COLOURS = ["red", "green", "blue"]
PERSON = record({"name": WORD, "age": {"type": "integer", "minimum": 0, "maximum": 120}})
NODE = {"$ref": "#/$defs/leaf"}


def is_person(value: Any) -> bool:
    """Says whether ``value`` is what `PERSON` describes."""
    return (
        set(value) == {"name", "age"}
        and is_full_match("[a-z]{3,12}", value["name"])
        and type(value["age"]) is int
        and 0 <= value["age"] <= 120
    )


def is_shape(value: Any) -> bool:
    """Says whether ``value`` is a circle or a box."""
    keys = {"circle": {"kind", "radius"}, "box": {"kind", "sides"}}
    if set(value) != keys[value["kind"]]:
        return False
    if value["kind"] == "circle":
        return value["radius"] in (1, 2, 3)
    return len(value["sides"]) == 2 and all(type(side) is bool for side in value["sides"])


def is_flat_tree(value: Any) -> bool:
    leaves = (value["left"], value["right"])
    return set(value) == {"left", "right"} and all(
        leaf is None or (set(leaf) == {"leaf"} and leaf["leaf"] in COLOURS) for leaf in leaves
    )


CIRCLE = record({"kind": {"const": "circle"}, "radius": {"enum": [1, 2, 3]}})
SIDES = {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 2}
BOX = record({"kind": {"const": "box"}, "sides": SIDES})
LEAF = {"anyOf": [record({"leaf": {"enum": COLOURS}}), {"type": "null"}]}

GRAMMARS = (
    from_schema("person", PERSON, is_person),
    from_schema(
        "people",
        {"type": "array", "items": PERSON, "minItems": 2, "maxItems": 4},
        lambda value: 2 <= len(value) <= 4 and all(map(is_person, value)),
    ),
    from_schema("shape", {"anyOf": [CIRCLE, BOX]}, is_shape),
    from_schema(
        "tree", record({"left": NODE, "right": NODE}, **{"$defs": {"leaf": LEAF}}), is_flat_tree
    ),
    from_schema(
        "text",
        record({"title": {"type": "string", "minLength": 5, "maxLength": 40}}),
        lambda value: set(value) == {"title"} and 5 <= len(value["title"]) <= 40,
    ),
    from_regex("date", r"20[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"),
    from_regex("address", r"[a-z]{2,10}(\.[a-z]{2,10})?@[a-z]{3,12}\.(org|net|com)"),
    from_regex("hex", r"(0x[0-9a-f]{8}, ){6}0x[0-9a-f]{8}"),
    from_regex("choice", r"(yes|no|perhaps)"),
    from_regex("lines", r"([A-Z][a-z ]{4,20}\n){3}The end\."),
)
PLAIN = "plain"  # neighbours without a constraint
NUM_PLAIN_TOKENS = 64


def grammar_answers(server: Server) -> Answers:
    """Asks for every constraint beside free requests, in one go and then one by one."""
    collected: Answers = {}
    requests = [(PROMPTS[n % len(PROMPTS)], grammar) for n, grammar in enumerate(GRAMMARS)]
    sampling = [constrained(grammar) for _, grammar in requests]
    texts = [prompt for prompt, _ in requests] + list(PROMPTS)
    sampling += [greedy(NUM_PLAIN_TOKENS)] * len(PROMPTS)
    replies = server.post("/generate", {"text": texts, "sampling_params": sampling})
    names = [f"batch {grammar.name}" for grammar in GRAMMARS]
    names += [f"{PLAIN} {number}" for number in range(len(PROMPTS))]
    for name, reply in zip(names, replies, strict=True):
        collected[name] = reply["text"]
    for grammar in GRAMMARS:
        body = {"text": PROMPTS[0], "sampling_params": constrained(grammar)}
        collected[f"serial {grammar.name}"] = server.post("/generate", body)["text"]
    return collected


def constrained(grammar: Grammar) -> dict[str, Any]:
    """Returns the sampling parameters of a constraint, which may end the answer."""
    return greedy(NUM_TOKENS, ignore_eos=False, **grammar.parameter)
