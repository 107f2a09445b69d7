"""300 requests of random length, concurrency and fate leave nothing behind.

The tier changes in every round and the host checks its KV pages, request slots and relays while
it serves (SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY, SGLANG_CHECK_KV_PAGE_INVARIANTS,
SGLANG_IS_IN_CI): what it finds ends the server. SOAK_REQUESTS sets another number.
"""

import os
import random
import urllib.error
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass

import pytest

from tests.e2e.launches import NUM_STEPS, forced
from tests.e2e.server import Server
from tests.e2e.traffic import check_idle_and_whole, disconnect_while_running, greedy

SEED = 300
NUM_REQUESTS = int(os.environ.get("SOAK_REQUESTS", "300"))
NUM_CLIENTS = 12  # more than the server runs at once, so that requests queue as well
FATES = ("finish", "finish", "finish", "abort", "disconnect")
MIN_ABORTED = 10  # an abort that overtakes its request does nothing
MIN_ROUNDS = 20  # at every tier
WORDS = ("alpha ", "beta, ", "gamma\n", "0x1f ", "{}; ", "the end. ")


@dataclass(frozen=True)
class Request:
    """One client's request, drawn before anything is sent."""

    rid: str  # of one length: the host aborts every rid that begins with the one given
    fate: str
    text: str
    num_tokens: int
    abort_after_s: float


CASES = [
    forced("eagle3", host="0.5.23", overlap=True),
    forced("eagle", overlap=True),
    forced("standalone", host="0.5.22", overlap=True),
    forced("ngram", host="0.5.20", overlap=True),
]

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.parametrize("launch", CASES, ids=str, scope="module"),
]


def requests(seed: int) -> list[Request]:
    rng = random.Random(seed)
    return [
        Request(
            rid=f"soak-{number:06d}",
            fate=rng.choice(FATES),
            text="".join(rng.choices(WORDS, k=rng.randint(1, 40))),
            num_tokens=rng.choice((1, 2, 3, 8, rng.randint(10, 60), rng.randint(60, 120))),
            abort_after_s=rng.uniform(0.0, 0.4),
        )
        for number in range(NUM_REQUESTS)
    ]


def send(server: Server, request: Request) -> str:
    """Sends one request as its fate says; returns how it ended."""
    if request.fate == "disconnect":
        disconnect_while_running(server, request.rid, request.text, request.num_tokens)
        return "disconnect"
    sampling = greedy(request.num_tokens)
    body = {"text": request.text, "rid": request.rid, "sampling_params": sampling}
    with ThreadPoolExecutor(1) as pool:
        reply = pool.submit(server.post, "/generate", body)
        if request.fate == "abort":
            wait([reply], timeout=request.abort_after_s)
            server.post("/abort_request", {"rid": request.rid})
        try:
            meta = reply.result()["meta_info"]
        except urllib.error.HTTPError:
            assert request.fate == "abort", "only an aborted request may be refused"
            return "abort"
    ending = str(meta["finish_reason"]["type"])
    if ending == "length":
        assert meta["completion_tokens"] == request.num_tokens
    return ending


def test_300_requests_with_aborts_leak_nothing(server: Server) -> None:
    check_idle_and_whole(server)
    drawn = requests(SEED)
    with ThreadPoolExecutor(NUM_CLIENTS) as clients:
        endings = list(clients.map(lambda request: send(server, request), drawn))
    fates = Counter((request.fate, ending) for request, ending in zip(drawn, endings, strict=True))
    print(fates)
    assert set(fates) <= {
        ("finish", "length"),
        ("abort", "abort"),
        ("abort", "length"),
        ("disconnect", "disconnect"),
    }
    assert fates["abort", "abort"] >= MIN_ABORTED
    assert fates["disconnect", "disconnect"] >= MIN_ABORTED

    check_idle_and_whole(server)
    spec = server.internal_state()["adaptive_spec"]
    assert spec["fallbacks"] == {"policy_error": 0, "feedback_mismatch": 0}
    assert set(spec["rounds"]) == {str(steps) for steps in NUM_STEPS}
    assert min(spec["rounds"].values()) >= MIN_ROUNDS
