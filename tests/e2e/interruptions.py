"""Answers interrupted on their way: by a pause, by aborts, by a request that goes first."""

import itertools
import json
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from tests.e2e.server import REQUEST_TIMEOUT_S, Server
from tests.e2e.traffic import PROMPTS, Answers, greedy, load

NUM_LONG = 200  # tokens of an answer
TEXTS = (*PROMPTS, "one more", "and another")  # as many as the servers run at once
MIN_LEFT = 20  # tokens that an answer lacks when it is interrupted
ATTEMPTS = 5  # a client on a busy machine may interrupt too late
WAIT_S = 60.0
POLL_S = 0.01

Body = Mapping[str, Any]
Reply = dict[str, Any]

# Two seconds after a stream the host aborts its rid, whoever has it by then (sglang 0.5.23
# managers/tokenizer_manager.py:create_abort_task): none is used twice. All are of one length,
# since the host aborts every rid that begins with the one given.
_numbers = itertools.count(10_000)


def bodies(num_tokens: int = NUM_LONG, **more: Any) -> list[Body]:
    """Returns a request for every text."""
    return [{"text": text, "sampling_params": greedy(num_tokens), **more} for text in TEXTS]


def long_answers(server: Server) -> Answers:
    """Asks all texts at once and lets them finish."""
    replies = server.post("/generate", {"text": list(TEXTS), "sampling_params": greedy(NUM_LONG)})
    return by_number(replies)


def by_number(replies: Sequence[Reply]) -> Answers:
    """Returns the token ids of replies by their place."""
    return {f"text {number}": reply["output_ids"] for number, reply in enumerate(replies)}


def ending(reply: Reply) -> str:
    """Returns why an answer ended."""
    return str(reply["meta_info"]["finish_reason"]["type"])


# -- streams --


class Stream:
    """One streamed request: what has come of it so far, and the whole reply."""

    def __init__(self, clients: ThreadPoolExecutor, server: Server, body: Body) -> None:
        self.rid = f"stream-{next(_numbers)}"
        self._newest: Reply = {}
        self._has_begun = threading.Event()
        self._whole = clients.submit(self._read, server, body)

    def wait_for(self, num_tokens: int) -> None:
        """Waits until so many tokens are there, or the answer has ended."""
        assert self._has_begun.wait(REQUEST_TIMEOUT_S), "nothing was streamed"
        deadline = time.monotonic() + WAIT_S
        while self.num_tokens < num_tokens and not self._whole.done():
            assert time.monotonic() < deadline, f"{self.num_tokens} tokens in {WAIT_S} s"
            time.sleep(POLL_S)

    def reply(self) -> Reply:
        """Waits for the end of the answer and returns it."""
        return self._whole.result(REQUEST_TIMEOUT_S)

    @property
    def num_tokens(self) -> int:
        """The tokens that have come so far."""
        return len(self._newest.get("output_ids", ()))

    def _read(self, server: Server, body: Body) -> Reply:
        content = json.dumps({**body, "rid": self.rid, "stream": True}).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(server.url("/generate"), content, headers)
        try:
            with urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_S) as response:
                for line in response:
                    if line.startswith(b"data: {"):
                        self._newest = json.loads(line.removeprefix(b"data: "))
                        self._has_begun.set()
        finally:
            self._has_begun.set()
        return self._newest


class LateError(Exception):
    """Some answer is complete, or nearly."""


def interrupted(
    server: Server,
    requests: Sequence[Body],
    interrupt: Callable[[Sequence[Stream]], object],
    num_tokens: int = 1,
) -> list[Reply]:
    """Streams all requests at once, and interrupts when each has so many tokens.

    All of it is done again where ``interrupt`` comes too late (`check_on_their_way`).
    """
    for _ in range(ATTEMPTS):
        is_late = False
        with ThreadPoolExecutor(len(requests)) as clients:
            streams = [Stream(clients, server, request) for request in requests]
            for stream in streams:
                stream.wait_for(num_tokens)
            try:
                interrupt(streams)
            except LateError:
                is_late = True
            replies = [stream.reply() for stream in streams]
        if not is_late:
            return replies
    raise AssertionError(f"{server.launch} answers before it can be interrupted")


@contextmanager
def paused(server: Server, mode: str) -> Iterator[None]:
    """Pauses the server, and lets it go on whatever happens."""
    server.post("/pause_generation", {"mode": mode})
    try:
        yield
    finally:
        server.post("/continue_generation", {})


def check_on_their_way(streams: Sequence[Stream]) -> None:
    """Raises `LateError` where an answer is complete, or nearly."""
    if max(stream.num_tokens for stream in streams) > NUM_LONG - MIN_LEFT:
        raise LateError


def wait_for_waiting(server: Server, num_requests: int) -> None:
    """Waits until so many requests wait for a place in the batch."""
    deadline = time.monotonic() + WAIT_S
    while load(server)["num_waiting_reqs"] != num_requests:
        assert time.monotonic() < deadline, load(server)
        time.sleep(POLL_S)
