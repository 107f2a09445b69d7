"""`sglang serve` and sgl.Engine serve ADAPTIVE_EAGLE, too, and the counters reach Prometheus.

The other tests start through ``python -m sglang.launch_server`` and switch by force; here the
config's own policy chooses.
"""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.e2e.counters import expected_counters, exported, wait_for_export
from tests.e2e.fleet import Fleet
from tests.e2e.launches import MODELS, NUM_STEPS, TIERS, adaptive
from tests.e2e.server import LOGS, Launch, Server
from tests.e2e.traffic import NUM_TOKENS, PROMPTS, answers, check_identical, check_idle_and_whole

ENGINE_SCRIPT = Path(__file__).parent / "engine_script.py"
ENGINE_TIMEOUT_S = 900

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
    check_identical(*fleet.compare(launch, answers))
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


def test_the_engine_serves_the_same_text(fleet: Fleet) -> None:
    launch = adaptive("eagle3", overlap=True)  # its environment only
    reference = fleet.ask_once(launch.reference(), answers)
    settings = {
        "model_path": str(MODELS / "target"),
        "speculative_draft_model_path": str(MODELS / "eagle3"),
        "speculative_adaptive_config": str(TIERS),
        "speculative_num_steps": max(NUM_STEPS),
    }
    limit = {"custom_params": {"adaptive_spec": {"max_steps": 1}}}
    question = {
        **{"settings": settings, "prompts": PROMPTS, "num_tokens": NUM_TOKENS},
        "sampling": limit,
    }
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
    assert reply["after"]["requests"]["ignored"] == len(PROMPTS), "ema knows no limits"
    batch = {f"batch {number}": ids for number, ids in enumerate(reply["output_ids"])}
    check_identical(batch, {name: reference[name] for name in batch})
