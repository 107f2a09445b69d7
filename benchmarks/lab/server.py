"""Starts and stops one SGLang server with the measuring plugin in it, and talks to that plugin."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from benchmarks.inject.measure_plugin import ANSWER_KEY, CONTROL_ENV, done_marker
from benchmarks.stats.provenance import ROOT

GROUP = "sglang.srt.plugins"
OURS = "sglang_adaptive_spec"
PLUGINS = {
    OURS: f"{OURS}.plugin:register",
    "bench_measure": "benchmarks.inject.measure_plugin:register",
    "bench_inject": "benchmarks.inject.inject_plugin:register",
    "bench_rank_log": "benchmarks.inject.rank_log_plugin:register",
    "bench_plant": "benchmarks.inject.plant_plugin:register",
    "bench_delay": "benchmarks.inject.delay_plugin:register",
    "bench_indexer": "benchmarks.inject.indexer_plugin:register",
    "bench_joint": "benchmarks.inject.joint_plugin:register",
    "bench_turn": "benchmarks.inject.turn_plugin:register",
}
POLL_S = 0.05
WATCH_POLL_S = 0.005
STOP_S = 10.0
QUIET_S = 0.1  # two rounds are in flight at most; on four H100s they took up to 16 ms each
NEXT_PORT = 10  # of two servers that start together and look for a free one, both may find the same
NUM_TAIL_LINES = 60  # of a log, in an error


def announce_plugins(folder: Path) -> None:
    """Writes the metadata of every plugin into a folder of its own."""
    for name, target in PLUGINS.items():
        announce(folder / name, name, target)


def announce(folder: Path, name: str, target: str) -> None:
    """Writes what an installation would: the metadata by which the host finds a plugin."""
    info = folder / f"{name}-0.0.0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.0.0\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{name} = {target}\n")


def server_environment(folder: Path, with_ours: bool, extra: dict[str, str]) -> dict[str, str]:
    """Returns the environment of a server: the measuring plugin, ours only where it serves."""
    installed = {entry.name for entry in entry_points(group=GROUP)}
    announced = [name for name in PLUGINS if name not in installed and (with_ours or name != OURS)]
    paths = [str(folder / name) for name in announced]
    inherited = os.environ.get("PYTHONPATH", "")
    environment = {
        **os.environ,
        **extra,
        "PYTHONPATH": os.pathsep.join(
            [*paths, *filter(None, [extra.get("PYTHONPATH"), inherited]), str(ROOT)]
        ),
        CONTROL_ENV: str(folder / "control.json"),
        # /health is polled while the server starts: it must not generate, or it takes a second.
        "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0",
    }
    if not with_ours and OURS in installed:
        environment["SGLANG_PLUGINS"] = ",".join(sorted({*installed, *announced} - {OURS}))
    return environment


@dataclass(slots=True)
class Server:
    """A running server and the command file of its measuring plugin."""

    process: subprocess.Popen[bytes]
    url: str
    control: Path
    log: Path
    ready_s: float = 0.0
    num_commands: int = 0

    def wait_ready(self, started: float, timeout_s: float) -> None:
        """Waits until the server serves; notes the seconds since ``started``."""
        while time.monotonic() - started < timeout_s:
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended at its start:\n{self.log_tail()}")
            with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
                urllib.request.urlopen(f"{self.url}/health", timeout=5).close()
                self.ready_s = time.monotonic() - started
                return
            time.sleep(POLL_S)
        raise RuntimeError(f"not ready within {timeout_s:.0f} s:\n{self.log_tail()}")

    def command(
        self,
        *,
        accept_length: float | None = None,
        policy: str = "own",
        timing: bool = False,
        seed: int = 0,
        watch: Mapping[str, float] | None = None,
        log_requests: bool = False,
    ) -> dict[str, Any]:
        """Sets what the next rounds run under; returns the answer for those before."""
        self.num_commands += 1
        command = {
            "id": self.num_commands,
            "accept_length": accept_length,
            "policy": policy,
            "timing": timing,
            "seed": seed,
            "watch": watch,
            "log_requests": log_requests,
        }
        write_whole(self.control, json.dumps(command))
        answer = self.internal_state()[ANSWER_KEY]
        if answer["command_id"] != self.num_commands:
            raise RuntimeError(f"the measuring plugin did not obey:\n{self.log_tail()}")
        return dict(answer)

    def wait_watch(self, timeout_s: float) -> None:
        """Waits until the last command's watch is over.

        Raises:
            RuntimeError: It is not within ``timeout_s``, or the server ended.
        """
        marker, wanted = done_marker(self.control), str(self.num_commands)
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and self.process.poll() is None:
            with contextlib.suppress(FileNotFoundError):
                if marker.read_text() == wanted:
                    return
            time.sleep(WATCH_POLL_S)
        raise RuntimeError(f"no full batch within {timeout_s:.0f} s:\n{self.log_tail()}")

    def rounds(self) -> list[list[Any]]:
        """Returns the rounds processed since the last command or call."""
        return list(self.internal_state()[ANSWER_KEY]["rounds"])

    def internal_state(self) -> dict[str, Any]:
        """Returns the state of the first scheduler (`internal_states`)."""
        return self.internal_states()[0]

    def internal_states(self) -> list[dict[str, Any]]:
        """Returns the state of every scheduler with requests of its own, by rank.

        Raises:
            RuntimeError: The measuring plugin is not in this server.
        """
        with urllib.request.urlopen(f"{self.url}/server_info", timeout=120) as response:
            states: list[dict[str, Any]] = json.load(response)["internal_states"]
        if any(ANSWER_KEY not in state for state in states):
            raise RuntimeError(f"the measuring plugin was not loaded:\n{self.log_tail()}")
        return sorted(states, key=lambda state: state[ANSWER_KEY].get("dp_rank", 0))

    def freeze(self) -> None:
        """Stops all processes where they are: idle ranks of attention DP keep cores busy.

        Rounds in flight may end first. A rank stopped inside a collective leaves the others'
        spinning on their GPUs, beside the server that is measured next.
        """
        time.sleep(QUIET_S)
        os.killpg(self.process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Lets them go on."""
        os.killpg(self.process.pid, signal.SIGCONT)

    def log_tail(self) -> str:
        """Returns the end of the server's log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-NUM_TAIL_LINES:])

    def stop(self) -> None:
        """Ends the server and every process that it started."""
        with contextlib.suppress(ProcessLookupError):
            self.thaw()
        for stop in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, stop)
            deadline = time.monotonic() + STOP_S
            while time.monotonic() < deadline:
                self.process.poll()  # takes its exit status, so that it is no zombie of ours
                if not _members(self.process.pid):
                    return
                time.sleep(POLL_S)
        raise RuntimeError(f"processes {_members(self.process.pid)} outlived SIGKILL.")


def _members(group: int) -> list[int]:
    """Returns the living processes of a process group; zombies hold no memory and do not count."""
    members = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # pid (name) state parent group ...; a name may hold spaces and parentheses
            state, _parent, its_group = stat.read_text().rpartition(")")[2].split()[:3]
            if int(its_group) == group and state != "Z":
                members.append(int(stat.parent.name))
    return members


_running: list[Server] = []  # of this process


def end_servers(*_: Any) -> None:
    """Ends every server, so that no thread waits for one any longer; handles SIGINT.

    A server has a session of its own, and would outlive a benchmark that is killed because its
    threads still wait.

    Raises:
        KeyboardInterrupt: Always.
    """
    for server in list(_running):
        server.stop()
    raise KeyboardInterrupt


def write_whole(path: Path, text: str) -> None:
    """Replaces ``path`` so that a reader sees the old text or the new one."""
    scratch = path.with_suffix(".new")
    scratch.write_text(text)
    scratch.replace(path)


@contextlib.contextmanager
def serving(
    arguments: list[str], environment: dict[str, str], port: int, log: Path, timeout_s: float
) -> Iterator[Server]:
    """Runs a server, ready for requests, and ends it at the end of the block."""
    launch = [sys.executable, "-m", "sglang.launch_server", *arguments]
    launch += ["--host", "127.0.0.1", "--port", str(port), "--nccl-port", str(port + NEXT_PORT)]
    control = Path(environment[CONTROL_ENV])
    write_whole(control, json.dumps({"id": 0}))
    started = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            launch, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    server = Server(process, f"http://127.0.0.1:{port}", control, log)
    _running.append(server)
    try:
        server.wait_ready(started, timeout_s)
        yield server
    except OSError as error:  # a connection that broke says nothing; the log does
        raise RuntimeError(f"{error!r}; the server's log ends:\n{server.log_tail()}") from error
    finally:
        server.stop()
        _running.remove(server)
