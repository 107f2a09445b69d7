"""Greedy answers equal no speculation while every round verifies another length of each row.

EAGLE-3 on all four releases, with and without overlap; EAGLE and a whole model besides. The tier
changes in every round, too, and the host's own memory checks are on. This host has no graphs.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.e2e.fleet import Fleet
from tests.e2e.launches import CONFIDENT, PACKED, adaptive, by_confidence, packed
from tests.e2e.server import OURS, Launch
from tests.e2e.traffic import (
    answers,
    check_identical,
    check_idle_and_whole,
    check_not_degenerate,
    check_served_whole,
)


def by_its_own_policy(host: str, overlap: bool, config: Path = PACKED) -> Launch:
    """ADAPTIVE_EAGLE whose policy finds tier and lengths, and packs whatever it can."""
    launch = adaptive("eagle3", host=host, overlap=overlap, config=config)
    plugins = (OURS, "always_packed", "any_batch_asked")
    return replace(launch, name=f"eagle3-always-{config.stem}", plugins=plugins, strict=True)


def on_two_ranks(launch: Launch) -> Launch:
    """The same, served by two tensor-parallel ranks, the second's draft being less sure."""
    args, plugins = (*launch.args, "--tp-size", "2"), (*launch.plugins[:-1], "askew_drafts")
    return replace(launch, name=f"{launch.name}-tp2", args=args, plugins=plugins)


CASES = [
    packed("eagle3", host="0.5.20", overlap=True),
    packed("eagle3", host="0.5.21", overlap=True),
    packed("eagle3", host="0.5.22", overlap=True),
    packed("eagle3", host="0.5.23", overlap=False),
    packed("eagle", host="0.5.23", overlap=True),
    packed("standalone", host="0.5.21", overlap=False),
    packed("standalone", host="0.5.23", overlap=True),
]

CONFIDENT_CASES = [
    by_confidence("eagle3", host="0.5.20"),
    by_confidence("eagle3", host="0.5.21", overlap=False),
    by_confidence("eagle3", host="0.5.23"),
    by_confidence("standalone", host="0.5.22"),
    by_confidence("eagle3", host="0.5.23", told="askew"),
]
OF_IDS = [
    by_confidence("eagle", host="0.5.21", told="ids"),
    by_confidence("standalone", host="0.5.23", overlap=False, told="ids"),
]
OWN_CASES = [
    by_its_own_policy("0.5.21", overlap=True),
    by_its_own_policy("0.5.23", overlap=False, config=CONFIDENT),
    on_two_ranks(by_its_own_policy("0.5.21", overlap=True, config=CONFIDENT)),
]

pytestmark = pytest.mark.e2e
of_walks = pytest.mark.parametrize("launch", CASES + CONFIDENT_CASES, ids=str, scope="module")


@of_walks
def test_every_greedy_answer_equals_no_speculation(fleet: Fleet, launch: Launch) -> None:
    got, reference = fleet.compare(launch, answers)
    check_not_degenerate(reference)
    check_identical(got, reference)


@of_walks
def test_rows_accept_what_was_verified_and_no_more(fleet: Fleet, launch: Launch) -> None:
    fleet.ask_once(launch, answers)
    check_idle_and_whole(fleet.use(launch))  # no round is in flight
    state = fleet.use(launch).internal_state()
    rows = state["e2e_packed"]
    assert rows["rows"] > rows["shortened"] > rows["cut"] > rows["held"] > 0, rows
    assert rows["beyond"] == 0, rows
    assert state["e2e_walk"]["wrong"] == 0, state["e2e_walk"]
    assert state["adaptive_spec"]["fallbacks"] == {"policy_error": 0, "feedback_mismatch": 0}


@pytest.mark.parametrize("launch", CONFIDENT_CASES, ids=str, scope="module")
def test_the_draft_s_confidence_says_which_drafts_are_verified(
    fleet: Fleet, launch: Launch
) -> None:
    fleet.ask_once(launch, answers)
    check_idle_and_whole(fleet.use(launch))
    state = fleet.use(launch).internal_state()
    assert state["adaptive_spec"]["why_no_confidence"] is None
    found = state["e2e_confidence"]
    assert found["rounds"] > 20
    assert found["as_planned"] == found["likeliest"] == found["rounds"], found
    assert found["told"] > 100
    assert found["odd"] == 0


@pytest.mark.parametrize("launch", OF_IDS, ids=str, scope="module")
def test_what_the_draft_tells_is_of_the_drafts_that_are_verified(
    fleet: Fleet, launch: Launch
) -> None:
    """Were it of another step or row, or of the round before, ids would differ."""
    got, reference = fleet.compare(launch, answers)
    check_identical(got, reference)
    found = fleet.use(launch).internal_state()["e2e_drafts"]
    assert found["told"] > found["first"] > 100, found
    assert found["wrong"] == 0, found


@pytest.mark.parametrize("launch", OWN_CASES, ids=str, scope="module")
def test_lengths_that_the_policy_finds_never_change_text(fleet: Fleet, launch: Launch) -> None:
    spec = check_served_whole(fleet, launch)
    assert spec["why_not_packed"] is None
    widths = spec["packing"]["widths"]
    assert widths["ms"]
    assert any(each["of_steps"] for each in widths["ratio"].values()), "no packed round was timed"
    asks = spec["why_no_confidence"] is None
    assert (spec["confidence"] is not None) == asks == (CONFIDENT.stem in launch.name)
    assert (spec["packing"]["num_by_confidence"] > 0) == asks
    proposed = sum(spec["num_proposed_drafts"].values())
    assert 0 < sum(spec["num_correct_drafts"].values()) < proposed
