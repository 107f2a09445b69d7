"""Installed and not selected, the plugin changes nothing; and what it cannot switch it serves."""

from dataclasses import replace
from typing import Any

import pytest

from tests.e2e.fleet import Fleet
from tests.e2e.launches import TINY, adaptive, draft
from tests.e2e.server import OURS, Launch, Server
from tests.e2e.traffic import answers, check_identical

HOST_WORKER = "sglang.srt.speculative.eagle_worker_v2.EAGLEWorkerV2"
CHAIN = (
    *("--speculative-num-steps", "3", "--speculative-eagle-topk", "1"),
    *("--speculative-num-draft-tokens", "4"),
)
EAGLE = ("--speculative-algorithm", "EAGLE", *draft("eagle"), *CHAIN)
TREE = (
    *("--speculative-num-steps", "2", "--speculative-eagle-topk", "4"),
    *("--speculative-num-draft-tokens", "8"),
)
# What no two servers share.
VOLATILE = {"port", "nccl_port", "startup_time", "last_gen_throughput", "memory_usage"}

PROBE = ("show_worker",)
WITHOUT = [Launch("none", TINY, plugins=PROBE), Launch("plain-eagle", TINY, EAGLE, plugins=PROBE)]
PAIRS = [(replace(launch, plugins=(OURS, *PROBE)), launch) for launch in WITHOUT]
STATIC = replace(adaptive("eagle", *TREE), name="static-tree", plugins=(OURS, *PROBE))

pytestmark = pytest.mark.e2e


def state_and_answers(server: Server) -> tuple[dict[str, Any], dict[str, Any]]:
    state = server.internal_state()
    return state, answers(server)


@pytest.mark.parametrize(("installed", "absent"), PAIRS, ids=["none", "plain-eagle"])
def test_installed_and_not_selected_nothing_differs(
    fleet: Fleet, installed: Launch, absent: Launch
) -> None:
    replies = fleet.ask_together([installed, absent], state_and_answers)
    (state, got), (host_state, expected) = replies
    assert "adaptive_spec" not in state
    assert state.keys() == host_state.keys()
    changed = {name for name, value in state.items() if value != host_state[name]}
    assert changed <= VOLATILE
    if "eagle" in installed.name:
        assert state["e2e_worker"] == HOST_WORKER
    assert got == expected


@pytest.mark.parametrize("launch", [STATIC], ids=str)
def test_an_unsupported_setting_is_served_as_static_eagle_with_the_reason(
    fleet: Fleet, server: Server, launch: Launch
) -> None:
    state = server.internal_state()
    assert state["adaptive_spec"]["mode"] == "static"
    assert state["adaptive_spec"]["base"] == "EAGLE"
    assert "--speculative-eagle-topk 4" in state["adaptive_spec"]["reason"]
    assert state["speculative_num_steps"] == 2  # the user's, not the largest tier's
    assert state["speculative_eagle_topk"] == 4
    assert state["speculative_num_draft_tokens"] == 8
    assert state["e2e_worker"] == HOST_WORKER
    reason = state["adaptive_spec"]["reason"]
    warnings = [line for line in server.log_text().splitlines() if reason in line]
    assert len(warnings) == 1, warnings
    check_identical(*fleet.compare(launch, answers))
