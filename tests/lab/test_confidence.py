"""Confidence: rounds follow each other over a text, and the models tell what was planted."""

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.studies import confidence
from benchmarks.studies.confidence import NUM_STEPS, build_result, check_confidence, rounds_of
from examples.training.unroll import DraftStep, DraftVocabulary
from tests.lab.records import PROVENANCE


def test_a_round_begins_where_the_one_before_ended_and_sees_what_it_reached() -> None:
    hits = np.zeros((6, NUM_STEPS), bool)
    hits[1, :2] = True  # two hold, the third is seen not to
    hits[4, :3] = True  # all three that there are
    sure = np.arange(6 * NUM_STEPS).reshape(6, NUM_STEPS) / 100
    counted = np.ones((6, NUM_STEPS), bool)
    counted[0, 1:] = False  # its first token is the prefill's
    counted[4, 3:] = False  # behind the text
    counted[5] = False
    assert rounds_of(hits, sure, counted) == [
        [2, [0.07, 0.08, 0.09]],
        [3, [0.28, 0.29, 0.3]],
    ]
    assert rounds_of(hits, sure, np.zeros((6, NUM_STEPS), bool)) == []


def test_a_draft_is_as_sure_as_the_head_and_holds_where_the_text_has_it() -> None:
    text = torch.tensor([[10, 20, 10, 10]])
    prefers = torch.tensor([[0, 1, 0, 1]])  # of the draft vocabulary; the last one is wrong
    logits = torch.nn.functional.one_hot(prefers, 2) * 2.0
    counted = torch.ones(1, 4, dtype=torch.bool)
    first = DraftStep(logits, torch.zeros(0), slice(0, 4), text, counted)
    behind = DraftStep(logits, torch.zeros(0), slice(0, 4), text, ~counted)  # the text has ended
    steps = [first, *[behind] * (NUM_STEPS - 1)]
    vocabulary = DraftVocabulary(torch.tensor([10, 20]), torch.zeros(0), torch.zeros(0))
    drafting = SimpleNamespace(vocabulary=vocabulary, unrolled=lambda *_: steps)
    (rounds,) = confidence.rounds_of_texts(drafting, ["a text"])
    sure = pytest.approx(np.exp(2) / (1 + np.exp(2)), abs=1e-5)
    assert rounds == [[1, [sure]], [0, [sure]]]


def requests(num_requests: int, *, tells: bool, differ: bool) -> list[dict[str, Any]]:
    """Requests whose drafts hold by their confidence, or by the request, or neither."""
    rng = random.Random(5)
    made = []
    for number in range(num_requests):
        rounds: list[Any] = []
        own = (0.9 if number // 2 % 2 else 0.3) if differ else 0.6
        for _ in range(40):
            seen: list[float] = []
            num_correct = 0
            for _ in range(NUM_STEPS):
                sure = rng.uniform(0.05, 0.95)
                seen.append(round(sure, 5))
                if rng.random() > (sure if tells else own):
                    break
                num_correct += 1
            rounds.append([num_correct, seen])
        made.append({"kind": "greedy", "domain": "chat", "rounds": rounds})
    return made


def test_confidence_that_tells_has_a_slope_of_one_and_lowers_the_loss() -> None:
    result = build_result(PROVENANCE, requests(60, tells=True, differ=False))
    group = result["groups"]["greedy, all"]
    assert group == result["groups"]["greedy, chat"]
    assert group["slope"] == pytest.approx(1.0, abs=0.1)
    assert group["log_loss"]["confidence"] < group["log_loss"]["position"] - 0.05
    assert group["log_loss"]["history"] == pytest.approx(group["log_loss"]["position"], abs=0.01)
    assert group["gain"]["confidence"]["mean"] > 5 * group["gain"]["confidence"]["stderr"] > 0
    assert abs(group["gain"]["history"]["mean"]) < 3 * group["gain"]["history"]["stderr"] + 0.003
    assert "slope of logit c" in confidence.figure_table(result)


def test_history_tells_requests_apart_where_confidence_says_nothing() -> None:
    result = build_result(PROVENANCE, requests(60, tells=False, differ=True))
    group = result["groups"]["greedy, all"]
    assert group["slope"] == pytest.approx(0.0, abs=0.1)
    assert group["log_loss"]["history"] < group["log_loss"]["position"] - 0.05
    assert group["log_loss"]["both"] == pytest.approx(group["log_loss"]["history"], abs=0.01)


def test_a_stated_figure_follows_from_its_rounds() -> None:
    result = build_result(PROVENANCE, requests(4, tells=True, differ=False))
    assert check_confidence(result) == []
    result["groups"]["greedy, all"]["slope"] += 0.1
    (problem,) = check_confidence(result)
    assert "groups.greedy, all.slope" in problem
