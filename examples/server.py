"""One SGLang server on this machine: started, asked over HTTP and ended."""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from examples.client import post_json

HOST = "127.0.0.1"
PORTS = range(31200, 31300)
RANKS_PORT = 1000  # beyond a server's own: where its ranks meet; SGLang would draw one
READY_TIMEOUT_S = 300.0
REQUEST_TIMEOUT_S = 300.0
PROBE_TIMEOUT_S = 5.0
STOP_TIMEOUT_S = 5.0
LOG_TAIL_LINES = 30

CPU_ARGS = (
    *("--device", "cpu", "--attention-backend", "intel_amx", "--dtype", "float32"),
    # The host compares free memory before and after loading, and other processes count, too: a
    # share near the weights' own size fails at random. --max-total-tokens bounds the KV cache.
    *("--mem-fraction-static", "0.5", "--disable-cuda-graph", "--skip-server-warmup"),
)
CPU_ENVIRONMENT = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "TORCHDYNAMO_DISABLE": "1",  # the CPU host's triton stand-in cannot be compiled
    "OMP_NUM_THREADS": "1",  # two threads were no faster for a model this small
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0",  # /health must not run a round
}


class ServerError(RuntimeError):
    """The server ended or never became ready; the message carries the end of its log."""


class Server:
    """Owns one server process and everything it spawns; a context manager.

    Entering starts the process and waits until it answers; leaving ends its process group.
    """

    def __init__(
        self,
        command: Sequence[str],
        port: int,
        log: Path,
        environment: Mapping[str, str] | None = None,
        ready_timeout_s: float = READY_TIMEOUT_S,
    ) -> None:
        """Takes what the process gets besides this one's environment."""
        self.command = [*command, "--host", HOST, "--port", str(port)]
        self.port, self.log = port, log
        self.environment = dict(environment or {})
        self.ready_timeout_s, self.ready_s = ready_timeout_s, 0.0
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def of_sglang(
        cls, args: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> Self:
        """Returns an unstarted SGLang server for the CPU, on a free port."""
        port = free_port()
        module = [sys.executable, "-m", "sglang.launch_server"]
        ranks = ("--nccl-port", str(port + RANKS_PORT))
        environment = {**CPU_ENVIRONMENT, **(environment or {})}
        return cls([*module, *CPU_ARGS, *ranks, *args], port, log, environment)

    def __enter__(self) -> Self:
        self.start()
        try:
            self.wait_ready(self.ready_timeout_s)
        except BaseException:  # an interrupt, too, must not leave a server behind
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Starts the process and returns at once."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as sink:
            self._process = subprocess.Popen(
                self.command,
                env={**os.environ, **self.environment},
                cwd=self.log.parent,  # not the repository: what is installed is what runs
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a process group of its own, for `stop`
            )

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Waits until /health answers.

        Raises:
            ServerError: The process ended, or the time is up.
        """
        assert self._process is not None
        start = time.monotonic()
        while (waited_s := time.monotonic() - start) < timeout_s:
            if (code := self._process.poll()) is not None:
                raise ServerError(f"The server ended with code {code}:\n{self.log_tail()}")
            if self.is_healthy():
                self.ready_s = waited_s
                return
            time.sleep(0.2)
        raise ServerError(f"The server is not ready after {timeout_s:.0f} s:\n{self.log_tail()}")

    def stop(self) -> None:
        """Ends the process group: asks first, then kills what is left."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_TIMEOUT_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None

    def log_tail(self, num_lines: int = LOG_TAIL_LINES) -> str:
        """Returns the last lines of the log and where to find the rest."""
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join([*lines[-num_lines:], f"(log: {self.log})"])

    def is_healthy(self) -> bool:
        """Says whether /health answers."""
        try:
            urllib.request.urlopen(self._url("/health"), timeout=PROBE_TIMEOUT_S).close()
        except OSError:
            return False
        return True

    def get(self, path: str) -> Any:
        """Returns the JSON of a GET."""
        with urllib.request.urlopen(self._url(path), timeout=REQUEST_TIMEOUT_S) as response:
            return json.load(response)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """Returns the JSON that a POST is answered with."""
        return post_json(self._url(path), body, REQUEST_TIMEOUT_S)

    def internal_state(self) -> dict[str, Any]:
        """Returns the scheduler's part of /server_info."""
        state: dict[str, Any] = self.get("/server_info")["internal_states"][0]
        return state

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://{HOST}:{self.port}"

    def _url(self, path: str) -> str:
        return f"{self.url}{path}"


_given: set[int] = set()


def free_port() -> int:
    """Returns a port of `PORTS` that nothing listens on and that was not returned before."""
    for port in random.sample(PORTS, len(PORTS)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            if port not in _given:
                _given.add(port)
                return port
    raise ServerError(f"No port is free in {PORTS.start}..{PORTS.stop - 1}; end other servers.")
