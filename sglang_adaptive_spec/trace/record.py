"""The recorder: decode rounds of a running server, as a trace that the simulator replays.

`record` only appends a tuple to a queue; encoding and writing happen on a thread of their own, so
that a round never waits for the disk. Request keys become small numbers, nothing else of a request
is kept. The file stops growing at ``max_bytes``; what comes later is counted and dropped. Whatever
ends it before the server does is logged once.
"""

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Hashable
from pathlib import Path

import msgspec

from sglang_adaptive_spec.tiers import Observation
from sglang_adaptive_spec.trace.format import TraceHeader, TraceRound

logger = logging.getLogger(__name__)

MAX_BYTES = 256 * 2**20  # about 1 M rounds at batch 16; a bound, not a tuned value
FLUSH_ROUNDS = 512  # rounds that wake the writer: some seconds of serving
FLUSH_S = 5.0  # a server with little to do is written all the same
MAX_WAITING_ROUNDS = 64 * FLUSH_ROUNDS  # a disk that does not keep up loses rounds, not memory


class TraceRecorder:
    """Writes the rounds it is told about to one file; the newest run replaces the file.

    Raises:
        OSError: The file cannot be created.
    """

    def __init__(
        self, path: Path, *, name: str, max_steps: int, max_bytes: int = MAX_BYTES
    ) -> None:
        self.num_dropped = 0  # rounds that are not in the file
        self._numbers: dict[Hashable, int] = {}
        self._encoder = msgspec.json.Encoder()
        self._file = open(path, "wb")  # noqa: SIM115 - open as long as the server serves
        header = TraceHeader(kind="recorded", name=name, max_steps=max_steps)
        self._max_bytes = max_bytes
        self._free_bytes = max_bytes - self._file.write(self._encoder.encode(header) + b"\n")
        self._waiting: deque[tuple[Observation, int, float]] = deque()
        self._wake = threading.Event()
        self._why_stopped = ""  # nothing is taken any more
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="adaptive-spec-record", daemon=True)
        self._thread.start()

    def record(self, observation: Observation, context_tokens: int, now_s: float) -> None:
        """Takes one finished round; ``now_s`` is when it was launched."""
        num_waiting = len(self._waiting)
        if self._why_stopped or num_waiting >= MAX_WAITING_ROUNDS:
            # A gap would tear the requests' positions: nothing follows.
            self._why_stopped = self._why_stopped or "the disk does not keep up"
            self.num_dropped += 1
            return
        self._waiting.append((observation, context_tokens, now_s))
        if num_waiting >= FLUSH_ROUNDS:
            self._wake.set()

    def close(self) -> None:
        """Writes what is waiting and closes the file; called at the end of serving."""
        self._is_closing = True
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        is_last = False
        try:
            while not is_last:
                self._wake.wait(FLUSH_S)
                self._wake.clear()
                is_last = self._is_closing or bool(self._why_stopped)
                self._write_waiting()
            self._file.close()
        except OSError as error:
            self._why_stopped = f"writing failed ({error})"
            with contextlib.suppress(OSError):  # it would write what is left, and fail again
                self._file.close()
        if self._why_stopped:
            logger.warning(
                "ADAPTIVE_EAGLE record: %s ends here: %s. Make room and restart the server to "
                "record again.",
                self._file.name,
                self._why_stopped,
            )
        self._why_stopped = self._why_stopped or "closed"

    def _write_waiting(self) -> None:
        while self._waiting:
            line = self._encoder.encode(self._round(*self._waiting.popleft())) + b"\n"
            if len(line) > self._free_bytes:
                self._why_stopped = f"it has {self._max_bytes:,} bytes, and may have no more"
                self.num_dropped += 1 + len(self._waiting)
                self._waiting.clear()
                self._numbers.clear()
                return
            self._free_bytes -= self._file.write(line)
        self._file.flush()

    def _round(self, observation: Observation, context_tokens: int, now_s: float) -> TraceRound:
        first, found, kept = observation.first_draft_correct, observation.found, observation.kept
        numbers = self._numbers
        return TraceRound(
            time_s=now_s,
            context_tokens=context_tokens,
            num_steps=observation.tier.num_steps,
            requests=[numbers.setdefault(key, len(numbers)) for key in observation.requests],
            num_correct_drafts=[int(count) for count in observation.num_correct_drafts],
            first_draft_correct=None if first is None else list(first),
            num_decodes=observation.plan.num_decodes,
            found=None if found is None else list(found),
            kept=None if kept is None or kept == found else list(kept),
        )
