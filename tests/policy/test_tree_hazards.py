"""What a tree adds to the chain: learned by depth, told apart from the text, and used to choose."""

import numpy as np
import pytest

from sglang_adaptive_spec.policy.acceptance.model import AcceptanceModel
from sglang_adaptive_spec.policy.acceptance.tree_hazards import guessed_lift
from sglang_adaptive_spec.policy.settings import DEFAULTS
from sglang_adaptive_spec.tiers import Tier, chain_tier
from tests.policy.rounds import MAX_STEPS, constant, draw, true_tokens

CHAIN = chain_tier(3)
TREE = Tier(3, 4, 8)
WIDER = Tier(3, 4, 13)
REQUESTS = tuple(f"r{idx}" for idx in range(16))


def serve(
    model: AcceptanceModel, tier: Tier, hazard: float, num_rounds: int, seed: int = 0
) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(num_rounds):
        counts = draw(rng, constant(hazard, len(REQUESTS)), tier.num_steps)
        model.observe(REQUESTS, counts, tier)
    model.flush()


def serve_in_turn(
    model: AcceptanceModel, chain_hazard: float, tree_hazard: float, num_turns: int = 8
) -> None:
    for turn in range(num_turns):
        serve(model, CHAIN, chain_hazard, 20, seed=turn)
        serve(model, TREE, tree_hazard, 20, seed=turn)


def model_of_trees() -> AcceptanceModel:
    return AcceptanceModel(MAX_STEPS, [TREE, WIDER])


def tokens(model: AcceptanceModel, tier: Tier) -> float:
    return float(model.expected_tokens(REQUESTS, [tier])[0])


def truth(hazard: float, num_steps: int = 3) -> float:
    return true_tokens(constant(hazard, len(REQUESTS)), num_steps)


def test_a_tree_is_guessed_to_hold_more_the_more_nodes_a_depth_has() -> None:
    assert guessed_lift(CHAIN) == 0.0
    assert guessed_lift(WIDER) == pytest.approx(2 * DEFAULTS.trees.lift_per_doubling)
    assert guessed_lift(Tier(3, 2, 7)) == pytest.approx(DEFAULTS.trees.lift_per_doubling)
    assert 0.0 < guessed_lift(TREE) < guessed_lift(WIDER)  # 7 nodes for three depths
    assert guessed_lift(Tier(5, 4, 4)) == 0.0  # fewer nodes than depths
    model = model_of_trees()
    assert tokens(model, TREE) > tokens(model, CHAIN)


def test_both_widths_are_known_after_rounds_of_both() -> None:
    model = model_of_trees()
    serve_in_turn(model, 0.5, 0.75)
    assert tokens(model, CHAIN) == pytest.approx(truth(0.5), rel=0.05)
    assert tokens(model, TREE) == pytest.approx(truth(0.75), rel=0.05)


def test_a_tree_worse_than_guessed_is_found_out() -> None:
    model = model_of_trees()
    serve_in_turn(model, 0.6, 0.6)
    assert tokens(model, TREE) == pytest.approx(tokens(model, CHAIN), rel=0.05)


def test_rounds_of_a_tree_tell_about_the_text_too() -> None:
    """A tree served alone follows a change, and the chain's estimate goes with it."""
    model = model_of_trees()
    serve(model, CHAIN, 0.7, 60)
    serve(model, TREE, 0.85, 60)
    before = tokens(model, CHAIN)
    serve(model, TREE, 0.4, 120, seed=1)
    assert tokens(model, TREE) == pytest.approx(truth(0.4), rel=0.1)
    assert tokens(model, CHAIN) < 0.8 * before


def test_a_lift_differs_by_depth() -> None:
    """A tree of few nodes is wide at its root and a chain at its end."""
    model = model_of_trees()
    rng = np.random.default_rng(0)
    hazards = np.tile([0.75, 0.6, 0.5], (len(REQUESTS), 1))
    for turn in range(10):
        serve(model, CHAIN, 0.5, 40, seed=turn)
        for _ in range(40):
            model.observe(REQUESTS, draw(rng, hazards, 3), TREE)
    model.flush()
    first, second, third = model.pool.lift(TREE)
    assert first == pytest.approx(np.log(3.0), abs=0.15)  # 0.75 against 0.5
    assert second == pytest.approx(np.log(1.5), abs=0.15)
    assert third == pytest.approx(0.0, abs=0.15)


def test_one_look_at_the_chain_puts_right_what_a_tree_alone_could_not_tell() -> None:
    """Served from the start at a tree that lifts nothing, then two rounds of the chain."""
    model = model_of_trees()
    serve(model, TREE, 0.6, 200)
    assert tokens(model, TREE) == pytest.approx(truth(0.6), rel=0.05)
    assert tokens(model, CHAIN) < 0.95 * truth(0.6)  # the guess says that a tree lifts
    serve(model, CHAIN, 0.6, 8, seed=1)
    assert tokens(model, CHAIN) == pytest.approx(truth(0.6), rel=0.1)
    assert tokens(model, TREE) == pytest.approx(truth(0.6), rel=0.05)


def test_a_text_that_drifts_slowly_moves_the_chain_and_leaves_the_lift() -> None:
    model = model_of_trees()
    serve_in_turn(model, 0.5, 0.7)
    lift = model.pool.lift(TREE).copy()
    logits = np.log(0.7 / 0.3) + np.linspace(0.0, 2.0, 200)
    for turn, level in enumerate(logits.tolist()):
        serve(model, TREE, 1 / (1 + np.exp(-level)), 10, seed=turn)
    assert model.pool.lift(TREE) == pytest.approx(lift, abs=0.15)
    assert tokens(model, CHAIN) == pytest.approx(truth(1 / (1 + np.exp(-2.0))), rel=0.05)


def test_a_change_of_the_text_leaves_the_lift() -> None:
    model = model_of_trees()
    serve_in_turn(model, 0.5, 0.75)
    lift = model.pool.lift(TREE).copy()
    serve(model, TREE, 0.25, 40, seed=1)
    assert model.num_changes == 1  # what was not known of the tree before was none
    assert model.pool.lift(TREE) == pytest.approx(lift, abs=0.2)
    assert tokens(model, CHAIN) == pytest.approx(truth(0.1), rel=0.1)


@pytest.mark.parametrize("tier", [CHAIN, chain_tier(7), TREE])
@pytest.mark.parametrize(("before", "after"), [(0.95, 0.5), (0.9, 0.35), (0.3, 0.9)])
def test_a_surprise_does_not_overshoot(tier: Tier, before: float, after: float) -> None:
    model = model_of_trees()
    serve(model, tier, before, 60)
    assert model.num_changes <= 1  # from the prior
    changes = model.num_changes
    serve(model, tier, after, 16, seed=1)
    assert tokens(model, tier) == pytest.approx(truth(after, tier.num_steps), rel=0.15)
    serve(model, tier, after, 60, seed=2)
    assert model.num_changes == changes + 1


@pytest.mark.parametrize("tier", [chain_tier(7), TREE])
@pytest.mark.parametrize("hazard", [0.2, 0.5, 0.9])
def test_steady_text_raises_no_alarm_from_a_fresh_start(tier: Tier, hazard: float) -> None:
    num_changes = 0
    for seed in range(5):
        model = model_of_trees()
        serve(model, tier, hazard, 100, seed=seed)
        num_changes += model.num_changes
    assert num_changes <= 1


def test_what_nobody_observes_is_never_less_known_than_before_any_evidence() -> None:
    model = model_of_trees()
    before = model.gain_noise(REQUESTS, chain_tier(MAX_STEPS), TREE)
    for turn in range(60):
        serve(model, chain_tier(1), 0.6, 10, seed=turn)
        model.shorten_memory()
    assert model.gain_noise(REQUESTS, chain_tier(MAX_STEPS), TREE) < 1.1 * before
    assert model.age(MAX_STEPS) == 0.0


def test_how_unsure_the_gain_of_a_tree_is_is_how_far_it_is_off() -> None:
    errors = []
    for seed in range(30):
        model = model_of_trees()
        serve(model, CHAIN, 0.5, 20, seed=seed)
        serve(model, TREE, 0.7, 20, seed=seed + 100)
        gain = tokens(model, TREE) - tokens(model, CHAIN)
        off = gain - (truth(0.7) - truth(0.5))
        errors.append(off / model.gain_noise(REQUESTS, TREE, CHAIN))
    assert 0.5 < np.std(errors) < 1.5


def test_a_batch_of_new_requests_outweighs_what_earlier_ones_showed() -> None:
    fresh, steady = model_of_trees(), model_of_trees()
    for model in (fresh, steady):
        serve(model, TREE, 0.5, 60)
    fresh.shorten_memory()
    for model in (fresh, steady):
        serve(model, TREE, 0.6, 2, seed=1)
    assert tokens(fresh, TREE) > tokens(steady, TREE)


def test_a_lift_that_one_tree_showed_says_nothing_about_another() -> None:
    model = model_of_trees()
    serve(model, CHAIN, 0.5, 100)
    before = tokens(model, WIDER)
    serve(model, TREE, 0.5, 100)
    serve(model, CHAIN, 0.5, 100, seed=1)
    assert tokens(model, WIDER) == pytest.approx(before, rel=0.05)


def test_the_gain_over_a_chain_is_less_certain_before_the_tree_ran() -> None:
    model = model_of_trees()
    serve(model, CHAIN, 0.6, 60)
    early = model.gain_noise(REQUESTS, TREE, CHAIN)
    for turn in range(4):
        serve(model, TREE, 0.75, 20, seed=turn)
        serve(model, CHAIN, 0.6, 20, seed=turn)
    late = model.gain_noise(REQUESTS, TREE, CHAIN)
    assert 0.0 < late < early
    assert model.gain_noise(REQUESTS, CHAIN, TREE) == pytest.approx(late)
    assert model.gain_noise(REQUESTS, TREE, TREE) == 0.0


def test_the_most_favourable_case_is_above_the_estimate_and_comes_down_to_it() -> None:
    model = model_of_trees()
    serve(model, CHAIN, 0.6, 60)
    assert model.upper_tokens(REQUESTS, TREE, CHAIN) > 1.05 * tokens(model, TREE)
    serve(model, TREE, 0.6, 400)
    assert model.upper_tokens(REQUESTS, TREE, CHAIN) < 1.1 * tokens(model, TREE)
    assert model.most_tokens(REQUESTS, CHAIN, 3) == pytest.approx(tokens(model, CHAIN))
    assert model.most_tokens(REQUESTS, CHAIN, 1) > tokens(model, CHAIN)


def test_a_tree_that_the_model_does_not_know_is_refused_or_left_out() -> None:
    with pytest.raises(ValueError, match="deeper"):
        AcceptanceModel(2, [TREE])
    model = AcceptanceModel(MAX_STEPS, (tree for tree in [TREE]))
    before = tokens(model, TREE)
    serve(model, WIDER, 0.1, 20)
    assert tokens(model, TREE) == before


def test_reaching_is_the_share_that_holds_up_to_a_depth() -> None:
    model = model_of_trees()
    serve_in_turn(model, 0.5, 0.8)
    assert model.reaching(REQUESTS, CHAIN, 0) == 16.0
    assert model.reaching(REQUESTS, CHAIN, 2) == pytest.approx(16 * 0.25, rel=0.15)
    assert model.reaching(REQUESTS, TREE, 2) == pytest.approx(16 * 0.64, rel=0.1)
