"""`sglang serve` and sgl.Engine serve ADAPTIVE_EAGLE, too, and the counters reach Prometheus.

The other tests start through ``python -m sglang.launch_server`` and switch by force; here the
config's own policy chooses.
"""

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.fleet import Fleet
from tests.e2e.launches import MODELS, NUM_STEPS, TIERS, adaptive
from tests.e2e.server import LOGS, Launch, Server
from tests.e2e.traffic import NUM_TOKENS, PROMPTS, answers, check_identical, check_idle_and_whole

ENGINE_SCRIPT = Path(__file__).parent / "engine_script.py"
ENGINE_TIMEOUT_S = 900
EXPORT_TIMEOUT_S = 60.0  # counters are exported once a second, by a thread
PREFIX = "sglang:adaptive_spec_"

# Start at 1 step, which is neither the largest tier nor the default.
SERVE = replace(
    adaptive("eagle", "--speculative-num-steps", "1", "--enable-metrics", overlap=True),
    name="eagle-serve",
    command=(str(Path(sys.executable).parent / "sglang"), "serve"),
)

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("launch", [SERVE], ids=str)
def test_sglang_serve_starts_at_the_users_steps(fleet: Fleet, server: Server) -> None:
    spec = server.internal_state()["adaptive_spec"]
    assert sum(spec["rounds"].values()) == 0, "this test must be the server's first"
    assert spec["startup_steps"] == max(NUM_STEPS)
    assert spec["slots"]["1"]["current_steps"] == 1
    body = {"text": "hi", "sampling_params": {"temperature": 0, "max_new_tokens": 2}}
    server.post("/generate", body)
    state = server.internal_state()
    rounds = state["adaptive_spec"]["rounds"]
    assert rounds.pop("1") > 0
    assert set(rounds.values()) == {0}
    assert state["speculative_num_steps"] == 1


@pytest.mark.parametrize("launch", [SERVE], ids=str)
def test_the_policy_switches_and_the_text_stays_the_same(fleet: Fleet, launch: Launch) -> None:
    reference = fleet.ask_once(launch.reference(), answers)
    check_identical(fleet.ask_once(launch, answers), reference)
    spec = fleet.use(launch).internal_state()["adaptive_spec"]
    assert sum(spec["switches"].values()) >= 2, spec["switches"]
    assert sum(count > 0 for count in spec["rounds"].values()) >= 2, spec["rounds"]
    assert spec["slots"]["1"]["ema_accept_len"] > 0


@pytest.mark.parametrize("launch", [SERVE], ids=str)
def test_prometheus_shows_the_counters_of_server_info(fleet: Fleet, launch: Launch) -> None:
    fleet.ask_once(launch, answers)
    server = fleet.use(launch)
    check_idle_and_whole(server)
    expected = expected_counters(server.internal_state()["adaptive_spec"])
    wait_for_export(server, expected)
    assert any(name == "timed_ms" for name, *_ in expected)
    assert exported(server) == pytest.approx(expected, abs=1e-2)  # ms are shown rounded


def wait_for_export(server: Server, expected: Mapping[tuple[str, ...], float]) -> None:
    """Waits until the rounds of an idle server's counters are those ``expected``, or too long."""
    deadline = time.monotonic() + EXPORT_TIMEOUT_S
    rounds = {name: total for name, total in expected.items() if name[0] == "rounds"}
    while time.monotonic() < deadline and not rounds.items() <= exported(server).items():
        time.sleep(0.2)


def exported(server: Server) -> dict[tuple[str, ...], float]:
    """Returns our counters that are not zero: (name, its labels) -> total."""
    found: dict[tuple[str, ...], float] = {}
    for family in text_string_to_metric_families(server.get_text("/metrics")):
        for sample in family.samples:
            if not sample.name.startswith(PREFIX) or not sample.name.endswith("_total"):
                continue
            ours = ("num_steps", "position", "reason")
            labels = [sample.labels[name] for name in ours if name in sample.labels]
            key = (sample.name.removeprefix(PREFIX).removesuffix("_total"), *labels)
            found[key] = found.get(key, 0) + sample.value
    return {key: total for key, total in found.items() if total}


def expected_counters(spec: dict[str, Any]) -> dict[tuple[str, ...], float]:
    """Returns the same from /server_info."""
    expected: dict[tuple[str, ...], float] = {}
    for steps in spec["rounds"]:
        expected["rounds", steps] = spec["rounds"][steps]
        expected["request_rounds", steps] = spec["num_request_rounds"][steps]
        expected["proposed_drafts", steps] = spec["num_proposed_drafts"][steps]
        for position, total in enumerate(spec["accepted_per_position"][steps], start=1):
            expected["accepted_drafts", steps, str(position)] = total
    for steps, timed in spec["timed_rounds"].items():
        expected["timed_rounds", steps] = timed["num_rounds"]
        expected["timed_tokens", steps] = timed["tokens"]
        expected["timed_ms", steps] = timed["ms"]
    expected["catch_up_rounds",] = spec["catch_ups"]["num_timed_rounds"]
    expected["catch_up_ms",] = spec["catch_ups"]["ms"]
    for reason, total in spec["switches"].items():
        expected["switches", reason] = total
    for reason, total in spec["fallbacks"].items():
        expected["fallbacks", reason] = total
    return {key: total for key, total in expected.items() if total}


def test_the_engine_serves_the_same_text(fleet: Fleet) -> None:
    launch = adaptive("eagle3", overlap=True)  # its environment only
    reference = fleet.ask_once(launch.reference(), answers)
    settings = {
        "model_path": str(MODELS / "target"),
        "speculative_draft_model_path": str(MODELS / "eagle3"),
        "speculative_adaptive_config": str(TIERS),
        "speculative_num_steps": max(NUM_STEPS),
    }
    question = {"settings": settings, "prompts": PROMPTS, "num_tokens": NUM_TOKENS}
    with (LOGS / "engine.log").open("w") as log:
        done = subprocess.run(
            [sys.executable, str(ENGINE_SCRIPT), json.dumps(question)],
            env=launch.environment(),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            timeout=ENGINE_TIMEOUT_S,
            check=True,
        )
    reply = json.loads(done.stdout.splitlines()[-1])
    assert reply["before"]["slots"]["1"]["current_steps"] == max(NUM_STEPS)
    assert reply["after"]["mode"] == "adaptive"
    assert reply["after"]["base"] == "EAGLE3"
    assert sum(reply["after"]["rounds"].values()) > 0
    batch = {f"batch {number}": ids for number, ids in enumerate(reply["output_ids"])}
    check_identical(batch, {name: reference[name] for name in batch})
