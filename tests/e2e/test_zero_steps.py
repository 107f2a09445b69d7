"""Zero-step rounds decode as no speculation does, and the draft resumes as if they had not been.

The policy is a script: three steps, forty rounds at zero steps, three steps to the end; see
plugins/e2e_plugins/visit_zero.py. A request of the other arm never leaves three steps.
"""

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.e2e.fleet import Fleet
from tests.e2e.launches import ALGORITHM, CONFIGS, PAIR, PAIR_DRAFT, TIERS, adaptive
from tests.e2e.server import OURS, Launch, Server
from tests.e2e.traffic import PROMPTS, SCHEMA, check_identical, check_logprobs, greedy
from tests.e2e.visits import Arm, check_as_if_never_left, check_visit, compare, run_arm

NUM_TOKENS = 200
MIN_ROUNDS = 200  # after resuming, at the same positions in both arms
PLUGINS = (OURS, "visit_zero")


def visiting(base: str, host: str, *mutants: str, overlap: bool = True) -> Launch:
    """The tiny models under the script."""
    name = "-".join((base, *(mutants or ("visit",))))
    launch = adaptive(base, host=host, overlap=overlap)
    return replace(launch, name=name, plugins=(*PLUGINS, *mutants), strict=not mutants)


PAIR_ARGS = (
    *ALGORITHM,
    *("--speculative-draft-model-path", str(PAIR_DRAFT)),
    *("--speculative-adaptive-config", str(TIERS)),
)
REAL = Launch("smollm2-visit", PAIR, PAIR_ARGS, overlap=True, plugins=PLUGINS)
TINY_CASES = [
    visiting("eagle3", "0.5.21"),
    visiting("eagle", "0.5.20", overlap=False),
    visiting("eagle", "0.5.22"),
    visiting("eagle3", "0.5.23"),
    visiting("standalone", "0.5.21"),
]
IN_PARTS = [
    replace(visiting(base, host), name=f"{base}-parts", plugins=(*PLUGINS, "small_parts"))
    for base, host in (("eagle", "0.5.20"), ("eagle3", "0.5.23"))
]
TOO_LARGE_TO_DRAFT = replace(
    adaptive("eagle3", overlap=True, config=CONFIGS / "zero_above_four.json"),
    name="eagle3-zero-above-four",
    strict=True,
)
RUN_ROUNDS = 12  # of a visit in runs: plugins/e2e_plugins/visit_runs.py
IN_RUNS = [
    replace(visiting(base, host), name=f"{base}-visit-runs", plugins=(OURS, "visit_runs"))
    for base, host in (("eagle3", "0.5.21"), ("eagle", "0.5.23"))
]
MUTANTS = [
    visiting("eagle3", "0.5.21", "stale_backlog_row"),
    visiting("eagle3", "0.5.21", "shifted_catch_up"),
    visiting("standalone", "0.5.21", "shifted_catch_up"),
]

pytestmark = pytest.mark.e2e


def ask(server: Server, sampling: list[dict[str, Any]], **extra: Any) -> list[dict[str, Any]]:
    """Asks all prompts in one batch, which visits zero steps where the server has the script."""
    together = len(PROMPTS)
    rids = [f"visit-{number}-of-{together}-{sorted(extra)}" for number in range(together)]
    body = {"text": list(PROMPTS), "rid": rids, "sampling_params": sampling, **extra}
    replies: list[dict[str, Any]] = server.post("/generate", body)
    return replies


def visit_answers(server: Server) -> dict[str, Any]:
    """Asks once what every test compares: logprobs, and a schema without and with them."""
    schema = greedy(160, json_schema=json.dumps(SCHEMA), ignore_eos=False)
    # Compiled before the others come: a request whose grammar is compiled joins when it is.
    server.post("/generate", {"text": "compile", "sampling_params": schema})
    mixed = [schema if number % 2 == 0 else greedy(64) for number in range(len(PROMPTS))]
    uniform = [greedy(64)] * len(PROMPTS)
    constrained = ask(server, mixed) + ask(server, mixed, return_logprob=True)
    with_logprobs = ask(server, uniform, return_logprob=True, top_logprobs_num=2)
    return {
        "constrained": {f"answer {n}": reply["output_ids"] for n, reply in enumerate(constrained)},
        "logprobs": [reply["meta_info"] for reply in with_logprobs],
    }


def both_arms(server: Server, reference: list[list[int]]) -> tuple[Arm, Arm]:
    """Runs both arms; whatever the draft proposes, the text is that of no speculation."""
    visit = run_arm(server, "visit", PROMPTS, NUM_TOKENS)
    stay = run_arm(server, "stay", PROMPTS, NUM_TOKENS)
    assert visit.output_ids == stay.output_ids == reference
    return visit, stay


def texts_only(server: Server) -> dict[str, Any]:
    """What no speculation answers to the prompts of both arms."""
    replies = ask(server, [greedy(NUM_TOKENS)] * len(PROMPTS))
    return {"ids": [reply["output_ids"] for reply in replies]}


def reference_answers(server: Server) -> dict[str, Any]:
    """All that is compared with no speculation, at once: its server is started for this alone."""
    return {**texts_only(server), **visit_answers(server)}


@pytest.mark.parametrize("launch", [*TINY_CASES, *IN_PARTS, REAL], ids=str)
def test_after_a_visit_rounds_accept_what_they_would_have_accepted(
    fleet: Fleet, launch: Launch
) -> None:
    asked = texts_only if launch == REAL else reference_answers
    reference = fleet.ask_once(launch.reference(), asked)["ids"]
    server = fleet.use(launch)
    visit, stay = both_arms(server, reference)
    for rounds in visit.rounds:
        check_visit(rounds)
    comparison = compare(visit, stay)
    print(len(comparison.accepted), comparison.visit_mean, comparison.stay_mean)
    assert len(comparison.accepted) >= MIN_ROUNDS
    assert {expected > 0 for _, expected in comparison.accepted} == {True, False}
    assert comparison.first_drafts
    check_as_if_never_left(comparison)


@pytest.mark.parametrize("launch", IN_RUNS, ids=str)
def test_after_a_visit_in_runs_it_is_the_same(fleet: Fleet, launch: Launch) -> None:
    reference = fleet.ask_once(launch.reference(), reference_answers)["ids"]
    server = fleet.use(launch)
    visit, stay = both_arms(server, reference)
    for rounds in visit.rounds:
        check_visit(rounds, RUN_ROUNDS)
        assert {one.decodes for one in rounds if one.steps == 0} == {1, 4}
    comparison = compare(visit, stay)
    print(len(comparison.accepted), comparison.visit_mean, comparison.stay_mean)
    assert len(comparison.accepted) >= MIN_ROUNDS
    check_as_if_never_left(comparison)


@pytest.mark.parametrize("launch", IN_PARTS, ids=str)
def test_more_requests_than_graphs_hold_are_caught_up_in_parts(
    fleet: Fleet, launch: Launch
) -> None:
    server = fleet.use(launch)
    run_arm(server, "visit", PROMPTS, NUM_TOKENS)
    num_parts = server.internal_state()["e2e_parts"]
    assert len(PROMPTS) == 6
    assert num_parts["4"] == num_parts["2"] >= 3  # two that were due, and one to leave


def test_a_batch_too_large_to_draft_drafts_once_it_is_smaller(fleet: Fleet) -> None:
    """It is not caught up while it is too large: what the draft lacks stays, the text is right."""
    lengths = [40, 40, 40, 40, 120, 120]
    body = {"text": list(PROMPTS), "sampling_params": [greedy(length) for length in lengths]}

    def texts(server: Server) -> dict[str, Any]:
        return {"ids": [reply["output_ids"] for reply in server.post("/generate", body)]}

    expected = fleet.ask_once(TOO_LARGE_TO_DRAFT.reference(), texts)
    server = fleet.use(TOO_LARGE_TO_DRAFT)
    assert texts(server) == expected
    state = server.internal_state()["adaptive_spec"]
    decodes = state["zero_step_decodes"]  # a round runs several where that was faster
    assert sum(int(length) * rounds for length, rounds in decodes.items()) >= 30
    assert state["num_correct_drafts"]["3"] > 0


@pytest.mark.parametrize("launch", MUTANTS, ids=str)
def test_a_mistake_in_what_the_draft_catches_up_on_is_found(fleet: Fleet, launch: Launch) -> None:
    reference = fleet.ask_once(launch.reference(), reference_answers)["ids"]
    server = fleet.use(launch)
    visit, stay = both_arms(server, reference)
    fleet.end(launch)
    with pytest.raises(AssertionError, match="state of the draft"):
        check_as_if_never_left(compare(visit, stay))


@pytest.mark.parametrize("launch", TINY_CASES, ids=str)
def test_logprobs_are_those_of_no_speculation(fleet: Fleet, launch: Launch) -> None:
    expected = fleet.ask_once(launch.reference(), reference_answers)["logprobs"]
    got = fleet.ask_once(launch, visit_answers)["logprobs"]
    for one, other in zip(got, expected, strict=True):
        check_logprobs(one, other, ("output_token_logprobs", "output_top_logprobs"))


@pytest.mark.parametrize("launch", TINY_CASES, ids=str)
def test_a_grammar_holds_at_zero_steps(fleet: Fleet, launch: Launch) -> None:
    expected = fleet.ask_once(launch.reference(), reference_answers)["constrained"]
    check_identical(fleet.ask_once(launch, visit_answers)["constrained"], expected)
    rounds = fleet.use(launch).internal_state()["e2e_rounds"]
    extras: tuple[list[str], ...] = ([], ["return_logprob"])
    rids = [f"visit-{n}-of-{len(PROMPTS)}-{extra}" for n in (0, 2, 4) for extra in extras]
    assert all([0, 0, None, 1] in rounds[rid] for rid in rids), "they had no round at zero steps"


@pytest.mark.parametrize("launch", TINY_CASES[:1], ids=str)
def test_sampled_requests_are_served_at_zero_steps(fleet: Fleet, launch: Launch) -> None:
    """Sampling kernels return another integer type than greedy ones do."""
    server = fleet.use(launch)
    hot = {"temperature": 0.9, "top_p": 0.9, "max_new_tokens": 48, "ignore_eos": True}
    sampling = [hot if number % 2 == 0 else greedy(48) for number in range(len(PROMPTS))]
    replies = ask(server, sampling, return_logprob=False)
    assert [len(reply["output_ids"]) for reply in replies] == [48] * len(PROMPTS)
    rounds = server.internal_state()["e2e_rounds"]
    assert [0, 0, None, 1] in rounds[f"visit-0-of-{len(PROMPTS)}-['return_logprob']"], (
        "it had no round at zero steps"
    )
    assert server.internal_state()["adaptive_spec"]["fallbacks"]["policy_error"] == 0
