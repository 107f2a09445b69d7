"""What fails around a round costs speed or ends the server with a reason; the text stays right.

A policy that raises, an exception inside a round, a clock that jumps by hours, round times on
disk that cannot be read, and a termination while tiers switch.
"""

import json
import os
import signal
import threading
import time
import urllib.error
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from sglang_adaptive_spec.policy.costs.cache import FORMAT_VERSION
from tests.e2e.counters import expected_counters, exported, wait_for_export
from tests.e2e.fleet import Fleet
from tests.e2e.launches import ALGORITHM, TIERS, TINY, adaptive, draft
from tests.e2e.server import OURS, Launch, Server
from tests.e2e.traffic import PROMPTS, answers, check_identical, check_idle_and_whole, greedy

END_TIMEOUT_S = 120.0
GOODPUT = ("--speculative-adaptive-config", str(TIERS.with_name("goodput.json")))
STEPS = {0, 1, 3}  # of that config
LOGGED = "ADAPTIVE_EAGLE policy failed in choose(); the last tier stays in force."
GARBLED = b'{"format_version": %d, "key": ' % FORMAT_VERSION

FAILING = replace(
    adaptive("eagle", overlap=True), name="failing", plugins=(OURS, "failing"), strict=True
)
CLOCK = Launch(
    "jumping-clock",
    TINY,
    (*ALGORITHM, *draft("eagle"), *GOODPUT, "--enable-metrics"),
    overlap=True,
    plugins=(OURS, "jumping_clock", "patient_seeding"),
    strict=True,
)
# The same round times, hence the same file.
GARBLED_FILE = replace(
    CLOCK, name="garbled-file", plugins=(OURS, "forced_switch", "patient_seeding")
)

pytestmark = pytest.mark.e2e


def check_text(fleet: Fleet, server: Server, name: str) -> None:
    """Sends all prompts in one batch of requests called ``name``."""
    reference = fleet.ask_once(server.launch.reference(), answers)
    batch = {key: ids for key, ids in reference.items() if key.startswith("batch ")}
    body = {
        "text": list(PROMPTS),
        "rid": [f"{name}-{number}" for number in range(len(PROMPTS))],
        "sampling_params": greedy(),
    }
    replies = server.post("/generate", body)
    check_identical(
        {f"batch {number}": reply["output_ids"] for number, reply in enumerate(replies)}, batch
    )


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Returns those that still run; what is dead and not yet collected does not."""
    return [
        process
        for process in processes
        if process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    ]


def family(server: Server) -> list[psutil.Process]:
    """Returns all processes of a server."""
    parent = psutil.Process(server.process.pid)
    return [parent, *parent.children(recursive=True)]


@pytest.mark.parametrize("launch", [FAILING], ids=str)
def test_a_policy_that_raises_is_counted_and_logged_once(fleet: Fleet, launch: Launch) -> None:
    fleet.ask_once(launch.reference(), answers)
    server = fleet.use(launch)
    for name in ("choose-fails", "observe-fails", "fine"):
        check_text(fleet, server, name)
    check_idle_and_whole(server)
    state = server.internal_state()
    faults = state["e2e_faults"]
    assert min(faults["choose"], faults["observe"]) > 20, faults
    counted = {"policy_error": faults["choose"] + faults["observe"], "feedback_mismatch": 0}
    assert state["adaptive_spec"]["fallbacks"] == counted
    assert min(state["adaptive_spec"]["rounds"].values()) > 0
    assert server.log_text().count(LOGGED) == 1
    assert server.log_text().count("Error: e2e: choose fails") == 1  # its traceback's end


@pytest.mark.parametrize("launch", [FAILING], ids=str)
def test_an_exception_inside_a_round_ends_the_server(fleet: Fleet, launch: Launch) -> None:
    """As any exception of SGLang's own worker does: nothing hangs, and the log names it."""
    server = fleet.use(launch)
    processes = family(server)
    body = {"text": "break", "rid": "round-fails-0", "sampling_params": greedy()}
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(server.post, "/generate", body)
        assert server.wait_end(END_TIMEOUT_S) != 0
        with pytest.raises(OSError, match=r".*"):
            waiting.result(END_TIMEOUT_S)
    psutil.wait_procs(processes, timeout=END_TIMEOUT_S)
    assert alive(processes) == []
    assert "Scheduler hit an exception" in server.log_text()
    assert "RuntimeError: e2e: the round fails" in server.log_text()
    fleet.end(launch)


@pytest.mark.parametrize("launch", [CLOCK], ids=str)
def test_a_clock_that_jumps_by_hours_changes_no_text(fleet: Fleet, launch: Launch) -> None:
    check_identical(*fleet.compare(launch, answers))
    server = fleet.use(launch)
    check_idle_and_whole(server)
    state = server.internal_state()
    spec = state["adaptive_spec"]
    assert min(state["e2e_faults"][direction] for direction in ("forward", "backward")) > 10
    assert spec["fallbacks"] == {"policy_error": 0, "feedback_mismatch": 0}
    times_ms = spec["costs"]["round_ms"].values()
    assert len(times_ms) == len(STEPS)
    assert all(0 < ms < float("inf") for ms in times_ms)


@pytest.mark.parametrize("launch", [CLOCK], ids=str)
def test_counters_are_exported_under_a_clock_that_jumps(fleet: Fleet, launch: Launch) -> None:
    fleet.ask_once(launch, answers)
    server = fleet.use(launch)
    check_idle_and_whole(server)
    expected = expected_counters(server.internal_state()["adaptive_spec"])
    rounds = {name: total for name, total in expected.items() if name[0] == "rounds"}
    wait_for_export(server, rounds)
    got = exported(server)
    assert {name: got.get(name) for name in rounds} == rounds


def cost_file(launch: Launch) -> Path:
    """Returns the newest file with round times of the goodput config and the launch's draft.

    Servers of other modules write theirs to the same folder.
    """
    folder = Path(launch.environment()["XDG_CACHE_HOME"]) / "sglang-adaptive-spec"
    keys = {path: json.loads(path.read_bytes())["key"] for path in folder.glob("costs-*.json")}
    found = [
        path
        for path, key in keys.items()
        if {steps for steps, *_ in key["tiers"]} == STEPS and key["draft"] in launch.args
    ]
    return max(found, key=lambda path: path.stat().st_mtime)


@pytest.fixture(scope="module")
def garbled(fleet: Fleet) -> Iterator[tuple[Server, Path]]:
    """A server that finds half a file where an earlier start left its round times."""
    fleet.use(CLOCK)  # which wrote it
    path = cost_file(CLOCK)
    path.write_bytes(GARBLED)
    server = Server.start(GARBLED_FILE)
    try:
        server.wait_ready()
        yield server, path
    finally:
        server.stop()


def test_round_times_that_cannot_be_read_are_measured_again(
    fleet: Fleet, garbled: tuple[Server, Path]
) -> None:
    server, path = garbled
    assert server.log_text().count("ADAPTIVE_EAGLE does not use the round times in") == 1
    assert str(path) in server.log_text()
    spec = server.internal_state()["adaptive_spec"]
    assert spec["seeding"]["source"] == "measured"
    assert min(spec["costs"]["round_ms"].values()) > 0
    assert cost_file(server.launch) == path  # whole again
    check_text(fleet, server, "fine")


def test_a_termination_while_tiers_switch_leaves_no_process(garbled: tuple[Server, Path]) -> None:
    server, _ = garbled
    processes = family(server)
    assert len(processes) > 1
    before = sum(server.internal_state()["adaptive_spec"]["rounds"].values())
    endings: list[Any] = []
    body = {"text": list(PROMPTS), "sampling_params": greedy(400)}
    client = threading.Thread(target=lambda: endings.append(ending(server, body)))
    client.start()
    while sum(server.internal_state()["adaptive_spec"]["rounds"].values()) < before + 10:
        time.sleep(0.05)
    os.kill(server.process.pid, signal.SIGTERM)
    server.wait_end(END_TIMEOUT_S)
    client.join(END_TIMEOUT_S)
    assert endings == ["length"]  # SGLang lets running requests finish
    psutil.wait_procs(processes, timeout=END_TIMEOUT_S)
    assert alive(processes) == []
    _, received, after = server.log_text().partition("SIGTERM received")
    assert received
    assert "Traceback" not in after


def ending(server: Server, body: dict[str, Any]) -> str:
    """Returns how a request of a server that ends was answered."""
    try:
        return str(server.post("/generate", body)[0]["meta_info"]["finish_reason"]["type"])
    except (OSError, urllib.error.HTTPError) as error:
        return type(error).__name__
