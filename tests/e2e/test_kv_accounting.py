"""KV slots are neither lost nor mixed up under memory pressure, at another tier in every round.

The pool holds a third of what the requests need, so that the host retracts some; prompts share
prefixes and are longer than a chunk of prefill; some requests are aborted. The host checks its
pages while it serves and ends the server on what it finds. Page sizes 1 and 16 (the latter with
the allocator's kernels in plain torch, see plugins/e2e_plugins/paged_on_cpu.py), radix cache on
and off: all the text of no speculation.
"""

import contextlib
import random
import urllib.error
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.e2e.fleet import Fleet
from tests.e2e.launches import NUM_STEPS, TINY, forced
from tests.e2e.server import Launch, Server
from tests.e2e.traffic import abort_running, check_identical, check_idle_and_whole, greedy

SEED = 41
NUM_REQUESTS = 24  # after the burst
NUM_CLIENTS = 12  # more than the server runs at once
BURST_TOKENS = 320  # of 8 requests: 2.5 times the pool
MIN_ROUNDS = 20  # at every tier
CHUNK_TOKENS = 64
RETRACTED = "KV cache pool is full. Retract requests."
STEMS = ("The same beginning. " * 6, "0123456789abcdef" * 14, "x = [1, 2]\n", "")
LONG_PROMPT = "a prompt of many chunks; " * 16

# Later arguments win over those of TINY. Little is reserved for what a request may yet say.
SMALL_POOL = (
    *TINY,
    *("--max-total-tokens", "1024", "--schedule-conservativeness", "0.1"),
    *("--chunked-prefill-size", str(CHUNK_TOKENS)),
)


def small_pool(base: str, name: str, *args: str, plugins: tuple[str, ...] = ()) -> Launch:
    """Switches in every round, under the host's own checks, in a pool that is too small."""
    launch = forced(base, overlap=True)
    return replace(
        launch,
        name=name,
        target=SMALL_POOL,
        args=(*launch.args, *args),
        plugins=(*launch.plugins, *plugins),
    )


PAGED = small_pool("eagle", "page-16", "--page-size", "16", plugins=("paged_on_cpu",))
NO_RADIX = small_pool("eagle", "no-radix", "--disable-radix-cache")
OTHER_DRAFTS = [small_pool(base, base) for base in ("standalone", "ngram")]
CASES = [small_pool("eagle3", "page-1"), PAGED, NO_RADIX, *OTHER_DRAFTS]

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.parametrize("launch", CASES, ids=str, scope="module"),
]


@dataclass(frozen=True)
class Request:
    """One client's request."""

    rid: str  # of one length: the host aborts every rid that begins with the one given
    text: str
    num_tokens: int
    is_aborted: bool


def requests(seed: int) -> list[Request]:
    """Draws the requests; the first, which all run at once, soon need more than there is."""
    rng = random.Random(seed)
    burst = [
        Request(f"kv-a{n:02d}", f"burst {n}", BURST_TOKENS, is_aborted=False) for n in range(8)
    ]
    return burst + [
        Request(
            rid=f"kv-b{number:02d}",
            text=rng.choice(STEMS) + "".join(rng.choices("abc def\n", k=rng.randint(1, 30))),
            num_tokens=rng.choice((1, 2, 20, 60, 120, 180)),
            is_aborted=rng.random() < 0.2,
        )
        for number in range(NUM_REQUESTS)
    ]


def send(server: Server, request: Request) -> dict[str, Any] | None:
    """Returns the answer; None for a request that is aborted as soon as it may be running."""
    sampling = greedy(request.num_tokens, ignore_eos=False)  # else all of it is reserved
    body = {"text": request.text, "rid": request.rid, "sampling_params": sampling}
    if not request.is_aborted:
        reply: dict[str, Any] = server.post("/generate", body)
        return reply
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(server.post, "/generate", body)
        server.post("/abort_request", {"rid": request.rid})
        with contextlib.suppress(urllib.error.HTTPError):  # it did not run yet
            waiting.result()
    return None


def kv_answers(server: Server) -> dict[str, Any]:
    """Asks everything once, and flushes the cache at the end."""
    body = {"text": LONG_PROMPT, "sampling_params": greedy(40)}
    twice = [server.post("/generate", body) for _ in range(2)]
    drawn = requests(SEED)
    with ThreadPoolExecutor(NUM_CLIENTS) as clients:
        replies = list(clients.map(lambda request: send(server, request), drawn))
    abort_running(server, rid="while-it-runs")
    check_idle_and_whole(server)
    return {
        "twice": [reply["output_ids"] for reply in twice],
        "cached": [reply["meta_info"]["cached_tokens"] for reply in twice],
        "finished": finished(drawn, replies, "output_ids"),
        "meta": finished(drawn, replies, "meta_info"),
        "chunks": server.log_text().count(f"#new-token: {CHUNK_TOKENS}"),
        "state": server.internal_state(),
    }


def finished(drawn: list[Request], replies: list[Any], field: str) -> dict[str, Any]:
    """Returns a field of every answer that was waited for."""
    pairs = zip(drawn, replies, strict=True)
    return {request.rid: reply[field] for request, reply in pairs if reply is not None}


def test_the_text_is_that_of_no_speculation(fleet: Fleet, launch: Launch) -> None:
    got, reference = fleet.compare(launch, kv_answers)
    check_identical(got["finished"], reference["finished"])
    assert got["twice"] == reference["twice"]
    assert len({tuple(ids) for ids in got["finished"].values()}) > NUM_REQUESTS / 2


def test_requests_were_retracted_and_went_on(fleet: Fleet, launch: Launch) -> None:
    got, reference = fleet.compare(launch, kv_answers)
    retracted = [rid for rid, meta in got["meta"].items() if meta["num_retractions"]]
    assert retracted
    assert RETRACTED in fleet.use(launch).log_text()
    wanted = {rid: reference["finished"][rid] for rid in retracted}
    check_identical({rid: got["finished"][rid] for rid in retracted}, wanted)


def test_prefixes_are_reused_where_they_are_kept(fleet: Fleet, launch: Launch) -> None:
    got = fleet.ask_once(launch, kv_answers)
    first, second = got["cached"]
    cached = sum(meta["cached_tokens"] for meta in got["meta"].values())
    assert first == 0
    assert got["twice"][0] == got["twice"][1]
    if launch == NO_RADIX:
        # What a retracted request computes again is not cached either.
        assert (second, cached) == (0, 0)
        return
    page_size = 16 if launch == PAGED else 1
    assert second >= len(LONG_PROMPT) - 2 * max(page_size, 2)  # one token a byte
    assert second % page_size == 0
    assert cached > 0


def test_long_prompts_are_filled_in_chunks(fleet: Fleet, launch: Launch) -> None:
    got = fleet.ask_once(launch, kv_answers)
    assert got["chunks"] >= len(LONG_PROMPT) // CHUNK_TOKENS


def test_every_tier_served_and_nothing_went_wrong(fleet: Fleet, launch: Launch) -> None:
    spec = fleet.ask_once(launch, kv_answers)["state"]["adaptive_spec"]
    assert spec["fallbacks"] == {"policy_error": 0, "feedback_mismatch": 0}
    assert set(spec["rounds"]) == {str(steps) for steps in NUM_STEPS}
    assert min(spec["rounds"].values()) >= MIN_ROUNDS, spec["rounds"]
    check_idle_and_whole(fleet.use(launch))
