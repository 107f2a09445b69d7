"""A PD pair: a prefill node reads the prompts, and a decode node says the rest.

KV, first token and what the draft begins with travel through NIXL, as between machines. The tier
changes in every round of the decode node, in runs of up to 8 decodes at zero steps.
"""

import itertools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from tests.e2e.fleet import Fleet
from tests.e2e.launches import TINY, in_runs
from tests.e2e.server import OURS, Launch, Server, free_port
from tests.e2e.traffic import (
    NUM_TOKENS,
    PROMPTS,
    check_identical,
    check_idle_and_whole,
    greedy,
    output_ids,
)
from tests.hosts import nixl_source

BOOTSTRAP_PORT = free_port()
BOTH = (
    *("--disaggregation-transfer-backend", "nixl"),
    *("--disaggregation-bootstrap-port", str(BOOTSTRAP_PORT)),
)
# A prefix from the cache is sent behind an event of a GPU's.
PREFILL_NODE = ("--disaggregation-mode", "prefill", "--disable-radix-cache", *BOTH)
DECODE_NODE = (
    *("--disaggregation-mode", "decode", "--disaggregation-decode-retraction-backup", "cpu_tensor"),
    # Too few for all that run: some are put back.
    *("--max-total-tokens", "1024", "--num-reserved-decode-tokens", "16", *BOTH),
)
NUM_EACH = 2  # of every prompt at once


def decode_node(base: str, host: str, overlap: bool) -> Launch:
    launch = in_runs(base, f"{base}-decode-of-pair", (*TINY, *DECODE_NODE), host, overlap)
    return replace(launch, of_target=("host_memory",))


def prefill_node(decode: Launch) -> Launch:
    """Returns the node that reads prompts for ``decode``, started with the same speculation."""
    target, plugins = (*TINY, *PREFILL_NODE), (OURS,)
    return replace(decode, name=f"{decode.name}-prefill", target=target, plugins=plugins)


# By the server that they are compared with. Nodes keep a core busy: they start when asked.
CASES = {
    Launch("none", TINY, host=decode.host): decode
    for decode in (
        decode_node("eagle3", "0.5.21", overlap=True),
        decode_node("eagle", "0.5.23", overlap=False),
    )
}

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.parametrize("launch", CASES, ids=str, scope="module"),
]
_rooms = itertools.count(1)


def answer(nodes: tuple[Server, ...], text: str) -> dict[str, Any]:
    """Asks both nodes; returns the answer of the last one."""
    body = {
        "text": text,
        "sampling_params": greedy(),
        "bootstrap_host": "127.0.0.1",
        "bootstrap_port": BOOTSTRAP_PORT,
        "bootstrap_room": next(_rooms),
    }
    with ThreadPoolExecutor(len(nodes)) as clients:
        *_, reply = clients.map(lambda node: node.post("/generate", body), nodes)
    found: dict[str, Any] = reply
    return found


def many_answers(*nodes: Server) -> dict[str, Any]:
    """Asks some prompts alone, then all at once."""
    alone = {f"alone {number}": answer(nodes, PROMPTS[number]) for number in (0, 2)}
    numbers = [number for _ in range(NUM_EACH) for number in range(6)]
    with ThreadPoolExecutor(len(numbers)) as clients:
        replies = clients.map(lambda number: answer(nodes, PROMPTS[number]), numbers)
    return alone | {f"{idx}: {numbers[idx]}": reply for idx, reply in enumerate(replies)}


def plain_answers(server: Server) -> dict[str, Any]:
    return many_answers(server)


def test_a_pair_answers_as_one_server_without_speculation(fleet: Fleet, launch: Launch) -> None:
    nixl_source()
    expected = output_ids(fleet.ask_once(launch, plain_answers))
    node = CASES[launch]
    prefill, decode = fleet.use_together([prefill_node(node), node])
    got = many_answers(prefill, decode)
    check_identical(output_ids(got), expected)
    assert all(len(ids) == NUM_TOKENS for ids in output_ids(got).values())
    assert any(reply["meta_info"]["num_retractions"] for reply in got.values())
    assert prefill.internal_state()["adaptive_spec"]["mode"] == "static"
    assert "decodes nothing" in prefill.internal_state()["adaptive_spec"]["reason"]
    check_idle_and_whole(decode)
