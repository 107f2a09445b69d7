"""The demo's server class, on a stand-in process that speaks the same few endpoints."""

import socket
import sys
import time
from pathlib import Path

import pytest

from examples import server as module
from examples.server import CPU_ENVIRONMENT, HOST, PORTS, Server, ServerError, free_port

STAND_IN = """
import json, subprocess, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("child", child.pid, flush=True)
class Handler(BaseHTTPRequestHandler):
    def answer(self, body):
        self.send_response(200); self.end_headers(); self.wfile.write(json.dumps(body).encode())
    def do_GET(self):
        states = {"internal_states": [{"speculative_num_steps": 3}]}
        self.answer(states if self.path == "/server_info" else {})
    def do_POST(self):
        self.answer({"echo": json.loads(self.rfile.read(int(self.headers["Content-Length"])))})
time.sleep(0.3)
HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""


def python(code: str, tmp_path: Path) -> Server:
    return Server([sys.executable, "-c", code], free_port(), tmp_path / "logs" / "server.log")


def is_alive(pid: int) -> bool:
    """Says whether the process runs; a zombie waiting for its parent does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_a_server_is_ready_asked_and_gone_with_its_children(tmp_path: Path) -> None:
    with python(STAND_IN, tmp_path) as server:
        assert server.is_healthy()
        assert 0.1 < server.ready_s < 60
        assert server.post("/generate", {"a": 1}) == {"echo": {"a": 1}}
        assert server.internal_state() == {"speculative_num_steps": 3}
        child = int(server.log.read_text().split()[1])
        assert is_alive(child)
    deadline = time.monotonic() + 10
    while is_alive(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_alive(child)
    assert not server.is_healthy()


def test_a_server_that_ends_at_its_start_shows_its_log(tmp_path: Path) -> None:
    code = "import sys; print('no such model'); sys.exit(7)"
    with pytest.raises(ServerError, match=r"(?s)code 7.*no such model.*server\.log"):
        python(code, tmp_path).__enter__()


def test_a_server_that_never_answers_is_stopped(tmp_path: Path) -> None:
    server = python("import os, time; print(os.getpid(), flush=True); time.sleep(600)", tmp_path)
    server.start()
    deadline = time.monotonic() + 60
    while not server.log.read_text() and time.monotonic() < deadline:
        time.sleep(0.05)
    with pytest.raises(ServerError, match="not ready after 1 s"):
        server.wait_ready(timeout_s=1)
    server.stop()
    assert not is_alive(int(server.log.read_text()))


def test_ports_lie_in_their_range_and_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    assert free_port() in PORTS
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        port = taken.getsockname()[1]
        monkeypatch.setattr(module, "PORTS", range(port, port + 1))
        with pytest.raises(ServerError, match="No port is free"):
            free_port()


def test_the_server_gets_our_environment_and_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEMO_INHERITED", "ours")
    monkeypatch.setenv("XDG_CACHE_HOME", "the user's")
    names = ("DEMO_INHERITED", "XDG_CACHE_HOME")
    code = f"import os; print(*(os.environ[name] for name in {names}), os.getcwd())"
    log = tmp_path / "logs" / "server.log"
    server = Server([sys.executable, "-c", code], free_port(), log, {"XDG_CACHE_HOME": "its"})
    server.start()
    with pytest.raises(ServerError):
        server.wait_ready()
    assert server.log.read_text().split() == ["ours", "its", str(tmp_path / "logs")]
    on_cpu = Server.of_sglang([], log, {"XDG_CACHE_HOME": "its"}).environment
    assert on_cpu == {**CPU_ENVIRONMENT, "XDG_CACHE_HOME": "its"}
