"""Injected acceptance by name: who has which probability, and what must come of it."""

import json
import math
import random

import pytest

from benchmarks.inject import acceptance
from benchmarks.inject.acceptance import (
    TREES,
    concentration_of,
    lifted,
    probabilities,
    probability_of,
    request_ids,
    shape_of,
)
from benchmarks.lab.arms import ARMS, WITH_TREES
from benchmarks.stats.tokens import expected_tokens, tokens_per_round, tokens_variance
from sglang_adaptive_spec.config.schema import load_config, parse_config
from tests.policy.test_tree_tour import LIFTS


def test_a_mixed_batch_is_half_good_and_half_bad() -> None:
    rows = probabilities("mixed", 16)
    assert sorted(rows) == [0.3] * 8 + [0.9] * 8


@pytest.mark.parametrize("name", ["1.0", "-0.1", "lots"])
def test_an_acceptance_that_is_no_probability_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"probability|could not convert"):
        probabilities(name, 4)


def test_rows_have_several_probabilities_in_turn() -> None:
    assert probabilities("0.95/0.3/0.5", 6) == [0.95, 0.3, 0.5] * 2
    with pytest.raises(ValueError, match="use a probability"):
        probabilities("0.95/1.5", 4)


def test_an_odd_batch_has_no_halves() -> None:
    with pytest.raises(ValueError, match="no 2 equal parts"):
        probabilities("mixed", 1)


@pytest.mark.parametrize("name", ["0.3", "0.85", "mixed", "0.95/0.3~3", "0.7~2.5"])
def test_a_request_id_carries_its_probability_and_is_unique(name: str) -> None:
    ids = request_ids(name, 8, 3)
    assert [probability_of(each) for each in ids] == probabilities(name, 8)
    assert len({*ids, *request_ids(name, 8, 4)}) == 16
    assert {concentration_of(each) for each in ids} == {float(name.partition("~")[2] or 0)}


@pytest.mark.parametrize("name", ["0.7~0", "0.7~-1", "0.7~many", "1.2~3"])
def test_a_name_that_scatters_nothing_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"0\.95/0\.3|could not convert"):
        request_ids(name, 8, 1)


def test_a_request_of_somebody_else_accepts_nothing() -> None:
    assert probability_of("0f3a5c") == 0.0


def test_a_chain_yields_the_sum_of_its_survival() -> None:
    assert tokens_per_round(0.5, 0) == 1.0
    assert tokens_per_round(0.5, 3) == 1 + 0.5 + 0.25 + 0.125
    rounds = {"none": 5, "0": 2, "1": 3}
    assert expected_tokens([0.5, 0.0], rounds) == 5 * 2 + 2 * 2 + 3 * 2.5


def test_expectation_and_variance_are_those_of_simulated_rounds() -> None:
    rng = random.Random(7)
    rows, num_steps, num_rounds = [0.3, 0.9], 5, 20000
    total = square = 0.0
    for _ in range(num_rounds):
        tokens = 0
        for chance in rows:
            accepted = next((d for d in range(num_steps) if rng.random() >= chance), num_steps)
            tokens += 1 + accepted
        total, square = total + tokens, square + tokens**2
    mean = total / num_rounds
    variance = square / num_rounds - mean**2
    expected = expected_tokens(rows, {"5": 1})
    assert abs(mean - expected) < 4 * math.sqrt(variance / num_rounds)
    assert tokens_variance(rows, {"5": 1}) == pytest.approx(variance, rel=0.05)


# -- trees --


@pytest.fixture
def one_logit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tree lifts by a logit."""
    monkeypatch.setattr(acceptance, "tree_lifts", lambda: dict.fromkeys(TREES.values(), 1.0))


def test_a_lift_is_in_logits() -> None:
    assert lifted(0.5, 0.0) == 0.5
    assert lifted(0.5, 1.0) == pytest.approx(math.e / (1 + math.e))
    assert lifted(0.0, 1.0) == 0.0


@pytest.mark.usefixtures("one_logit")
def test_a_tree_yields_more_than_the_chain_of_its_depth() -> None:
    assert shape_of("15") == (3, 1.0)
    assert shape_of("3") == (3, 0.0)
    lift = lifted(0.5, 1.0)
    assert expected_tokens([0.5], {"15": 2}) == pytest.approx(2 * tokens_per_round(lift, 3))
    assert tokens_variance([0.5], {"15": 1}) != tokens_variance([0.5], {"3": 1})


def test_rounds_of_trees_and_chains_are_told_apart_by_their_number_of_drafts() -> None:
    """No chain of any arm has as many drafts as a tree; every tree of an arm is known."""
    config = parse_config("trees", json.dumps(WITH_TREES).encode())
    trees = {tier for tier in config.tiers if tier.topk > 1}
    assert {str(tier.num_drafts): tier.label for tier in trees}.items() <= TREES.items()
    assert not {str(steps) for steps in config.candidate_steps} & TREES.keys()
    assert {f"static-{tier.label}" for tier in trees} <= ARMS.keys()


def test_the_ladder_beside_the_trees_is_the_default_one() -> None:
    config, default = parse_config("trees", json.dumps(WITH_TREES).encode()), load_config(None)
    for bound, slot in default.slots.items():
        assert config.slots[bound].candidate_steps == slot.candidate_steps


def test_the_policy_s_own_tests_have_the_measured_lifts() -> None:
    for tree, lift in LIFTS.items():
        assert lift == pytest.approx(acceptance.tree_lifts()[tree.label], abs=1e-3)
