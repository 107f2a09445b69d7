"""Injected acceptance by name: who has which probability, and what must come of it."""

import math
import random

import pytest

from benchmarks.inject.acceptance import (
    concentration_of,
    probabilities,
    probability_of,
    request_ids,
)
from benchmarks.stats.tokens import expected_tokens, tokens_per_round, tokens_variance


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
