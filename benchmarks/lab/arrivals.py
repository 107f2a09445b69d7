"""An open-loop client: requests arrive at drawn times, whatever the server does."""

import asyncio
import json
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from benchmarks.lab.models import prompt_ids
from benchmarks.lab.server import Server
from benchmarks.lab.session import INJECTED

PROMPT_TOKENS = (64, 512)
NEW_TOKENS = (64, 384)
CHANCES = (0.3, 0.5, 0.7, 0.85, 0.95)
TIMEOUT_S = 240.0


class Arrival(NamedTuple):
    """A request of the ramp."""

    at_s: float
    request_id: str
    prompt_tokens: int
    new_tokens: int


def arrivals(
    seconds: float,
    low: float,
    peak: float,
    seed: int,
    longest: float = 1.0,
    chances: Sequence[float] = CHANCES,
) -> list[Arrival]:
    """Returns Poisson arrivals whose rate rises from ``low`` to ``peak`` a second and falls again.

    Args:
        seconds: how long requests arrive.
        low: requests a second at both ends.
        peak: requests a second in the middle.
        seed: of times, lengths and acceptance.
        longest: scales the lengths.
        chances: that a draft is accepted; a request draws one of them.
    """
    rng = random.Random(seed)
    made: list[Arrival] = []
    now = rng.expovariate(peak)
    while now < seconds:
        rate = low + (peak - low) * (1 - abs(2 * now / seconds - 1))
        if rng.random() < rate / peak:  # thins the peak's rate down to the present one
            made.append(
                Arrival(
                    round(now, 6),
                    f"p{rng.choice(chances):.4f}-ramp{seed}-r{len(made)}",
                    int(rng.randint(*PROMPT_TOKENS) * longest),
                    int(rng.randint(*NEW_TOKENS) * longest),
                )
            )
        now += rng.expovariate(peak)
    return made


def send_arrivals(
    server: Server,
    sent: Sequence[Arrival],
    prompt_seed: int = 0,
    texts: Sequence[Sequence[int]] | None = None,
) -> tuple[int, dict[str, Any]]:
    """Sends every request at its time; returns when the first was due, and what was measured.

    Prompts of the same ``prompt_seed`` begin alike: what was sent before is in the prefix cache.
    With ``texts`` those are the prompts, one per request; nothing is injected, and an answer may
    end before its limit.
    """
    accept_length = INJECTED if texts is None else None
    prompts = texts or [
        prompt_ids(1, each.prompt_tokens, prompt_seed + index)[0] for index, each in enumerate(sent)
    ]
    server.command(accept_length=accept_length, log_requests=True)
    start_ns = time.perf_counter_ns()
    asyncio.run(_send_all(server.url, sent, prompts, ignore_eos=texts is None))
    return start_ns, server.command(accept_length=accept_length)


async def _send_all(
    url: str, sent: Sequence[Arrival], prompts: Sequence[Sequence[int]], ignore_eos: bool
) -> None:
    loop = asyncio.get_running_loop()
    start = loop.time()

    async def send(each: Arrival, prompt: Sequence[int]) -> None:
        await asyncio.sleep(max(start + each.at_s - loop.time(), 0.0))
        sampling: dict[str, Any] = {"temperature": 0, "max_new_tokens": each.new_tokens}
        sampling["ignore_eos"] = ignore_eos
        body = {"input_ids": prompt, "rid": each.request_id, "sampling_params": sampling}
        await asyncio.wait_for(post(url, body), TIMEOUT_S)

    await asyncio.gather(*(send(*pair) for pair in zip(sent, prompts, strict=True)))


async def post(url: str, body: Mapping[str, Any]) -> None:
    """Sends one request on a connection of its own and reads the answer to its end.

    Thousands may wait at once, which rules threads out.

    Raises:
        RuntimeError: The answer's status is not 200.
    """
    where = urlsplit(url)
    content = json.dumps(body).encode()
    head = (
        f"POST /generate HTTP/1.1\r\nHost: {where.netloc}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    try:
        writer.write(head.encode() + content)
        status = await reader.readline()
        await reader.read()
    finally:
        writer.close()
    if status.split()[1:2] != [b"200"]:
        raise RuntimeError(f"{body['rid']}: the server answered {status!r}.")
