"""Attention DP: ranks with requests of their own run the same rounds, whatever each has to do.

Two ranks of the MTP miniature. The first one draws another tier in every round, and runs of zero
steps (plugin joint_walk): one rank alone while the other one is idle, then unlike batches, which
SGLang pads to the fuller one's, with prompts read on one rank while the other one decodes, more
requests than their KV has room for, and aborts.
"""

import contextlib
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from tests.e2e.fleet import Fleet
from tests.e2e.interruptions import Stream, ending
from tests.e2e.launches import ALGORITHM, TINY_MTP
from tests.e2e.server import OURS, Launch, Server
from tests.e2e.traffic import PROMPTS, check_identical, greedy

RANKS = ("--tp-size", "2", "--dp-size", "2", "--enable-dp-attention")
# Room for two thirds of what `crowded_answers` asks for on a rank, so that requests are put back.
NARROW = ("--max-total-tokens", "768", "--schedule-conservativeness", "0.1")
MORE_ROWS = ("--max-running-requests", "16")
ON_RANK = (0, 0, 0, 1, 1)  # by prompt
FEWEST_TOKENS, MORE_TOKENS = 32, 8  # of an answer, so that they end one after the other
CROWD = 8  # requests a rank
CROWD_TOKENS = 160
ABORTED_AFTER = 20
WATCHDOG_S = 60.0  # an answer takes a few seconds


def on_two_ranks(host: str, overlap: bool = False, *more_plugins: str) -> Launch:
    target = (*TINY_MTP, *RANKS, *NARROW, *MORE_ROWS)
    plugins = (OURS, "joint_walk", *more_plugins)
    return Launch("mtp-dp2", target, ALGORITHM, host, overlap, plugins, strict=True)


CASES = [on_two_ranks("0.5.21"), on_two_ranks("0.5.23", overlap=True)]
MUTANT = replace(on_two_ranks("0.5.21", False, "votes_alone"), name="mtp-dp2-alone")

pytestmark = pytest.mark.e2e
on_cases = pytest.mark.parametrize("launch", CASES, ids=str, scope="module")


def body(number: int, rank: int, num_tokens: int) -> dict[str, Any]:
    text = PROMPTS[number % len(PROMPTS)] + " on" * (number // len(PROMPTS))
    return {"text": text, "sampling_params": greedy(num_tokens), "routed_dp_rank": rank}


def ask(server: Server, number: int, rank: int, num_tokens: int) -> dict[str, Any]:
    reply: dict[str, Any] = server.post("/generate", body(number, rank, num_tokens))
    return reply


def ranked_answers(server: Server) -> dict[str, Any]:
    """Asks each rank alone, then both, with unlike batches."""

    def answer(number: int) -> Any:
        num_tokens = FEWEST_TOKENS + number * MORE_TOKENS
        return ask(server, number, ON_RANK[number], num_tokens)["output_ids"]

    alone = {f"alone {number}": answer(number) for number in (0, 3)}
    numbers = range(len(ON_RANK))
    with ThreadPoolExecutor(len(ON_RANK)) as clients:
        together = dict(zip(numbers, clients.map(answer, numbers), strict=True))
    return alone | {f"together {number}": ids for number, ids in together.items()}


def crowded_answers(server: Server) -> dict[str, Any]:
    """Asks for more than the KV of either rank holds at once."""
    with ThreadPoolExecutor(2 * CROWD) as clients:
        pending: dict[str, Future[dict[str, Any]]] = {
            f"{number} on {rank}": clients.submit(ask, server, number, rank, CROWD_TOKENS)
            for rank in (0, 1)
            for number in range(CROWD)
        }
        return {name: reply.result() for name, reply in pending.items()}


def states(server: Server) -> list[dict[str, Any]]:
    every: list[dict[str, Any]] = server.get("/server_info")["internal_states"]
    return every


def check_agreed(server: Server) -> None:
    for state in states(server):
        spec = state["adaptive_spec"]
        assert (spec["mode"], spec["disagreements"]) == ("adaptive", 0)
        assert set(spec["fallbacks"].values()) == {0}


@on_cases
def test_ranks_with_unlike_batches_give_the_text_of_no_speculation(
    fleet: Fleet, launch: Launch
) -> None:
    check_identical(*fleet.compare(launch, ranked_answers))
    server = fleet.use(launch)
    check_agreed(server)
    ran = states(server)[0]["e2e_ran"]
    decodes = {name for name in ran if name.startswith("0 ")}
    assert len(decodes) > 2  # runs of several lengths
    assert len(ran) - len(decodes) >= 4  # and as many depths
    assert states(server)[0]["e2e_catch_ups"] > 0


@on_cases
def test_requests_put_back_go_on(fleet: Fleet, launch: Launch) -> None:
    """0.5.23 lets in no more of these than its KV holds to the end, and puts none back."""
    got, expected = fleet.compare(launch, crowded_answers)
    texts = [{name: each["output_ids"] for name, each in side.items()} for side in (got, expected)]
    check_identical(*texts)
    are_put_back = any(each["meta_info"]["num_retractions"] for each in got.values())
    assert are_put_back or launch.host == "0.5.23"
    check_agreed(fleet.use(launch))


@on_cases
def test_an_abort_on_one_rank_leaves_the_other_as_it_was(fleet: Fleet, launch: Launch) -> None:
    reference = fleet.ask_once(launch.reference(), crowded_answers)
    server = fleet.use(launch)
    with ThreadPoolExecutor(3) as clients:
        leaving = Stream(clients, server, body(0, 0, CROWD_TOKENS))
        staying = [clients.submit(ask, server, 1, rank, CROWD_TOKENS) for rank in (0, 1)]
        leaving.wait_for(ABORTED_AFTER)
        server.post("/abort_request", {"rid": leaving.rid})
        assert ending(leaving.reply()) == "abort"
        for rank, reply in enumerate(staying):
            assert reply.result()["output_ids"] == reference[f"1 on {rank}"]["output_ids"]
    check_agreed(server)


def test_a_rank_that_votes_alone_is_found(fleet: Fleet) -> None:
    """It waits for messages that the others do not send, or sends others; so a watchdog asks."""
    reference = fleet.ask_once(MUTANT.reference(), ranked_answers)
    server = fleet.use(MUTANT)
    clients = ThreadPoolExecutor(1)
    try:
        asked = clients.submit(ranked_answers, server)
        is_whole = False
        with contextlib.suppress(TimeoutError, OSError):
            is_whole = asked.result(WATCHDOG_S) == reference
        disagreements = 0
        if is_whole:  # no message was missed by chance
            disagreements = states(server)[0]["adaptive_spec"]["disagreements"]
        assert not is_whole or disagreements
    finally:
        fleet.end(MUTANT)
        clients.shutdown()
