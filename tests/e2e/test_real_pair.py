"""The pair of the demo, SmolLM2 and its EAGLE-3 head: by default, and with the host's policy."""

import json
import re
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from sglang_adaptive_spec.cli import main
from sglang_adaptive_spec.operate.server import server_states
from sglang_adaptive_spec.policy.costs.table import CostTable
from tests.e2e.fleet import Fleet
from tests.e2e.launches import ALGORITHM, PAIR, PAIR_DRAFT
from tests.e2e.server import LOGS, MODULE, Launch, Server
from tests.e2e.traffic import check_identical, greedy
from tests.hosts import REPO

NUM_TOKENS = 48
CHECK_TIMEOUT_S = 300  # it imports SGLang and reads the arguments; so long on a busy machine
SEEDING = (REPO / "sglang_adaptive_spec" / "host" / "startup" / "seeding.py").read_text()
(SEEDING_LIMIT_S,) = map(float, re.findall(r"^LIMIT_S = ([\d.]+)", SEEDING, re.MULTILINE))
# Easy ones first: the average rises above the deepest tier's threshold, then falls below 1.
PROMPTS = {
    "records": '[{"id": 1, "name": "Alice", "age": 30}, {"id": 2, "name": "Bob", "age": 31}, '
    '{"id": 3, "name": "Carol", "age": 32}, {"id":',
    "items": '{"items": [{"key": "a", "value": 1}, {"key": "b", "value": 2}, '
    '{"key": "c", "value": 3}, {"key": "d", "value": 4}, {"key":',
    "code": "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "prose": "The old lighthouse keeper looked out at the storm and",
}
DRAFT = ("--speculative-draft-model-path", str(PAIR_DRAFT))
DEFAULT = Launch("smollm2", PAIR, (*ALGORITHM, *DRAFT))
CONSERVATIVE = Launch(
    "smollm2-conservative",
    PAIR,
    (*ALGORITHM, *DRAFT, "--speculative-adaptive-config", "conservative"),
)
BOTH = pytest.mark.parametrize("launch", [DEFAULT, CONSERVATIVE], ids=str)

pytestmark = pytest.mark.e2e


def real_answers(server: Server) -> dict[str, list[int]]:
    return {
        name: server.post("/generate", {"text": text, "sampling_params": greedy(NUM_TOKENS)})[
            "output_ids"
        ]
        for name, text in PROMPTS.items()
    }


@BOTH
def test_the_real_pair_gives_the_text_of_no_speculation(fleet: Fleet, launch: Launch) -> None:
    got, reference = fleet.compare(launch, real_answers)
    assert [len(ids) for ids in reference.values()] == [NUM_TOKENS] * len(PROMPTS)
    assert len({token for ids in reference.values() for token in ids}) >= NUM_TOKENS
    check_identical(got, reference)


def observed(fleet: Fleet, launch: Launch) -> dict[str, Any]:
    """Returns what the scheduler says after the answers; whatever was chosen, it went well."""
    fleet.ask_once(launch, real_answers)
    state = fleet.use(launch).internal_state()
    spec = state["adaptive_spec"]
    print(spec["rounds"], spec["switches"], state["avg_spec_accept_length"])
    assert spec["base"] == "EAGLE3"
    assert spec["fallbacks"] == {"policy_error": 0, "feedback_mismatch": 0}
    return state


@pytest.mark.parametrize("launch", [DEFAULT], ids=str)
def test_the_default_weighs_what_it_measured(fleet: Fleet, launch: Launch) -> None:
    observed(fleet, launch)
    server = fleet.use(launch)
    # One answer more: 32 rounds of a process and those behind a switch are never timed.
    server.post("/generate", {"text": PROMPTS["prose"], "sampling_params": greedy(NUM_TOKENS)})
    spec = server.internal_state()["adaptive_spec"]
    assert (spec["policy"], spec["config"]) == ("goodput", "preset goodput")
    assert set(spec["rounds"]) == {"0", "1", "2", "3", "5", "7", "10"}
    seeding, times = spec["seeding"], list(spec["costs"]["round_ms"].values())
    assert seeding["source"] == "measured"
    assert spec["costs"]["is_seeded"]
    assert seeding["num_points"] >= len(spec["rounds"])
    if seeding["seconds"] < SEEDING_LIMIT_S:  # else the machine is too busy for good round times
        # Which tiers pay depends on the machine; that one pays for all these prompts is unlikely.
        assert sum(count > 0 for count in spec["rounds"].values()) >= 2, spec["rounds"]
    assert len(times) == len(spec["rounds"])
    assert min(times) > 0
    newest = spec["decisions"]["newest"]
    assert newest["batch_size"] == 1
    assert newest["runner_up"] != newest["best"]
    # The head fits this target: first drafts hold, as they would not from a broken relay.
    drafting = [steps for steps, count in spec["rounds"].items() if steps != "0" and count]
    num_rounds = sum(spec["num_request_rounds"][steps] for steps in drafting)
    num_held = sum(spec["accepted_per_position"][steps][0] for steps in drafting)
    assert num_held > 0.3 * num_rounds
    timed = spec["timed_rounds"].values()
    assert sum(each["num_rounds"] for each in timed) >= sum(spec["rounds"].values()) / 2
    assert sum(each["expected_tokens"] for each in timed) > 0


@pytest.mark.parametrize("launch", [DEFAULT], ids=str)
def test_explain_says_of_a_server_what_its_policy_knows(
    fleet: Fleet,
    launch: Launch,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    context = max(observed(fleet, launch)["adaptive_spec"]["costs"]["context_tokens"], 1)
    read: list[dict[str, Any]] = []  # what explain reads: a state asked for earlier knows less

    def read_once(*args: Any) -> list[dict[str, Any]]:
        read.extend(server_states(*args))
        return read

    monkeypatch.setattr("sglang_adaptive_spec.operate.explain.source.server_states", read_once)
    capsys.readouterr()
    url = fleet.use(launch).url("")
    assert main(["explain", "--server", url, "--context", str(context), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    (spec,) = read
    costs = spec["costs"]
    size = costs["batch_size"]
    (alone,) = (row for row in data["batch_sizes"] if row["batch_size"] == size)
    table = CostTable.from_dict(spec["cost_table"]).describe(size, context * size)
    assert alone["round_ms"] == pytest.approx(table["round_ms"])
    # The policy's own table is rebuilt at some rounds only: a tier in its first ones may lag far.
    assert alone["round_ms"].keys() == costs["round_ms"].keys()
    ratios = [alone["round_ms"][label] / ms for label, ms in costs["round_ms"].items()]
    assert median(ratios) == pytest.approx(1.0, rel=0.1), ratios
    assert data["now"]["acceptance"] == spec["acceptance"]["survival"][0]
    assert {cell["tier"] for cell in alone["pays"].values()} <= set(spec["rounds"])
    assert main(["watch", url, "--interval", "0.2", "--lines", "2"]) == 0
    for line in capsys.readouterr().out.splitlines():
        assert f"steps {spec['current_tier']}" in line


@pytest.mark.parametrize("launch", [DEFAULT], ids=str)
def test_check_says_before_what_a_server_then_serves(fleet: Fleet, launch: Launch) -> None:
    spec = observed(fleet, launch)["adaptive_spec"]
    arguments = launch.argv(port=1)[1 + len(MODULE) :]
    done = subprocess.run(
        [
            Path(sys.executable).with_name("sglang-adaptive-spec"),
            "check",
            "--json",
            "--",
            *arguments,
        ],
        env=launch.environment(),
        cwd=LOGS,
        capture_output=True,
        text=True,
        timeout=CHECK_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    for name in ("mode", "base", "config", "policy"):
        assert told[name] == spec[name]
    assert told["tiers"] == {
        bound: slot["candidate_tiers"] for bound, slot in spec["slots"].items()
    }


@pytest.mark.parametrize("launch", [CONSERVATIVE], ids=str)
def test_the_host_s_policy_moves_between_its_tiers(fleet: Fleet, launch: Launch) -> None:
    state = observed(fleet, launch)
    spec = state["adaptive_spec"]
    assert (spec["policy"], spec["config"]) == ("ema", "preset conservative")
    assert set(spec["rounds"]) == {"1", "3", "7"}
    assert min(spec["rounds"].values()) > 0, spec["rounds"]
    assert spec["switches"]["policy"] >= 3
    # The head fits this target: drafts are accepted, as they would not be from a broken relay.
    assert state["avg_spec_accept_length"] > 1.5
