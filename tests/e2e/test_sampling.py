"""Sampling parameters at temperature 0 give what no speculation gives, at another tier every round.

Overlap schedule on, EAGLE and EAGLE-3, the latter with acceptance thresholds below 1: on a CPU
verification is greedy, so they must not matter. Where SGLang's static EAGLE differs from no
speculation (penalties, `min_new_tokens` before a stop: see sampling.py) the text depends on the
depth, and a request that stays at one is compared with that depth's static server.
"""

from typing import Any

import pytest

from sglang_adaptive_spec.tiers import chain_tier
from tests.e2e.fleet import Fleet
from tests.e2e.launches import pinned, static
from tests.e2e.sampling import (
    ASKED,
    BANNED,
    EXACT,
    INPUT_LOGPROBS,
    MIN_NEW_TOKENS,
    OUTPUT_LOGPROBS,
    RELAXED,
    RELAXED_PROMPTS,
    STOP_IDS,
    parameter_answers,
    relaxed_at_three_steps,
)
from tests.e2e.server import Launch
from tests.e2e.traffic import check_identical, check_logprobs

THRESHOLDS = {"single": 0.3, "acc": 0.5}
RELAXED_VERIFY = [
    argument
    for name, value in THRESHOLDS.items()
    for argument in (f"--speculative-accept-threshold-{name}", str(value))
]
OF_A_TABLE = pinned("ngram")
SWITCHING = [
    pinned("eagle"),
    pinned("eagle3", *RELAXED_VERIFY),
    pinned("standalone"),
    OF_A_TABLE,
]
STATIC = static("eagle", chain_tier(3))
PENALTIES = [case for case in RELAXED if case.endswith("penalty")]
MIN_ROUNDS = 50  # at every tier
PARTS = ("", " text", " ending")  # of an answer

pytestmark = pytest.mark.e2e
EVERY = pytest.mark.parametrize("launch", SWITCHING, ids=str)


def both(fleet: Fleet, launch: Launch, part: str) -> tuple[Any, Any]:
    """Returns a part of what the reference and the switching server answer."""
    got, reference = fleet.compare(launch, parameter_answers)
    return reference[part], got[part]


@EVERY
@pytest.mark.parametrize("case", EXACT)
def test_a_parameter_gives_the_text_of_no_speculation(
    fleet: Fleet, launch: Launch, case: str
) -> None:
    reference, got = both(fleet, launch, "exact")
    names = [f"{case} {number}{what}" for number in range(len(ASKED)) for what in PARTS]
    check_identical({name: got[name] for name in names}, {name: reference[name] for name in names})
    plain = [reference[f"plain {number}"] for number in range(len(ASKED))]
    with_parameter = [reference[f"{case} {number}"] for number in range(len(ASKED))]
    assert (with_parameter != plain) is EXACT[case].has_effect


@EVERY
def test_stops_and_bans_hold(fleet: Fleet, launch: Launch) -> None:
    _, got = both(fleet, launch, "exact")
    for number in range(len(ASKED)):
        assert not set(BANNED) & set(got[f"banned tokens {number}"])
        assert "><x4" not in got[f"stop string {number} text"]
        assert not set(STOP_IDS) & set(got[f"stop token ids {number}"][:-1])


@EVERY
@pytest.mark.parametrize("part", ["copies", "beside sampled", "beside penalised"])
def test_greedy_requests_beside_others_are_those_of_no_speculation(
    fleet: Fleet, launch: Launch, part: str
) -> None:
    reference, got = both(fleet, launch, part)
    check_identical(got, reference)


@EVERY
def test_both_copies_of_a_prompt_are_the_same(fleet: Fleet, launch: Launch) -> None:
    _, got = both(fleet, launch, "copies")
    assert len(got) == 2 * len(ASKED)
    for number in range(len(ASKED)):
        assert got[f"copy {2 * number}"] == got[f"copy {2 * number + 1}"]


@EVERY
@pytest.mark.parametrize("names", [INPUT_LOGPROBS, OUTPUT_LOGPROBS], ids=["input", "output"])
def test_logprobs_are_those_of_no_speculation(
    fleet: Fleet, launch: Launch, names: tuple[str, ...]
) -> None:
    reference, got = both(fleet, launch, "logprobs")
    for ours, theirs in zip(got, reference, strict=True):
        check_logprobs(ours, theirs, names)
    assert all(len(reply[names[0]]) > 1 for reply in got)


@pytest.mark.parametrize(("launch", "other"), [(SWITCHING[0], STATIC)], ids=["eagle"])
def test_penalties_at_three_steps_are_those_of_static_eagle(
    fleet: Fleet, launch: Launch, other: Launch
) -> None:
    reference, got = both(fleet, launch, "relaxed")
    expected = fleet.ask_once(other, relaxed_at_three_steps)
    check_identical(got["at-3"], expected)
    different = {name for name, ids in reference["walk"].items() if ids != expected[name]}
    assert different, "static EAGLE equals no speculation: compare with that instead"
    assert not any(name.startswith("plain") for name in different)


@EVERY
def test_penalties_at_zero_steps_are_those_of_no_speculation(fleet: Fleet, launch: Launch) -> None:
    reference, got = both(fleet, launch, "relaxed")
    check_identical(got["at-0"], reference["at-0"])


@EVERY
@pytest.mark.parametrize("case", PENALTIES)
def test_penalties_hold_while_the_depth_changes(fleet: Fleet, launch: Launch, case: str) -> None:
    """Which token they meet first depends on the rounds; that they change the text does not."""
    reference, got = both(fleet, launch, "relaxed")
    for answers in (got["walk"], reference["walk"]):
        penalised = [answers[f"{case} {number}"] for number in range(len(RELAXED_PROMPTS))]
        plain = [answers[f"plain {number}"] for number in range(len(RELAXED_PROMPTS))]
        assert [len(ids) for ids in penalised] == [len(ids) for ids in plain]
        assert penalised != plain
        if case == "repetition_penalty":  # the only one that is strong for this target
            gains = [
                len(set(one)) - len(set(other)) for one, other in zip(penalised, plain, strict=True)
            ]
            # A round counts what it accepts once, and what SGLang's NGRAM drafts is repetition.
            assert sum(gains) > 0 if launch == OF_A_TABLE else min(gains) > 0


@EVERY
def test_no_stop_comes_before_min_new_tokens(fleet: Fleet, launch: Launch) -> None:
    """Rounds are counted, not tokens: later than without speculation, never earlier."""
    reference, got = both(fleet, launch, "relaxed")
    for number in range(len(RELAXED_PROMPTS)):
        ids = got["walk"][f"min_new_tokens {number}"]
        expected = reference["walk"][f"min_new_tokens {number}"]
        assert len(ids) >= MIN_NEW_TOKENS
        assert ids[:MIN_NEW_TOKENS] == expected[:MIN_NEW_TOKENS]
        assert not set(STOP_IDS) & set(ids[:-1])


@EVERY
def test_all_of_it_was_served_at_every_tier(fleet: Fleet, launch: Launch) -> None:
    _, state = both(fleet, launch, "state")
    spec = state["adaptive_spec"]
    assert spec["mode"] == "adaptive"
    assert min(spec["rounds"].values()) >= MIN_ROUNDS, spec["rounds"]
    assert spec["fallbacks"] == {"policy_error": 0, "feedback_mismatch": 0}
    walk = state["e2e_walk"]
    assert walk["wrong"] == 0
    assert (walk["drafted_behind"] > 0) == (spec["base"] == "NGRAM")
    has_thresholds = launch == SWITCHING[1]
    for name, value in THRESHOLDS.items():
        got = state[f"speculative_accept_threshold_{name}"]
        assert got == (value if has_thresholds else 1.0)
