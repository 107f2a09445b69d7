"""Attention DP: ranks with requests of their own, whose experts run together. Served static yet.

Two ranks of the MTP miniature: one alone while the other one is idle, then unlike batches, which
SGLang pads to the fuller one's, and a prefill on one rank while the other decodes.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.e2e.fleet import Fleet
from tests.e2e.launches import ALGORITHM, TINY_MTP
from tests.e2e.server import Launch, Server
from tests.e2e.traffic import PROMPTS, check_identical, greedy

RANKS = ("--tp-size", "2", "--dp-size", "2", "--enable-dp-attention")
THREE_STEPS = ("--speculative-num-steps", "3")
ON_RANK = (0, 0, 0, 1, 1)  # by prompt
FEWEST_TOKENS, MORE_TOKENS = 32, 8  # of an answer, so that they end one after the other


def on_two_ranks(host: str) -> Launch:
    return Launch("mtp-dp2", (*TINY_MTP, *RANKS), (*ALGORITHM, *THREE_STEPS), host, strict=True)


CASES = [on_two_ranks("0.5.21"), on_two_ranks("0.5.23")]

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.parametrize("launch", CASES, ids=str, scope="module"),
]


def ranked_answers(server: Server) -> dict[str, Any]:
    def ask(number: int) -> list[int]:
        body = {
            "text": PROMPTS[number],
            "sampling_params": greedy(FEWEST_TOKENS + number * MORE_TOKENS),
            "routed_dp_rank": ON_RANK[number],
        }
        ids: list[int] = server.post("/generate", body)["output_ids"]
        return ids

    alone = {f"alone {number}": ask(number) for number in (0, 3)}
    numbers = range(len(ON_RANK))
    with ThreadPoolExecutor(len(ON_RANK)) as clients:
        together = dict(zip(numbers, clients.map(ask, numbers), strict=True))
    return alone | {f"together {number}": ids for number, ids in together.items()}


def test_ranks_with_unlike_batches_are_served_static_with_the_text_of_no_speculation(
    fleet: Fleet, launch: Launch
) -> None:
    check_identical(*fleet.compare(launch, ranked_answers))
    spec = fleet.use(launch).internal_state()["adaptive_spec"]
    assert spec["mode"] == "static"
    assert "dp" in spec["reason"].lower()
