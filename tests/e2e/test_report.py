"""`report` of the running pair's minutes, and of the trace that a server recorded."""

import json
import time
from pathlib import Path

import pytest

from sglang_adaptive_spec.cli import main
from sglang_adaptive_spec.trace.format import TraceError, read_trace
from tests.e2e.fleet import Fleet
from tests.e2e.launches import adaptive
from tests.e2e.server import Launch
from tests.e2e.test_real_pair import DEFAULT, real_answers
from tests.e2e.traffic import answers
from tests.hosts import CACHE

TRACE, CONFIG = CACHE / "e2e-trace.jsonl", CACHE / "e2e-recording.json"
WRITTEN_S = 30.0  # the recorder writes every five seconds


def recording() -> Launch:
    """The tiny pair with the default policy, which records."""
    config = {"policy": "goodput", "record": str(TRACE), "1": {"candidate_steps": [0, 1, 3]}}
    CACHE.mkdir(exist_ok=True)
    CONFIG.write_text(json.dumps(config))
    return adaptive("eagle3", overlap=True, config=CONFIG)


RECORDING = recording()

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("launch", [DEFAULT], ids=str)
def test_a_running_server_is_reported(
    fleet: Fleet, launch: Launch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet.ask_once(launch, real_answers)
    url, out = fleet.use(launch).url(""), tmp_path / "report.html"
    capsys.readouterr()
    assert main(["report", url, "--out", str(out)]) == 0
    name, summary, *_ = capsys.readouterr().out.splitlines()
    rounds = fleet.use(launch).internal_state()["adaptive_spec"]["rounds"]
    assert name == url
    assert f" in {sum(rounds.values()):,} rounds" in summary
    assert "What stands out" in out.read_text()


@pytest.mark.parametrize("launch", [RECORDING], ids=lambda launch: f"{launch}-recording")
def test_the_trace_of_a_server_is_reported_with_its_regret(
    fleet: Fleet, launch: Launch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet.ask_once(launch, answers)
    rounds = fleet.use(launch).internal_state()["adaptive_spec"]["rounds"]
    deadline = time.monotonic() + WRITTEN_S
    while time.monotonic() < deadline:
        try:
            if len(read_trace(TRACE).rounds) >= sum(rounds.values()):
                break
        except TraceError:
            pass
        time.sleep(1.0)
    capsys.readouterr()
    assert main(["report", str(TRACE), "--out", str(tmp_path / "report.html")]) == 0
    told = capsys.readouterr().out
    assert f" in {sum(rounds.values()):,} rounds" in told
    assert "Computed from the trace: it served" in told
