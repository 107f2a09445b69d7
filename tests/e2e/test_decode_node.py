"""A PD decode node: requests arrive prefilled, with their first token and no draft of their own.

The tier changes in every round, in runs of up to 8 decodes at zero steps. No prefill node takes
part: SGLang's fake transfer hands requests over (plugins/e2e_plugins/handed_over.py).
"""

from dataclasses import replace
from typing import Any

import pytest

from tests.e2e.fleet import Fleet
from tests.e2e.launches import TINY, in_runs
from tests.e2e.server import Launch, Server
from tests.e2e.traffic import (
    NUM_TOKENS,
    PROMPTS,
    check_identical,
    check_idle_and_whole,
    greedy,
    output_ids,
)

DECODE_NODE = (
    *("--disaggregation-mode", "decode", "--disaggregation-transfer-backend", "fake"),
    *("--disaggregation-decode-retraction-backup", "cpu_tensor"),  # a host pool is pinned memory
    # Too few for all that run: some are put back, and handed over to themselves.
    *("--max-total-tokens", "1024", "--num-reserved-decode-tokens", "16"),
)
NOBODY = {"bootstrap_host": "2.2.2.2"}  # whom SGLang's fake transfer hears from
NUM_EACH = 2  # of every prompt at once


def decode_node(base: str, host: str, overlap: bool) -> Launch:
    launch = in_runs(base, f"{base}-decode-node", (*TINY, *DECODE_NODE), host, overlap)
    return replace(launch, of_target=("handed_over",))


CASES = [
    decode_node("eagle3", "0.5.21", overlap=True),
    decode_node("eagle", "0.5.23", overlap=False),
]

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.parametrize("launch", CASES, ids=str, scope="module"),
]


def answer(server: Server, text: str, name: str) -> dict[str, Any]:
    body = {"text": text, "rid": name, "sampling_params": greedy(), **NOBODY}
    reply: dict[str, Any] = server.post("/generate", body)
    return reply


def handed_over_answers(server: Server) -> dict[str, Any]:
    """Asks some prompts alone, then all at once; the first token follows from the name."""
    alone = {f"alone {number}": answer(server, PROMPTS[number], f"a{number}") for number in (0, 2)}
    names = [(number, f"b{number}-{turn}") for turn in range(NUM_EACH) for number in range(6)]
    body = {
        "text": [PROMPTS[number] for number, _ in names],
        "rid": [name for _, name in names],
        "sampling_params": greedy(),
        **NOBODY,
    }
    replies = server.post("/generate", body)
    return alone | {name: reply for (_, name), reply in zip(names, replies, strict=True)}


def test_requests_that_arrive_prefilled_are_answered_as_without_speculation(
    fleet: Fleet, launch: Launch
) -> None:
    got, reference = fleet.compare(launch, handed_over_answers)
    check_identical(output_ids(got), output_ids(reference))
    assert all(len(ids) == NUM_TOKENS for ids in output_ids(got).values())
    retracted = any(reply["meta_info"]["num_retractions"] for reply in got.values())
    assert retracted
    check_idle_and_whole(fleet.use(launch))
