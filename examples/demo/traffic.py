"""Sends a prompt to the server whose turn it is, and notes what it does meanwhile.

tokens_per_s is new tokens over the wall time of the requests, prefill included.
accept_length = num_correct_drafts / rounds + 1 (the bonus token is the 1); 1 without speculation.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Protocol, Self

from examples.demo.prompts import DemoPrompt

POLL_INTERVAL_S = 1.0


class AnyServer(Protocol):
    """What a request needs of a server."""

    def post(self, path: str, body: dict[str, Any]) -> Any: ...
    def internal_state(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Answer:
    """One greedy answer."""

    phase: str
    source: str
    output_ids: tuple[int, ...]
    seconds: float
    num_rounds: int
    num_correct_drafts: int
    rounds: dict[str, int] = field(default_factory=dict)  # by tier, where the server counts them


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Which tier was in force at one moment."""

    time_s: float  # of this arm's own turns
    phase: str
    num_steps: int


@dataclass(slots=True)
class Lane:
    """One arm's server and what it did in its turns."""

    name: str
    server: AnyServer
    answers: list[Answer] = field(default_factory=list)
    snapshots: list[Snapshot] = field(default_factory=list)

    @property
    def busy_s(self) -> float:
        """How long its turns took."""
        return sum(answer.seconds for answer in self.answers)

    def take_turn(
        self, prompt: DemoPrompt, new_tokens: int, on_poll: Callable[[Snapshot], None]
    ) -> Answer:
        """Sends a prompt while the server is polled; returns the answer, which is kept, too."""
        before = tier_rounds(self.server.internal_state())
        with Recorder(self.server, prompt.phase, self.busy_s, on_poll) as recorder:
            answer = send(self.server, prompt, new_tokens)
        after = tier_rounds(self.server.internal_state())
        rounds = {tier: count - before.get(tier, 0) for tier, count in after.items()}
        self.answers.append(replace(answer, rounds=rounds))
        self.snapshots += recorder.snapshots
        return self.answers[-1]


class Recorder:
    """Polls /server_info about once a second while the block runs."""

    def __init__(
        self,
        server: AnyServer,
        phase: str,
        start_s: float,
        on_poll: Callable[[Snapshot], None],
        interval_s: float = POLL_INTERVAL_S,
    ) -> None:
        self.snapshots: list[Snapshot] = []
        self._server, self._phase, self._on_poll = server, phase, on_poll
        self._interval_s, self._start_s = interval_s, start_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)

    def __enter__(self) -> Self:
        self._begin = time.monotonic()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _poll(self) -> None:
        # Every arm is polled, whether it adapts or not: all carry the same load.
        while not self._ended.wait(self._interval_s):
            state = self._server.internal_state()
            time_s = self._start_s + time.monotonic() - self._begin
            steps = state.get("speculative_num_steps") or 0
            self.snapshots.append(Snapshot(time_s, self._phase, steps))
            self._on_poll(self.snapshots[-1])


def tier_rounds(state: dict[str, Any]) -> dict[str, int]:
    """Returns the rounds of every tier so far; none where the server does not count them."""
    return dict(state.get("adaptive_spec", {}).get("rounds", {}))


def send(server: AnyServer, prompt: DemoPrompt, new_tokens: int) -> Answer:
    """Generates exactly `new_tokens` greedy tokens."""
    sampling = {"temperature": 0, "max_new_tokens": new_tokens, "ignore_eos": True}
    body = {"input_ids": list(prompt.input_ids), "sampling_params": sampling}
    start = time.monotonic()
    reply = server.post("/generate", body)
    seconds = time.monotonic() - start
    meta = reply["meta_info"]
    return Answer(
        prompt.phase,
        prompt.source,
        tuple(reply["output_ids"]),
        seconds,
        # Absent without speculation; every token but the first, which prefill makes, is a round.
        meta.get("spec_verify_ct", new_tokens - 1),
        meta.get("spec_num_correct_drafts", 0),
    )


def take_turns(
    lanes: Sequence[Lane],
    prompts: Sequence[DemoPrompt],
    new_tokens: int,
    on_poll: Callable[[str, Snapshot], None],
    on_answer: Callable[[str, Answer], None],
) -> None:
    """Sends every prompt to every arm; with each prompt another arm is first."""
    for lane in lanes:
        send(lane.server, prompts[0], new_tokens=2)  # a process's first request pays for more
    for number, prompt in enumerate(prompts):
        first = number % len(lanes)
        for lane in [*lanes[first:], *lanes[:first]]:

            def polled(snapshot: Snapshot, name: str = lane.name) -> None:
                on_poll(name, snapshot)

            on_answer(lane.name, lane.take_turn(prompt, new_tokens, polled))
