"""A fleet: every server at its own port, windows of a fair length, one pool size for all."""

import contextlib
import json
import threading
import types
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from benchmarks.inject.acceptance import MAX_NEW_TOKENS, request_ids
from benchmarks.inject.measure_plugin import Watch, done_marker
from benchmarks.inject.turn_plugin import wait_for
from benchmarks.lab import fleet
from benchmarks.lab.arms import ARMS
from benchmarks.lab.fleet import (
    Engine,
    Visit,
    new_token_limit,
    requests_that_leave,
    serving_fleet,
    visit,
    with_full_pool,
)
from benchmarks.lab.load import Window
from benchmarks.lab.server import Server
from benchmarks.lab.session import Plan

MS = 1_000_000


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """A plan of which a fleet reads the folder and the port."""
    pair: Any = None
    return Plan(pair, (), {}, tmp_path, 100, 1, has_graphs=False)


def watch(batch_size: int, seconds: float) -> Watch:
    """A watch as a command asks for it."""
    return Watch({"batch_size": batch_size, "seconds": seconds})


def test_a_watch_waits_for_the_full_batch_and_then_for_the_time() -> None:
    waiting = watch(4, 0.1)
    assert not waiting.is_over(0, 2, False)
    assert not waiting.is_over(500 * MS, 4, False)
    assert not waiting.is_over(590 * MS, 4, False)
    assert waiting.is_over(600 * MS, 4, False)


@pytest.mark.parametrize(("size", "has_finished"), [(3, False), (4, True)])
def test_a_watch_ends_early_when_the_batch_is_no_longer_full(size: int, has_finished: bool) -> None:
    waiting = watch(4, 10.0)
    assert not waiting.is_over(0, 4, False)
    assert waiting.is_over(MS, size, has_finished)


def test_requests_may_grow_as_far_as_pool_and_context_allow() -> None:
    assert new_token_limit(8192, 100000, 128, 8) == 1024 - 128 - fleet.RESERVED_TOKENS
    assert new_token_limit(8192, 1024, 128, 1) == 1024 - 128 - fleet.RESERVED_TOKENS
    assert new_token_limit(131072, 131072, 128, 1) == MAX_NEW_TOKENS


def engine(name: str, pool: int) -> Any:
    """An engine as far as its record goes."""
    return types.SimpleNamespace(arm=ARMS[name], measured={"max_total_tokens": pool})


def test_a_server_that_got_a_smaller_pool_is_left_out() -> None:
    fleet_of = [engine("none", 4096), engine("goodput", 4096), engine("ema", 2048)]
    assert [each.arm.name for each in with_full_pool(fleet_of)] == ["none", "goodput"]


class SmallServer:
    """Stands where a running server stands."""

    def command(self) -> dict[str, Any]:
        return {"max_total_tokens": 4096}


def test_servers_get_folders_and_ports_and_one_that_fails_does_not_stop_the_others(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[Plan] = []
    stopped: list[str] = []

    @contextlib.contextmanager
    def start(arm: Any, plan: Plan) -> Iterator[tuple[Any, dict[str, Any]]]:
        started.append(plan)
        if arm.name == "builtin":
            raise RuntimeError("out of memory")
        yield SmallServer(), {"arm": arm.name}
        stopped.append(arm.name)

    monkeypatch.setattr(fleet, "serving_arm", start)
    arms = [ARMS[name] for name in ("none", "builtin", "goodput")]
    with serving_fleet(arms, plan, deadline=float("inf")) as engines:
        assert [each.arm.name for each in engines] == ["none", "goodput"]
        assert stopped == []
    assert stopped == ["goodput", "none"]
    assert len({plan.port for plan in started}) == len({plan.folder for plan in started}) == 3
    assert "out of memory" in capsys.readouterr().out


class Starts:
    """Servers that start when the test lets them."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.begun = threading.Barrier(len(names) + 1)
        self.let = {name: threading.Event() for name in names}
        self.turns: dict[str, Path] = {}

    @contextlib.contextmanager
    def start(self, arm: Any, plan: Plan) -> Iterator[tuple[Any, dict[str, Any]]]:
        if plan.turn is not None:
            self.turns[arm.name] = plan.turn
        self.begun.wait(10)
        if plan.turn is not None:
            wait_for(plan.turn)
        assert self.let[arm.name].wait(10)
        yield SmallServer(), {}


def test_all_arms_may_start_at_once_and_ours_wait_for_their_turn(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("goodput", "none", "static-3", "ema", "builtin")
    starts = Starts(names)
    monkeypatch.setattr(fleet, "serving_arm", starts.start)
    served: list[str] = []

    def serve() -> None:
        arms = [ARMS[name] for name in names]
        with serving_fleet(arms, plan, deadline=float("inf"), at_once=True) as engines:
            served.extend(each.arm.name for each in engines)

    starter = threading.Thread(target=serve)
    starter.start()
    starts.begun.wait(10)  # all five
    first, second = starts.turns["goodput"], starts.turns["ema"]
    starts.let["none"].set()
    starts.let["static-3"].set()
    first_s = 0.2  # a turn that comes too early would come within it
    threading.Event().wait(first_s)
    assert not first.exists()
    starts.let["builtin"].set()
    wait_for(first)
    threading.Event().wait(first_s)
    assert not second.exists()
    starts.let["goodput"].set()
    wait_for(second)
    starts.let["ema"].set()
    starter.join(10)
    assert tuple(served) == names


def test_no_server_is_started_after_the_deadline(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "serving_arm", pytest.fail)
    with serving_fleet([ARMS["none"]], plan, deadline=0.0) as engines:
        assert engines == []


class Host:
    """Answers like a server whose batch decodes 100 rounds of 10 ms before the marker."""

    def __init__(self, control: Path) -> None:
        self.control = control
        self.sent: dict[str, Any] = {}
        self.aborted = threading.Event()

    def generate(self, body: dict[str, Any]) -> Any:
        self.sent = body
        done_marker(self.control).write_text(json.dumps(json.loads(self.control.read_text())["id"]))
        assert self.aborted.wait(10)
        return []

    def info(self) -> Any:
        rounds = [(index * 10 * MS, 2, 6, 4, False, True) for index in range(100)]
        command_id = json.loads(self.control.read_text())["id"]
        answer = {"command_id": command_id, "rounds": rounds}
        return {"internal_states": [{"bench_measure": answer}]}


@pytest.fixture
def host(tmp_path: Path) -> Iterator[tuple[Host, Server]]:
    """The host and a client's view of it."""
    made = Host(tmp_path / "control.json")

    class Handler(BaseHTTPRequestHandler):
        def reply(self, answer: Any) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def do_GET(self) -> None:
            self.reply(made.info())

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path == "/abort_request":
                made.aborted.set()
                self.reply({})
            else:
                self.reply(made.generate(body))

        def log_message(self, *_args: object) -> None:
            pass

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=listener.serve_forever, daemon=True).start()
    process: Any = types.SimpleNamespace(poll=lambda: None, pid=0)
    url = f"http://127.0.0.1:{listener.server_port}"
    yield made, Server(process, url, made.control, tmp_path / "log")
    listener.shutdown()
    listener.server_close()


def test_a_visit_sends_named_requests_aborts_them_and_returns_the_window(
    host: tuple[Host, Server],
) -> None:
    made, server = host
    wanted = Visit("0.7", 2, repeat=3, settle_s=0.2, window_s=0.4)
    window, _ = visit(Engine(ARMS["static-3"], server, {}), wanted, [[1], [2]], 50)
    assert window == Window(40 * 6, 0.4, {"3": 40}, 0)
    assert made.sent["rid"] == request_ids("0.7", 2, 3)
    assert made.sent["sampling_params"]["max_new_tokens"] == 50
    command = json.loads(made.control.read_text())
    assert command["accept_length"] > 0
    assert command["watch"]["batch_size"] == 2
    assert command["watch"]["seconds"] >= 0.6


def test_requests_leave_one_after_the_other_for_as_long_as_others_are_answered(
    host: tuple[Host, Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "STAYS_S", 0.01)
    made, server = host
    made.control.write_text(json.dumps({"id": 0}))
    with requests_that_leave(server.url, [1], 50, routed_dp_rank=3) as gone:
        while len(gone) < 2:
            pass
    assert made.aborted.is_set()
    assert gone == [f"leaves-{number}" for number in range(len(gone))]
    assert (made.sent["rid"], made.sent["routed_dp_rank"]) == (gone[-1:], 3)


def test_of_a_log_start_and_end_are_kept_without_what_was_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "MAX_LOG_LINES", 2)
    log = tmp_path / "none" / "none.log"
    log.parent.mkdir()
    asked = 'INFO: 127.0.0.1:1 - "POST /generate HTTP/1.1" 200 OK'
    log.write_text("\n".join(["1", asked, "2", "3", "4", asked, "5"]) + "\n")
    fleet.keep_logs([ARMS["none"], ARMS["builtin"]], tmp_path, tmp_path / "kept")
    assert (tmp_path / "kept").read_text().split() == ["===", "none", "1", "2", "...", "4", "5"]
