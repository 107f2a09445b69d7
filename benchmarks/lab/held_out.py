"""What the real pairs are asked in benchmarks: per phase, texts and whether each is a user's turn.

For SmolLM2: MT-bench (prose), HumanEval (code), GSM8K (maths), and HumanEval rows as a JSON list to
be continued. None of these was trained on. Two more phases take the parts of those in SGLang's
benchmark of its adaptive speculation: `low` asks for open-ended writing, `high` continues JSON of
the template that the head was trained on, with values of another seed. For Qwen2.5-Coder:
examples/qwen_coder/held_out.py.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path

NUM_PROMPTS = 16  # per phase
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
# Answers that repeat their prompts, for a table of what was written as the draft.
EDIT = (
    "Here is a Python function:\n\n{code}\nGive it again with the docstring in one line and with "
    "type hints. Change nothing else, and write no explanation."
)
QUOTE = "List the three main points of this text, and quote the sentence for each.\n\n{text}"

Phases = Mapping[str, list[tuple[str, bool]]]


def smollm2_phases(cache: Path) -> Phases:
    """Returns the prompts for SmolLM2."""
    from examples.public_prompts import gsm8k, human_eval, json_lists, mt_bench_questions

    questions, problems = mt_bench_questions(cache), human_eval(cache)
    prose = [row["turns"][0] for row in questions if row["category"] in PROSE_CATEGORIES]
    return {
        "prose": [(text, True) for text in prose[:NUM_PROMPTS]],
        "code": [(row["prompt"], False) for row in problems[:NUM_PROMPTS]],
        "json": [(text, False) for text in islice(json_lists(problems), NUM_PROMPTS)],
        "maths": [(text, True) for text in gsm8k(cache)[:NUM_PROMPTS]],
        "low": [(text, True) for text in OPEN_ENDED],
        "high": [(text, False) for text in templated_json()],
    }


def templated_json() -> Iterator[str]:
    """Yields beginnings of JSON arrays from the template that the head was trained on."""
    from examples.smollm2.prompts import json_prompt

    for number in range(NUM_HIGH):
        yield json_prompt(random.Random(HIGH_SEED + number), as_continuation=True).text


def repeating_phases(cache: Path) -> Phases:
    """Returns prompts whose answers repeat them: HumanEval edited, MT-bench's answers quoted."""
    from examples.public_prompts import human_eval
    from examples.qwen_coder.held_out import short_answers

    codes = [row["prompt"] + row["canonical_solution"] for row in human_eval(cache)]
    return {
        "edits": [(EDIT.format(code=code), True) for code in codes],
        "quotes": [(QUOTE.format(text=text), True) for text in short_answers(cache)],
    }


def qwen_coder_phases(cache: Path) -> Phases:
    """Returns the prompts for Qwen2.5-Coder, by domain."""
    from examples.qwen_coder.held_out import held_out_prompts

    phases: dict[str, list[tuple[str, bool]]] = {}
    for prompt in held_out_prompts(cache):
        phases.setdefault(prompt.domain, []).append((prompt.text, prompt.chat))
    return phases


PHASES: Mapping[str, Callable[[Path], Phases]] = {
    "smollm2": smollm2_phases,
    "qwen-coder": qwen_coder_phases,
}
