"""Chains and trees of several widths take turns in every round.

Greedy answers equal no speculation. And the draft does not suffer: what a round accepts follows
from the text before it, so a tree among others must accept, from the same output position on, what
it accepts where it is alone; alone it must be the host's own static tree.
"""

import random
from dataclasses import replace
from typing import Any

import pytest

from sglang_adaptive_spec.tiers import Tier
from tests.e2e.fleet import Fleet
from tests.e2e.launches import (
    CONTEXT_LENGTH,
    ONE_TREE,
    TREES,
    forced,
    forced_mtp,
    forced_parallel,
    static,
)
from tests.e2e.server import Launch, Server
from tests.e2e.traffic import (
    NUM_TOKENS,
    PROMPTS,
    Answers,
    answers,
    check_identical,
    check_idle_and_whole,
    check_not_degenerate,
    greedy,
)

CHAINS = {"0", "1", "3", "5"}
WIDE = {"1-4-4": 3, "2-4-7": 6, "3-2-5": 4, "3-4-8": 7}  # label: drafts a round
LONG_PROMPT = CONTEXT_LENGTH - 64  # tokens
STARTUP = "5-4-8"  # holds them all and is no candidate
MIN_ROUNDS = 20  # at every tier

CASES = [
    forced("eagle3", host="0.5.21", overlap=True, config=TREES),
    forced("eagle", host="0.5.23", overlap=True, config=TREES),
    forced("eagle3", host="0.5.23", overlap=False, config=TREES),
    forced_mtp(host="0.5.21", overlap=True),
    forced_mtp(host="0.5.23", overlap=False),
    forced_parallel("eagle3", host="0.5.21", overlap=True),
    forced_parallel("standalone", host="0.5.23", overlap=True),
]

TREE = "3-2-5"  # narrower than the relay, which is as wide as the widest tree
MIXED = CASES[0]
ALONE = forced("eagle3", host="0.5.21", overlap=True, config=ONE_TREE)
STATIC = replace(static("eagle3", Tier(3, 2, 5)), plugins=())  # ours is not even loaded
MIN_SHARED = 12  # rounds of the tree that begin at the same positions; 19 to 38, by who joins when

pytestmark = pytest.mark.e2e
ALL = pytest.mark.parametrize("launch", CASES, ids=str, scope="module")


@ALL
def test_every_greedy_answer_equals_no_speculation(fleet: Fleet, launch: Launch) -> None:
    got, reference = fleet.compare(launch, answers)
    check_not_degenerate(reference)
    check_identical(got, reference)


@pytest.mark.parametrize("launch", [MIXED], ids=str)
def test_requests_may_run_into_the_end_of_the_context(fleet: Fleet, launch: Launch) -> None:
    got, reference = fleet.compare(launch, to_the_end)
    assert {len(ids) for ids in reference.values()} == {CONTEXT_LENGTH - 2 - LONG_PROMPT}
    check_identical(got, reference)


def to_the_end(server: Server) -> Answers:
    """Asks for as much as the context holds, in one batch: a round reserves past its end."""
    rng = random.Random(1)
    prompts = [rng.choices(range(5, 250), k=LONG_PROMPT) for _ in range(4)]
    sampling = {"temperature": 0, "max_new_tokens": None, "ignore_eos": True}
    replies = server.post("/generate", {"input_ids": prompts, "sampling_params": sampling})
    return {f"prompt {number}": reply["output_ids"] for number, reply in enumerate(replies)}


@ALL
def test_every_tree_ran_and_is_counted(fleet: Fleet, launch: Launch) -> None:
    fleet.ask_once(launch, answers)
    server = fleet.use(launch)
    spec = server.internal_state()["adaptive_spec"]
    assert spec["seeding"]["source"] in ("measured", "cache")
    rounds = spec["rounds"]
    assert set(rounds) == CHAINS | WIDE.keys() | {STARTUP}
    assert min(count for tier, count in rounds.items() if tier != STARTUP) >= MIN_ROUNDS, rounds
    assert spec["fallbacks"] == {"policy_error": 0, "feedback_mismatch": 0}
    for tier, num_drafts in WIDE.items():
        accepted = spec["accepted_per_position"][tier]
        assert len(accepted) == int(tier[0])
        assert accepted == sorted(accepted, reverse=True)
        assert accepted[0] > 0
        assert spec["num_proposed_drafts"][tier] == num_drafts * spec["num_request_rounds"][tier]
    check_idle_and_whole(server)


def named_answers(server: Server) -> list[dict[str, Any]]:
    """Asks the prompts in one batch, under names by which their rounds are found."""
    rids = [f"tree-{number}" for number in range(len(PROMPTS))]
    body = {"text": list(PROMPTS), "rid": rids, "sampling_params": greedy()}
    replies: list[dict[str, Any]] = server.post("/generate", body)
    return replies


def rounds_by_position(server: Server, rid: str) -> dict[int, tuple[str, int]]:
    """Returns tier and accepted drafts of a request's rounds, by the position they begin at."""
    position, placed = 1, {}  # prefill gave the first token
    for tier, accepted in server.internal_state()["e2e_rounds"][rid]:
        placed[position] = (tier, accepted)
        position += accepted + 1
    return placed


def test_a_tree_among_others_accepts_what_it_accepts_alone(fleet: Fleet) -> None:
    placed = []
    for launch in (MIXED, ALONE):
        server = fleet.use(launch)
        replies = named_answers(server)
        assert [len(reply["output_ids"]) for reply in replies] == [NUM_TOKENS] * len(PROMPTS)
        placed.append([rounds_by_position(server, f"tree-{n}") for n in range(len(PROMPTS))])
    shared = [
        (here[position], there[position])
        for here, there in zip(*placed, strict=True)
        for position in here.keys() & there.keys()
        if here[position][0] == TREE and position < NUM_TOKENS - 4  # the end cuts drafts off
    ]
    assert len(shared) >= MIN_SHARED
    assert {there[0] for _, there in shared} == {TREE}
    assert [here for here, there in shared if here != there] == []
    assert max(accepted for (_, accepted), _ in shared) >= 2  # else there is little to compare


def test_a_tree_alone_is_the_hosts_static_tree(fleet: Fleet) -> None:
    ours = named_answers(fleet.use(ALONE))
    hosts = named_answers(fleet.use(STATIC))
    for own, other in zip(ours, hosts, strict=True):
        assert own["output_ids"] == other["output_ids"]
        names = ("spec_verify_ct", "spec_num_correct_drafts")
        assert [own["meta_info"][n] for n in names] == [other["meta_info"][n] for n in names]
