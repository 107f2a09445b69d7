"""The SmolLM2 pair on real prompts: tokens/s and accept length per phase, in a closed loop.

Unlike the dummy weights, this pair accepts what it accepts: nothing is injected. A prompts file
holds token ids per phase (``{"prose": [[..], ..], ..}``), so that no tokenizer is needed.
"""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.arms import Arm
from benchmarks.load import generate_closed
from benchmarks.session import Plan, serving_arm

# The phases of the first slice; the file holds those of other benchmarks, too.
SLICE_PHASES = ("prose", "code", "json", "maths")


def read_prompts(path: Path) -> dict[str, list[list[int]]]:
    """Returns token ids per phase."""
    phases: dict[str, list[list[int]]] = json.loads(path.read_text())
    return phases


def run_phases(arm: Arm, plan: Plan, phases: dict[str, list[list[int]]]) -> dict[str, Any]:
    """Serves the pair with ``arm``, sends every phase in turn, and returns its raw pass."""

    def send(prompts: Sequence[Sequence[int]]) -> dict[str, Any]:
        return send_phase(server.url, prompts, plan.new_tokens["natural"], plan.batch_sizes[0])

    with serving_arm(arm, plan) as (server, measured):
        server.command(policy=arm.policy)
        for prompts in phases.values():  # compiles, warms caches, settles the policy
            send(prompts)
        repeats: dict[str, list[dict[str, Any]]] = {name: [] for name in phases}
        for _ in range(plan.repeats):
            for name, prompts in phases.items():
                repeats[name].append(send(prompts))
        measured["phases"] = repeats
    return measured


def send_phase(
    url: str, prompts: Sequence[Sequence[int]], max_new_tokens: int, concurrency: int
) -> dict[str, Any]:
    """Sends one phase's prompts; returns tokens, wall seconds and request-rounds."""
    start = time.perf_counter()
    answers = generate_closed(url, prompts, max_new_tokens, concurrency)
    seconds = time.perf_counter() - start
    num_tokens = sum(len(answer["output_ids"]) for answer in answers)
    # Without speculation the host counts no verify rounds: each token is a round of its own.
    rounds = [
        answer["meta_info"].get("spec_verify_ct") or len(answer["output_ids"]) for answer in answers
    ]
    return {"num_tokens": num_tokens, "seconds": round(seconds, 6), "num_rounds": sum(rounds)}
