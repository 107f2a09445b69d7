"""One real SGLang server on the CPU host: started, asked and ended."""

import contextlib
import itertools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.hosts import CACHE, host_source

PLUGIN_FOLDER = Path(__file__).parent / "plugins"
LOGS = CACHE / "e2e-logs"
OURS = "sglang_adaptive_spec"
CPU_HOST = "sglang_cpu_host"
MODULE = ("-m", "sglang.launch_server")

# On a busy machine; a start takes 15 to 20 s on an idle one. A server that ends is noticed at once.
READY_TIMEOUT_S = 900.0
REQUEST_TIMEOUT_S = 900.0
STOP_TIMEOUT_S = 15.0
# Apart: ranks under attention DP listen on a row of ports that follows from a server's.
PORTS = range(31400, 32200, 16)

COMMON_ARGS = (
    *("--device", "cpu", "--attention-backend", "intel_amx", "--dtype", "float32"),
    *("--mem-fraction-static", "0.5", "--disable-cuda-graph", "--skip-server-warmup"),
    # Several servers stay up for the tests of their host: one that waits must not take a core.
    *("--random-seed", "1", "--sleep-on-idle"),
)
ENVIRONMENT = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "TORCHDYNAMO_DISABLE": "1",  # the triton stand-in cannot be compiled
    "OMP_NUM_THREADS": "1",  # two threads beside other load are slower than one
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0",  # /health must not count as a request
    # Extra tokenizer workers are ended when they do not answer in time, imports included.
    "SGLANG_UVICORN_WORKER_HEALTHCHECK_TIMEOUT": "900",
    "SGLANG_MAMBA_CONV_DTYPE": "float32",  # what recurrent layers keep is not rounded
}
# The host's own checks: pages leaked or freed twice, relays consumed twice.
STRICT = {
    "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1",
    "SGLANG_CHECK_KV_PAGE_INVARIANTS": "1",
    "SGLANG_IS_IN_CI": "1",
}
# Sources of another host are compiled once, not at every start.
NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"
# One core per rank of a parallel server, or the host wants a NUMA node for each.
RANK_CORES = {"SGLANG_CPU_OMP_THREADS_BIND": "0|1"}

# Of one test run: measured round times go there, not into the user's own cache.
_user_cache = tempfile.TemporaryDirectory(prefix="adaptive-spec-e2e-")


@dataclass(frozen=True)
class Launch:
    """What to start; equal launches give equal servers."""

    name: str
    target: tuple[str, ...]  # arguments that say what is served
    args: tuple[str, ...] = ()  # and how it speculates
    host: str = "0.5.21"
    overlap: bool = False
    plugins: tuple[str, ...] = (OURS,)
    of_target: tuple[str, ...] = ()  # plugins that what is served needs, the reference's, too
    strict: bool = False
    command: tuple[str, ...] = MODULE

    def __str__(self) -> str:
        return f"{self.host}-{self.name}" + ("-overlap" if self.overlap else "")

    def reference(self) -> "Launch":
        """Returns the same host and target without speculation."""
        return Launch("none", self.target, host=self.host, of_target=self.of_target)

    @property
    def has_ranks(self) -> bool:
        """Whether several schedulers serve together."""
        return not {"--tp-size", "--dp-size"}.isdisjoint((*self.target, *self.args))

    @property
    def forked(self) -> tuple[str, ...]:
        """The plugin that forks a server's processes, unless tests are about its start."""
        is_quick = self == self.reference() or bool(STAND_INS.intersection(self.plugins))
        return ("forked",) * is_quick

    def environment(self) -> dict[str, str]:
        """Returns the environment of the process: which host, which plugins, which checks."""
        paths = [str(PLUGIN_FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])]
        if self.host != version("sglang"):
            paths.insert(0, str(host_source(self.host)))
        inherited = {name: text for name, text in os.environ.items() if name != NO_BYTECODE}
        return {
            **inherited,
            **ENVIRONMENT,
            "XDG_CACHE_HOME": _user_cache.name,
            **(STRICT if self.strict else {}),
            **(RANK_CORES if self.has_ranks else {}),
            "PYTHONPATH": os.pathsep.join(paths),
            "SGLANG_PLUGINS": ",".join((CPU_HOST, *self.plugins, *self.of_target, *self.forked)),
            "SGLANG_CPU_HOST_OVERLAP": "1" if self.overlap else "0",
        }

    def argv(self, port: int) -> list[str]:
        """Returns the whole command line."""
        return [
            sys.executable,
            *self.command,
            *COMMON_ARGS,
            *self.target,
            *self.args,
            "--port",
            str(port),
        ]


# Plugins whose own policy chooses in the place of the server's.
STAND_INS = {
    "drafts_as_confidence",
    "failing",
    "forced_confidence",
    "forced_lengths",
    "forced_switch",
    "hidden_rows",
    "joint_walk",
    "long_runs",
    "pinned",
    "runs",
    "visit_mixed",
    "visit_runs",
    "visit_zero",
}

# The host picks further ports by itself, which others may take before it listens.
PORT_TAKEN = "EADDRINUSE"
_ports = itertools.cycle(random.sample(PORTS, len(PORTS)))
_log_number = itertools.count(1)


def free_port() -> int:
    """Returns a port that nothing listens on; no two servers of this session share one."""
    for port in itertools.islice(_ports, len(PORTS)):
        if is_free(port):
            return port
    raise RuntimeError(f"no free port in {PORTS}")


def is_free(port: int) -> bool:
    """Returns whether nothing listens on ``port``."""
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.bind(("127.0.0.1", port))
        return True
    return False


@dataclass
class Server:
    """A started server, ready or not; `stop` ends it and everything it started."""

    launch: Launch
    process: subprocess.Popen[bytes]
    port: int
    log: Path
    has_restarted: bool = False

    @classmethod
    def start(cls, launch: Launch) -> "Server":
        """Starts the process and returns at once."""
        LOGS.mkdir(parents=True, exist_ok=True)
        port, log = free_port(), LOGS / f"{next(_log_number):02d}-{launch}.log"
        with log.open("wb") as sink:
            process = subprocess.Popen(
                launch.argv(port),
                env=launch.environment(),
                cwd=LOGS,  # not the repository: what is installed is what runs
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return cls(launch, process, port, log)

    def wait_ready(self) -> None:
        """Waits until the server answers; raises with its log when it ends before."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not self.answers("/health"):
            if self.process.poll() is not None:
                if self.has_restarted or PORT_TAKEN not in self.log_text():
                    raise RuntimeError(
                        f"{self.launch} ended at its start:\n{self.log_text()[-4000:]}"
                    )
                again = Server.start(self.launch)
                self.process, self.port, self.log = again.process, again.port, again.log
                self.has_restarted = True
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.launch} is not ready:\n{self.log_text()[-4000:]}")
            time.sleep(0.2)
        if STAND_INS.intersection(self.launch.plugins):
            assert "e2e_stand_in" in self.internal_state(), f"{self.launch} has its own policy"

    def wait_end(self, timeout_s: float, never: str | None = None) -> int:
        """Waits until the process ends by itself; returns its exit code.

        Asserts all the while that ``never``, if given, is not answered.
        """
        deadline = time.monotonic() + timeout_s
        while (code := self.process.poll()) is None:
            assert never is None or not self.answers(never), f"{self.launch} answers {never}"
            assert time.monotonic() < deadline, f"{self.launch} does not end"
            time.sleep(0.2)
        return code

    def stop(self) -> None:
        """Ends the server's process group, kindly first."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_TIMEOUT_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # start_new_session: the group is ours
        self.process.wait()

    # -- asking it --

    def url(self, path: str) -> str:
        """Returns the address of an endpoint."""
        return f"http://127.0.0.1:{self.port}{path}"

    def answers(self, path: str, timeout_s: float = 10.0) -> bool:
        """Says whether a GET of ``path`` succeeds."""
        try:
            urllib.request.urlopen(self.url(path), timeout=timeout_s).close()
        except OSError:
            return False
        return True

    def get_text(self, path: str) -> str:
        """Returns the body of a GET."""
        with urllib.request.urlopen(self.url(path), timeout=60) as response:
            return str(response.read().decode())

    def get(self, path: str) -> Any:
        """Returns the JSON of a GET."""
        return json.loads(self.get_text(path))

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """Returns the JSON that a POST is answered with (or its text, where it is none)."""
        request = urllib.request.Request(
            self.url(path), json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_S) as response:
            text = response.read().decode()
        try:
            return json.loads(text)
        except json.JSONDecodeError:
            return text

    def internal_state(self) -> dict[str, Any]:
        """Returns the scheduler's part of /server_info."""
        state: dict[str, Any] = self.get("/server_info")["internal_states"][0]
        return state

    def log_text(self) -> str:
        """Returns what the server has written so far."""
        return self.log.read_text(errors="replace")
