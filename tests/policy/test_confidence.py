"""What confidence says of drafts is learned without bias, whichever of them were verified."""

import numpy as np
import pytest

from sglang_adaptive_spec.policy.acceptance.confidence import ConfidenceModel, hazards_by
from sglang_adaptive_spec.policy.packing import lengths
from sglang_adaptive_spec.policy.settings import DEFAULTS

STEPS, ROWS = 4, 64


def model() -> ConfidenceModel:
    return ConfidenceModel(STEPS, DEFAULTS.confidence)


def served(
    learner: ConfidenceModel, slope: float, intercepts: tuple[float, ...], is_cut: bool, seed: int
) -> None:
    """Serves rounds whose drafts hold with the true chance; the likeliest alone are verified."""
    draws = np.random.default_rng(seed)
    for _ in range(400):
        confidence = draws.beta(1.5, 1.0, (STEPS, ROWS))
        chance = hazards_by(confidence, (slope, *intercepts))
        held = np.logical_and.accumulate(draws.random((STEPS, ROWS)) < chance, 0).sum(0)
        seen = np.full(ROWS, STEPS)
        if is_cut:
            seen = lengths(np.multiply.accumulate(learner.hazards(confidence), 0), ROWS)
        hazards = learner.hazards(confidence)
        learner.learn(confidence, hazards, np.minimum(held, seen).tolist(), seen.tolist())


@pytest.mark.parametrize("is_cut", [False, True])
@pytest.mark.parametrize(
    ("slope", "intercepts"),
    [(1.0, (0.0,) * STEPS), (0.8, (0.3, 0.0, -0.3, -0.6)), (0.0, (1.0, 0.5, 0.5, 0.5))],
)
def test_slope_and_intercepts_are_found(
    slope: float, intercepts: tuple[float, ...], is_cut: bool
) -> None:
    learner = model()
    served(learner, slope, intercepts, is_cut, seed=3)
    found, *found_intercepts = learner.weights
    assert found == pytest.approx(slope, abs=0.06)
    num_known = 1 if is_cut else STEPS  # deeper ones are rarely verified where rows are cut
    assert found_intercepts[:num_known] == pytest.approx(intercepts[:num_known], abs=0.15)


def test_where_sure_drafts_fail_more_often_confidence_tells_nothing_and_the_mean_is_right() -> None:
    learner = model()
    served(learner, -0.5, (0.0,) * STEPS, False, seed=4)
    found, first, *_ = learner.weights
    assert found < 0.02
    draws = np.random.default_rng(4).beta(1.5, 1.0, 10000)
    truth = hazards_by(draws[None], (-0.5, 0.0)).mean()
    assert 1 / (1 + np.exp(-first)) == pytest.approx(float(truth), abs=0.02)


def test_a_depth_of_which_nothing_was_seen_is_taken_for_the_one_before() -> None:
    learner = model()
    confidence = np.full((2, ROWS), 0.5)
    for _ in range(50):
        hazards = learner.hazards(confidence)
        learner.learn(confidence, hazards, [2] * ROWS, [2] * ROWS)
    _, *intercepts = learner.weights
    assert intercepts[1] > 1.0
    assert intercepts[2] == intercepts[3] == intercepts[1]


def test_a_change_is_followed() -> None:
    learner = model()
    served(learner, 1.0, (0.0,) * STEPS, False, seed=1)
    for seed in range(2, 5):
        served(learner, 0.3, (0.5,) * STEPS, False, seed=seed)
    assert learner.weights[0] == pytest.approx(0.3, abs=0.08)


def test_until_anything_is_known_confidence_is_the_chance() -> None:
    confidence = np.array([[0.2, 0.9], [0.5, 0.7]])
    assert model().hazards(confidence) == pytest.approx(confidence)


def test_drafts_that_nobody_verified_hold_with_the_chance_that_confidence_gives() -> None:
    confidence = np.array([[0.9, 0.9, 0.5], [0.8, 0.8, 0.5], [0.5, 0.5, 0.5]])
    #                     held 1 of 1, held 1 of 3, held 0 of 0
    found = model().held(model().hazards(confidence), held=[1, 1, 0], seen=[1, 3, 0])
    assert found[0].tolist() == [1, 1, 1]
    assert found[1] == pytest.approx([1, 1, 0.5])
    assert found[2] == pytest.approx([0.8, 0, 0.25])
    assert found[3] == pytest.approx([0.4, 0, 0.125])


def test_certainty_is_no_more_than_a_choice_allows() -> None:
    sure = hazards_by(np.array([[0.0, 1.0]]), (1.0, 0.0))
    assert sure == pytest.approx(np.array([[0.001, 0.999]]))
