"""Adapters beside each other and beside the base model: the text of no speculation.

The draft knows the base model alone, so adapted requests accept less: the tier changes in every
round, in runs of up to 8 decodes at zero steps.
"""

from dataclasses import replace
from typing import Any

import pytest

from tests.e2e.fleet import Fleet
from tests.e2e.launches import MODELS, TINY, in_runs
from tests.e2e.server import Launch, Server
from tests.e2e.traffic import NUM_TOKENS, PROMPTS, check_identical, check_idle_and_whole, greedy
from tools.tiny_lora import RANKS, lora_arguments

ADAPTERS = (*RANKS, None)  # None: the base model
MIN_DIFFERENT = 0.5  # of an answer's tokens, between one adapter and another

LORA = lora_arguments({name: MODELS / name for name in RANKS})


def with_adapters(host: str, overlap: bool) -> Launch:
    target = (*TINY, *LORA, "--lora-backend", "torch_native")
    launch = in_runs("eagle3", "eagle3-lora", target, host, overlap)
    return replace(launch, of_target=("unpinned",))


CASES = [with_adapters("0.5.21", overlap=True), with_adapters("0.5.23", overlap=False)]

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.parametrize("launch", CASES, ids=str, scope="module"),
]


def adapted_answers(server: Server) -> dict[str, Any]:
    """Asks every prompt with every adapter in one batch, then each adapter alone."""
    asked = [(text, adapter) for text in PROMPTS for adapter in ADAPTERS]
    body = {
        "text": [text for text, _ in asked],
        "lora_path": [adapter for _, adapter in asked],
        "sampling_params": greedy(),
    }
    replies = server.post("/generate", body)
    collected = {
        f"{number} {adapter}": reply["output_ids"]
        for number, ((_, adapter), reply) in enumerate(zip(asked, replies, strict=True))
    }
    for adapter in ADAPTERS:
        one = {"text": PROMPTS[0], "lora_path": adapter, "sampling_params": greedy()}
        collected[f"alone {adapter}"] = server.post("/generate", one)["output_ids"]
    return collected


def test_adapters_and_the_base_model_share_batches(fleet: Fleet, launch: Launch) -> None:
    got, reference = fleet.compare(launch, adapted_answers)
    check_identical(got, reference)
    alone = [reference[f"alone {adapter}"] for adapter in ADAPTERS]
    for first, second in ((0, 1), (0, 2), (1, 2)):
        pairs = zip(alone[first], alone[second], strict=True)
        assert sum(one != other for one, other in pairs) >= MIN_DIFFERENT * NUM_TOKENS
    check_idle_and_whole(fleet.use(launch))
