"""Greedy answers equal no speculation while the tier changes in every round.

EAGLE and EAGLE-3, overlap schedule on and off, on 0.5.21 and 0.5.23; one EAGLE case on 0.5.20 and
0.5.22; a whole model as draft and a table of what was written on all four. The policy is replaced
by a seeded walk through all tiers, zero steps included, and the host's own memory checks are on.
"""

import json
from typing import Any

import pytest

from tests.e2e.fleet import Fleet
from tests.e2e.launches import NUM_STEPS, forced, forced_on_two_ranks
from tests.e2e.server import Launch, Server
from tests.e2e.traffic import (
    NUM_TOKENS,
    PROMPTS,
    abort_running,
    answers,
    batch_answers,
    check_identical,
    check_idle_and_whole,
    check_not_degenerate,
    disconnect_while_running,
)

CASES = [
    forced("eagle", host="0.5.20", overlap=True),
    *(
        forced(base, host="0.5.21", overlap=overlap)
        for base in ("eagle", "eagle3")
        for overlap in (False, True)
    ),
    forced("eagle", host="0.5.22", overlap=True),
    *(
        forced(base, host="0.5.23", overlap=overlap)
        for base in ("eagle", "eagle3")
        for overlap in (False, True)
    ),
    *(
        forced("standalone", host=host, overlap=host != "0.5.21")
        for host in ("0.5.20", "0.5.21", "0.5.22", "0.5.23")
    ),
    *(
        forced("ngram", host=host, overlap=host != "0.5.22")
        for host in ("0.5.20", "0.5.21", "0.5.22", "0.5.23")
    ),
    forced_on_two_ranks("ngram", host="0.5.23"),
]
MIN_ROUNDS = 20  # at every tier
BATCH = tuple(f"batch {number}" for number in range(len(PROMPTS)))

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.parametrize("launch", CASES, ids=str, scope="module"),
]


def test_every_greedy_answer_equals_no_speculation(fleet: Fleet, launch: Launch) -> None:
    got, reference = fleet.compare(launch, answers)
    check_not_degenerate(reference)
    check_identical(got, reference)


def test_the_tier_changes_every_round_and_all_is_counted(fleet: Fleet, launch: Launch) -> None:
    fleet.ask_once(launch, answers)
    check_idle_and_whole(fleet.use(launch))  # no round is in flight
    state = fleet.use(launch).internal_state()
    spec = state["adaptive_spec"]
    check_description(spec, launch)
    rounds = spec["rounds"]
    assert set(rounds) == {str(steps) for steps in NUM_STEPS}
    assert min(rounds.values()) >= MIN_ROUNDS, rounds
    can_lag = spec["base"] != "NGRAM"
    check_walk(state["e2e_walk"], rounds, sum(spec["switches"].values()), can_lag)
    assert spec["prefill_activations"] > 0
    assert state["speculative_num_steps"] == spec["current_steps"]
    assert spec["current_steps"] in NUM_STEPS
    assert spec["fallbacks"] == {"policy_error": 0, "feedback_mismatch": 0}
    for steps in NUM_STEPS:
        check_positions(spec, steps)


def check_walk(
    walk: dict[str, int], rounds: dict[str, int], num_switches: int, can_lag: bool
) -> None:
    """The walk never chooses the same twice; a choice to draft waits for the draft to catch up."""
    assert walk["rounds"] == sum(rounds.values())
    # Whatever was chosen ran, but for the one zero-step round between zero steps and drafting.
    assert (walk["wrong"], walk["needless_catch_ups"]) == (0, 0), walk
    assert rounds["0"] == walk["plain_chosen"] + walk["catch_ups"]
    assert walk["catch_ups"] <= walk["plain_chosen"]
    # Only a draft that can lag is caught up, and only one that cannot is asked at once.
    assert (walk["catch_ups"] > 0, walk["drafted_behind"] > 0) == (can_lag, not can_lag), walk
    # The first round switches from nothing; only zero steps are followed by themselves.
    assert num_switches == walk["changes"]
    assert sum(rounds.values()) - 1 - rounds["0"] < num_switches < sum(rounds.values())


def check_description(spec: dict[str, Any], launch: Launch) -> None:
    assert spec["requested_algorithm"] == "ADAPTIVE_EAGLE"
    assert (spec["mode"], spec["reason"]) == ("adaptive", None)
    assert spec["base"] == launch.name.partition("-")[0].upper()
    assert [tier["num_steps"] for tier in spec["tiers"]] == list(NUM_STEPS)
    assert spec["startup_steps"] == max(NUM_STEPS)
    assert spec["skipped_tiers"] == {}


def check_positions(spec: dict[str, Any], steps: int) -> None:
    """One tier's counters: a draft is accepted only after the one before it."""
    accepted = spec["accepted_per_position"][str(steps)]
    proposed = spec["num_proposed_drafts"][str(steps)]
    assert len(accepted) == steps
    assert accepted == sorted(accepted, reverse=True)
    assert sum(accepted) == spec["num_correct_drafts"][str(steps)]
    if steps == 0:
        assert proposed == 0
        return
    num_request_rounds, rest = divmod(proposed, steps)
    assert rest == 0
    assert 0 < accepted[0] <= num_request_rounds
    assert num_request_rounds >= spec["rounds"][str(steps)]


def test_counters_agree_with_what_the_requests_report(server: Server) -> None:
    before = server.internal_state()["adaptive_spec"]
    body = {"text": "count my drafts", "sampling_params": {"temperature": 0}}
    body["sampling_params"] |= {"max_new_tokens": NUM_TOKENS, "ignore_eos": True}
    meta = server.post("/generate", body)["meta_info"]
    after = server.internal_state()["adaptive_spec"]
    rounds = sum(after["rounds"].values()) - sum(before["rounds"].values())
    correct = sum(after["num_correct_drafts"].values()) - sum(before["num_correct_drafts"].values())
    # One overlapped round may run after the last token, and drafts past it are cut off.
    assert meta["spec_verify_ct"] <= rounds <= meta["spec_verify_ct"] + 1
    assert meta["spec_num_correct_drafts"] <= correct
    assert correct <= meta["spec_num_correct_drafts"] + 2 * max(NUM_STEPS)


def test_json_by_a_schema_is_valid_and_the_same(fleet: Fleet, launch: Launch) -> None:
    replies = {
        name: text for name, text in fleet.ask_once(launch, answers).items() if "json" in name
    }
    assert len(replies) == 3
    for name, text in replies.items():
        parsed = json.loads(text)
        assert set(parsed) == {"name", "size", "tags"}
        assert parsed["size"] in ("small", "medium", "large")
        assert 2 <= len(parsed["tags"]) <= 4
        assert text == fleet.ask_once(launch.reference(), answers)[name]


def test_aborted_requests_leave_nothing_behind(fleet: Fleet, launch: Launch) -> None:
    server = fleet.use(launch)
    assert abort_running(server, rid="abort") == "abort"
    disconnect_while_running(server, rid="leave", text="leave me", num_tokens=900)
    check_idle_and_whole(server)
    reference = fleet.ask_once(launch.reference(), answers)
    check_identical(batch_answers(server), {name: reference[name] for name in BATCH})
    spec = server.internal_state()["adaptive_spec"]
    assert spec["fallbacks"] == {"policy_error": 0, "feedback_mismatch": 0}
