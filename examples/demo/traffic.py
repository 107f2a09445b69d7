"""Sends the prompts to one server, one at a time, and keeps what came back.

tokens_per_s is new tokens over the wall time of the requests, prefill included.
accept_length = num_correct_drafts / rounds + 1 (the bonus token is the 1); 1 without speculation.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The adaptive worker's counters at one moment; rates follow from differences."""

    time_s: float  # since the first request of the arm
    phase: str
    num_steps: int
    rounds: dict[str, int]
    num_correct_drafts: int

    @property
    def num_rounds(self) -> int:
        """Rounds of all tiers."""
        return sum(self.rounds.values())


class Recorder:
    """Polls /server_info about once a second while the block runs."""

    def __init__(self, server: AnyServer, interval_s: float = POLL_INTERVAL_S) -> None:
        self.snapshots: list[Snapshot] = []
        self.phase = ""
        self._server, self._interval_s = server, interval_s
        self._start = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)

    def __enter__(self) -> Self:
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

    def take(self) -> Snapshot | None:
        """Returns the counters now; None where the server has no adaptive worker."""
        phase = self.phase  # read first: a reply that is under way belongs to the phase before
        state = self._server.internal_state()
        spec = state.get("adaptive_spec")
        if spec is None:
            return None
        correct = sum(spec["num_correct_drafts"].values())
        elapsed_s = time.monotonic() - self._start
        steps = state["speculative_num_steps"]
        return Snapshot(elapsed_s, phase, steps, dict(spec["rounds"]), correct)

    def _poll(self) -> None:
        while not self._ended.wait(self._interval_s):
            # Plain arms are polled, too: every server carries the same load.
            snapshot = self.take()
            if snapshot is not None:
                self.snapshots.append(snapshot)


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


def send_all(
    server: AnyServer,
    prompts: Sequence[DemoPrompt],
    new_tokens: int,
    on_answer: Callable[[Answer], None],
) -> tuple[list[Answer], list[Snapshot]]:
    """Sends every prompt in order; returns the answers and the counters over time.

    The snapshots hold one at each phase's start and one at the end, besides the polled ones.
    """
    answers: list[Answer] = []
    send(server, prompts[0], new_tokens=2)  # the first request of a process pays one-time costs
    with Recorder(server) as recorder:
        for prompt in prompts:
            if prompt.phase != recorder.phase:
                _mark(recorder, prompt.phase)
            answers.append(send(server, prompt, new_tokens))
            on_answer(answers[-1])
        _mark(recorder, recorder.phase)
    return answers, sorted(recorder.snapshots, key=lambda snapshot: snapshot.time_s)


def _mark(recorder: Recorder, phase: str) -> None:
    recorder.phase = phase
    snapshot = recorder.take()
    if snapshot is not None:
        recorder.snapshots.append(snapshot)
