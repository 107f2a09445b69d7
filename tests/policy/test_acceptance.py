"""What the acceptance model must get right, on drafts drawn from known hazards."""

import json
from collections.abc import Hashable, Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_adaptive_spec.policy.acceptance.model import AcceptanceModel
from sglang_adaptive_spec.policy.acceptance.request_offsets import INITIAL_ROWS, RequestOffsets
from sglang_adaptive_spec.policy.settings import DEFAULTS
from sglang_adaptive_spec.tiers import PLAIN_TIER, chain_tier
from tests.policy.rounds import MAX_STEPS, constant, draw, half_and_half, true_tokens

ACCEPTANCE = DEFAULTS.acceptance


def names(batch_size: int) -> tuple[str, ...]:
    return tuple(f"r{idx}" for idx in range(batch_size))


def truth(hazards: np.ndarray) -> np.ndarray:
    return np.array([true_tokens(hazards, steps) for steps in range(MAX_STEPS + 1)])


def by_depth(model: AcceptanceModel, requests: Sequence[Hashable]) -> np.ndarray:
    """Returns the tokens of a round of every chain: index = num_steps."""
    chains = [chain_tier(steps) for steps in range(model.max_steps + 1)]
    return model.expected_tokens(requests, chains)


def taught(
    hazards: np.ndarray,
    num_rounds: int,
    num_steps: int = MAX_STEPS,
    model: AcceptanceModel | None = None,
    seed: int = 0,
) -> AcceptanceModel:
    model = model or AcceptanceModel(MAX_STEPS)
    rng = np.random.default_rng(seed)
    for _ in range(num_rounds):
        model.observe(names(len(hazards)), draw(rng, hazards, num_steps), chain_tier(num_steps))
    return model


def test_before_any_evidence_every_position_is_expected_to_hold_at_the_optimistic_prior() -> None:
    expected = by_depth(AcceptanceModel(3), ["a", "b"])
    survival = np.cumprod(
        [1.0, ACCEPTANCE.prior_hazard, ACCEPTANCE.prior_hazard, ACCEPTANCE.prior_hazard]
    )
    assert expected == pytest.approx(2 * np.cumsum(survival))


def test_a_model_without_positions_is_refused() -> None:
    with pytest.raises(ValueError, match="max_steps is 0"):
        AcceptanceModel(0)


def test_an_empty_batch_expects_nothing() -> None:
    model = AcceptanceModel(3)
    model.observe([], [], chain_tier(3))
    model.observe_first([], [])
    assert by_depth(model, []).tolist() == [0.0] * 4
    assert model.gain_noise([], chain_tier(1), chain_tier(3)) == 0.0


@pytest.mark.parametrize("batch_size", [1, 16, 128])
@pytest.mark.parametrize("hazard", [0.3, 0.7, 0.95])
def test_expected_tokens_come_close_to_the_truth(batch_size: int, hazard: float) -> None:
    hazards = constant(hazard, batch_size)
    model = taught(hazards, 1500 // batch_size + 60)
    expected = by_depth(model, names(batch_size))
    assert expected == pytest.approx(truth(hazards), rel=0.08)


def test_hazards_differ_by_position() -> None:
    profile = np.array([0.9, 0.8, 0.4, 0.7, 0.3, 0.6, 0.5])
    hazards = np.tile(profile, (32, 1))
    model = taught(hazards, 200)
    assert by_depth(model, names(32)) == pytest.approx(truth(hazards), rel=0.03)


def test_good_survivors_do_not_pass_for_good_depths() -> None:
    """Of those that reach position 6 nearly all are the good half; each half keeps its own."""
    hazards = half_and_half(64)
    model = taught(hazards, 150)
    assert by_depth(model, names(64)) == pytest.approx(truth(hazards), rel=0.05)
    good, bad = names(64)[1::2], names(64)[::2]
    assert by_depth(model, good) == pytest.approx(truth(hazards[1::2]), rel=0.07)
    assert by_depth(model, bad) == pytest.approx(truth(hazards[::2]), rel=0.07)
    # A pooled hazard that ignored who survived would rise to 0.9 with the depth.
    survival = np.array([1.0, *model.survival()])
    assert (survival[1:] / survival[:-1]).max() < 0.8


def test_requests_that_leave_or_join_change_the_estimate_at_once() -> None:
    hazards = half_and_half(32)
    model = taught(hazards, 100)
    both = by_depth(model, names(32))[3] / 32
    good = by_depth(model, names(32)[1::2])[3] / 16
    bad = by_depth(model, names(32)[::2])[3] / 16
    assert good > both + 0.5 > bad + 1.0
    assert both == pytest.approx((good + bad) / 2)


def test_a_new_request_starts_from_the_pool() -> None:
    model = taught(half_and_half(32), 100)
    survival = [1.0, *model.survival()]
    assert by_depth(model, ["new"]) == pytest.approx(np.cumsum(survival))


def test_a_new_request_is_known_within_a_dozen_rounds_of_a_mixed_batch() -> None:
    hazards = half_and_half(32)
    model = taught(hazards, 100)
    rng = np.random.default_rng(1)
    requests = (*names(32)[1:], "new")  # a bad one left, a good one joined
    after = np.vstack((hazards[1:], constant(0.9, 1)))
    for _ in range(12):
        model.observe(requests, draw(rng, after, 5), chain_tier(5))
    assert by_depth(model, ["new"])[5] > 0.8 * true_tokens(constant(0.9, 1), 5)


def test_a_uniform_batch_shares_its_evidence() -> None:
    model = taught(constant(0.6, 64), 100)
    assert model.describe()["offsets"]["spread"] < 0.2
    per_request = [by_depth(model, [name])[3] for name in names(64)]
    assert np.std(per_request) < 0.03 * np.mean(per_request)


def test_positions_never_reached_follow_the_one_before() -> None:
    model = taught(constant(0.5, 64), 100, num_steps=2)
    survival = model.survival()
    second = survival[1] / survival[0]
    for shallow, deep in pairwise(survival[1:]):
        assert deep / shallow == pytest.approx(second)
    assert model.age(2) > 0.0
    assert model.age(3) == 0.0


def test_a_censored_position_keeps_its_last_known_hazard() -> None:
    profile = np.array([0.8, 0.8, 0.8, 0.3, 0.8, 0.8, 0.8])
    hazards = np.tile(profile, (32, 1))
    model = taught(hazards, 100)
    taught(hazards, 400, num_steps=2, model=model, seed=1)
    survival = model.survival()
    assert survival[3] / survival[2] == pytest.approx(0.3, abs=0.05)


def test_after_a_change_censored_positions_move_with_the_observed_ones() -> None:
    model = taught(constant(0.3, 32), 100)
    taught(constant(0.9, 32), 30, num_steps=1, model=model, seed=1)
    survival = model.survival()
    assert survival[0] == pytest.approx(0.9, abs=0.05)
    assert survival[4] / survival[3] > 0.8


def test_after_a_change_a_censored_position_stays_as_much_worse_as_it_was() -> None:
    profile = np.array([0.6, 0.6, 0.6, 0.1, 0.6, 0.6, 0.6])
    model = taught(np.tile(profile, (32, 1)), 200)
    taught(constant(0.9, 32), 30, num_steps=1, model=model, seed=1)
    survival = model.survival()
    assert survival[2] / survival[1] > 0.8
    assert survival[3] / survival[2] < 0.5


def test_after_a_change_the_old_regime_and_the_prior_weigh_nothing() -> None:
    model = AcceptanceModel(3)
    for _ in range(400):
        model.observe(["a"], [3], chain_tier(3))
    for _ in range(16):
        model.observe(["a"], [0], chain_tier(3))
    assert model.survival()[0] < 0.05


def test_after_a_change_nobody_is_judged_by_what_was_before() -> None:
    model = taught(half_and_half(32), 100)
    after = constant(0.9, 32)
    taught(after, 10, model=model, seed=1)
    bad_before = names(32)[::2]
    assert by_depth(model, bad_before)[3] == pytest.approx(true_tokens(after[:16], 3), rel=0.1)


def test_a_request_that_left_within_a_block_never_weighs_negatively() -> None:
    """One group of the block differs much, the next hardly: the spread falls between the two."""
    offsets = RequestOffsets()
    rows = offsets.rows_for_update([f"r{idx}" for idx in range(40)])
    few, many = rows[:4], rows[4:]
    block = np.zeros((5, 40))  # n, q, v, v, a: of hazard 0.5
    block[0], block[1] = 4.0, 2.0
    block[2:4] = 1.0
    block[4, :4] = (4.0, 4.0, 4.0, 0.0)
    block[4, 4:] = 2.0
    offsets.update([(few, 1), (many, 1)], block)
    assert offsets.variance[few].max() > offsets.spread2
    largest = float(np.abs(offsets.offset[rows]).max())
    assert abs(offsets.recentre(rows)) <= largest


def test_those_who_stay_keep_their_estimate_when_the_others_leave() -> None:
    hazards = half_and_half(64)
    model = taught(hazards, 150)
    rng = np.random.default_rng(1)
    good = names(64)[1::2]
    for _ in range(12):
        model.observe(good, draw(rng, hazards[1::2], 5), chain_tier(5))
        model.flush()
        assert by_depth(model, good) == pytest.approx(truth(hazards[1::2]), rel=0.08)


@pytest.mark.parametrize(("batch_size", "num_rounds"), [(1, 24), (8, 8), (128, 2)])
@pytest.mark.parametrize(("before", "after"), [(0.9, 0.3), (0.3, 0.9)])
def test_a_change_is_followed_within_rounds(
    before: float, after: float, batch_size: int, num_rounds: int
) -> None:
    model = taught(constant(before, batch_size), 400)
    num_changes = model.num_changes
    taught(constant(after, batch_size), num_rounds, model=model, seed=1)
    expected = by_depth(model, names(batch_size))[3] / batch_size
    assert expected == pytest.approx(true_tokens(constant(after, 1), 3), rel=0.15)
    assert model.num_changes > num_changes


@pytest.mark.parametrize(("batch_size", "num_rounds"), [(1, 6000), (64, 1500)])
def test_steady_rounds_hardly_ever_raise_the_alarm(batch_size: int, num_rounds: int) -> None:
    model = taught(constant(0.7, batch_size), num_rounds, num_steps=3)
    assert model.num_changes <= 2
    assert model.age(1) > 4 * ACCEPTANCE.fast_memory


def test_evidence_is_cut_to_the_rounds_since_a_change() -> None:
    model = taught(constant(0.9, 8), 500)
    assert model.age(1) > 10 * ACCEPTANCE.fast_memory  # the slow memory
    taught(constant(0.3, 8), 8, model=model, seed=1)
    assert model.age(1) <= 8 * 8


def test_zero_step_rounds_teach_the_first_position_and_skip_the_unknown() -> None:
    model = AcceptanceModel(3)
    for _ in range(40):
        model.observe_first(["a", "b", "c"], [True, None, False])
    assert model.survival()[0] == pytest.approx(0.5, abs=0.1)
    assert ACCEPTANCE.fast_memory < model.age(1) < 2 * 40
    assert by_depth(model, ["a"])[1] > 1.6 > 1.4 > by_depth(model, ["c"])[1]
    assert by_depth(model, ["b"])[1] == pytest.approx(1.0 + model.survival()[0])


def test_a_round_of_zero_steps_proposes_nothing_and_teaches_nothing() -> None:
    model = AcceptanceModel(3)
    before = by_depth(model, ["a"]).tolist()
    model.observe(["a"], [0], PLAIN_TIER)
    assert by_depth(model, ["a"]).tolist() == before


def test_rows_of_requests_that_left_are_used_again() -> None:
    model = AcceptanceModel(3)
    for wave in range(1500):
        requests = [(wave, idx) for idx in range(4)]
        for _ in range(2):
            model.observe(requests, [1] * 4, chain_tier(3))
            model.flush()
    assert len(model.offsets) <= len(model.offsets.offset) <= 2 * INITIAL_ROWS


def test_a_batch_larger_than_the_first_rows_finds_room() -> None:
    size = 2 * INITIAL_ROWS + 7
    hazards = half_and_half(size)
    model = taught(hazards, 30)
    assert len(model.offsets) == size
    assert by_depth(model, names(size)) == pytest.approx(truth(hazards), rel=0.05)


def test_gain_noise_is_the_spread_of_the_estimated_gain() -> None:
    """Over repetitions of the same evidence, within a factor of two of what was predicted."""
    hazards = constant(0.7, 16)
    gains, predicted = [], []
    for seed in range(40):
        model = taught(hazards, 20, num_steps=5, seed=seed)
        expected = by_depth(model, names(16))
        gains.append(expected[5] - expected[2])
        predicted.append(model.gain_noise(names(16), chain_tier(2), chain_tier(5)))
    assert np.std(gains) / 2 < np.mean(predicted) < np.std(gains) * 2


def test_gain_noise_falls_with_evidence_and_is_zero_without_a_gain() -> None:
    hazards = constant(0.7, 16)
    model = taught(hazards, 5)
    early = model.gain_noise(names(16), chain_tier(2), chain_tier(5))
    taught(hazards, 200, model=model, seed=1)
    late = model.gain_noise(names(16), chain_tier(2), chain_tier(5))
    assert late < early / 2
    assert model.gain_noise(names(16), chain_tier(3), chain_tier(3)) == 0.0
    assert model.gain_noise(names(16), chain_tier(5), chain_tier(2)) == late


def test_requests_not_yet_known_add_noise_where_requests_differ() -> None:
    model = taught(half_and_half(32), 100)
    strangers = [f"new{idx}" for idx in range(32)]
    assert model.gain_noise(strangers, chain_tier(1), chain_tier(3)) > 2 * model.gain_noise(
        names(32), chain_tier(1), chain_tier(3)
    )


def test_the_description_is_plain_data() -> None:
    described = taught(half_and_half(8), 50).describe()
    assert json.loads(json.dumps(described)) == described
    assert len(described["survival"]) == MAX_STEPS


ROUNDS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 11), min_size=1, max_size=6, unique=True),  # requests
        st.integers(1, MAX_STEPS),
        st.lists(st.integers(0, MAX_STEPS), min_size=6, max_size=6),
    ),
    max_size=40,
)


def replayed(
    rounds: list[tuple[list[int], int, list[int]]], is_reversed: bool = False
) -> AcceptanceModel:
    model = AcceptanceModel(MAX_STEPS)
    order = -1 if is_reversed else 1
    for requests, num_steps, accepted in rounds:
        counts = [min(count, num_steps) for count in accepted[: len(requests)]]
        model.observe(requests[::order], counts[::order], chain_tier(num_steps))
    return model


@settings(max_examples=60, deadline=None, derandomize=True)
@given(ROUNDS)
def test_survival_never_rises_with_depth_and_is_always_a_probability(
    rounds: list[tuple[list[int], int, list[int]]],
) -> None:
    model = replayed(rounds)
    gains = np.diff(by_depth(model, list(range(12))))
    assert np.isfinite(gains).all()
    assert (gains > 0.0).all()
    assert (gains <= 12.0).all()
    assert (np.diff(gains) < 0.0).all()
    assert model.gain_noise(list(range(12)), chain_tier(1), chain_tier(MAX_STEPS)) > 0.0


@settings(max_examples=40, deadline=None, derandomize=True)
@given(ROUNDS)
def test_the_order_of_requests_in_a_batch_is_irrelevant(
    rounds: list[tuple[list[int], int, list[int]]],
) -> None:
    one, other = replayed(rounds), replayed(rounds, is_reversed=True)
    requests = list(range(12))
    expected = by_depth(one, requests)
    assert by_depth(other, requests[::-1]) == pytest.approx(expected, rel=1e-6)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(ROUNDS)
def test_the_same_rounds_give_the_same_answer(
    rounds: list[tuple[list[int], int, list[int]]],
) -> None:
    requests = list(range(12))
    one, other = replayed(rounds), replayed(rounds)
    assert by_depth(one, requests).tolist() == by_depth(other, requests).tolist()
