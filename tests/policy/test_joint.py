"""One tier for the batches of several ranks: what they accept together, and who is in them."""

import random
from collections.abc import Hashable, Sequence

import numpy as np
import pytest

from sglang_adaptive_spec.config.schema import load_config
from sglang_adaptive_spec.policy.acceptance.joint import JointAcceptance, share_width
from sglang_adaptive_spec.policy.acceptance.model import AcceptanceModel
from sglang_adaptive_spec.policy.build import build_policy
from sglang_adaptive_spec.policy.costs.table import CostTable
from sglang_adaptive_spec.policy.joint import JointPolicy
from sglang_adaptive_spec.tiers import DecodeBatch, Observation, Plan, Tier, chain_tier

STEPS = 5
TIERS = [chain_tier(steps) for steps in (0, 1, 3, 5)]


def accepted(draws: random.Random, hazard: float, num_steps: int) -> int:
    """Drafts of a request that hold, one after the other."""
    return next((idx for idx in range(num_steps) if draws.random() > hazard), num_steps)


def taught(model: AcceptanceModel, requests: Sequence[Hashable], hazard: float) -> AcceptanceModel:
    """``model`` after rounds of five steps."""
    draws = random.Random(1)
    for _ in range(200):
        model.observe(requests, [accepted(draws, hazard, STEPS) for _ in requests], TIERS[-1])
    return model


def test_a_rank_alone_knows_what_its_model_knows() -> None:
    requests = tuple("abcd")
    alone = taught(AcceptanceModel(STEPS), requests, 0.7)
    joint = taught(JointAcceptance(STEPS), requests, 0.7)
    assert isinstance(joint, JointAcceptance)
    joint.take(joint.own_share(requests).numbers()[None])
    np.testing.assert_allclose(
        joint.expected_tokens(requests, TIERS), alone.expected_tokens(requests, TIERS)
    )
    for depth in (0, 1, 3):
        deep = TIERS[-1]
        assert joint.most_tokens(requests, deep, depth) == pytest.approx(
            alone.most_tokens(requests, deep, depth)
        )
        assert joint.reaching(requests, deep, depth) == pytest.approx(
            alone.reaching(requests, deep, depth)
        )
        # As if its requests were alike, which these are.
        assert joint.noise_beyond(requests, deep, depth) == pytest.approx(
            alone.noise_beyond(requests, deep, depth), rel=0.05
        )
    assert joint.age(3) == alone.age(3)
    assert joint.ceiling(requests, TIERS[-1]) == alone.ceiling(requests, TIERS[-1])


def test_what_ranks_accept_adds_up_and_their_noise_does_in_squares() -> None:
    requests = tuple("abcd")
    model = taught(JointAcceptance(STEPS), requests, 0.7)
    assert isinstance(model, JointAcceptance)
    share = model.own_share(requests).numbers()
    assert len(share) == share_width(STEPS)
    model.take(share[None])
    tokens, noise = (
        model.expected_tokens(requests, TIERS),
        model.noise_beyond(requests, TIERS[3], 1),
    )
    model.take(np.stack((share, share, np.zeros_like(share))))
    twice = (*requests, *"efgh")
    np.testing.assert_allclose(model.expected_tokens(twice, TIERS), 2 * tokens)
    assert model.noise_beyond(twice, TIERS[3], 1) == pytest.approx(noise * 2**0.5)


def policy() -> JointPolicy:
    """One whose rounds cost 4 ms and 0.6 a step, and a hundredth of that per request."""
    config = load_config(None)
    costs = CostTable.empty(config.tiers)
    for tier in config.tiers:
        for size in (1, 8, 32):
            ms = 4 + tier.num_steps * (0.6 + 0.02 * size)
            costs.seed(tier, size, 256 * size, ms, False, 0.01)
    costs.fit()
    made = build_policy(config, 3, None, costs, is_joint=True)
    assert isinstance(made, JointPolicy)
    return made


def settled(ranks: Sequence[tuple[int, float]]) -> Tier:
    """What the first of several ranks settles on; each has requests and a hazard."""
    policies, draws = [policy() for _ in ranks], random.Random(2)
    batches = [
        tuple(f"{rank}-{idx}" for idx in range(size)) for rank, (size, _) in enumerate(ranks)
    ]
    largest, tier = max(size for size, _ in ranks), chain_tier(3)
    for _ in range(400):
        for each, requests in zip(policies, batches, strict=True):
            each.note_own(requests)
        every = policies[0].take(
            np.stack([each.share(own) for each, own in zip(policies, batches, strict=True)])
        )
        tier = policies[0].choose(DecodeBatch(largest, every, 256 * largest)).tier
        policies[0].count_rounds(1)
        for each, requests, (_, hazard) in zip(policies, batches, ranks, strict=True):
            drafts = [accepted(draws, hazard, tier.num_steps) for _ in requests]
            each.observe(Observation(Plan(tier), len(requests), requests, drafts))
            each.after_results()
    return policies[0].home


def test_one_rank_with_poor_drafts_does_not_veto_what_the_others_gain() -> None:
    poor, good = settled([(1, 0.1)]), settled([(32, 0.95)])
    assert poor.num_steps < good.num_steps
    assert settled([(1, 0.1), (32, 0.95), (32, 0.95)]) == good
    assert settled([(32, 0.1), (1, 0.95), (32, 0.1)]).num_steps <= poor.num_steps


def shares_of(made: JointPolicy, *ranks: tuple[int, int]) -> np.ndarray:
    """What ranks tell: requests, and those that ever ended."""
    rows = np.zeros((len(ranks), share_width(made.joint.max_steps)))
    rows[:, :2] = ranks
    return rows


def test_stand_ins_stay_as_long_as_the_requests_that_they_stand_for() -> None:
    made = policy()
    first = made.take(shares_of(made, (2, 0), (1, 0)))
    assert len(set(first)) == 3
    assert made.take(shares_of(made, (2, 0), (1, 0))) is first
    one_ended = made.take(shares_of(made, (2, 1), (1, 0)))  # and another one came
    assert len(set(first) & set(one_ended)) == 2
    all_new = made.take(shares_of(made, (2, 3), (1, 1)))
    assert set(all_new).isdisjoint(one_ended)
    assert made.take(shares_of(made, (0, 5), (0, 2))) == ()


def test_an_offer_changes_nothing_and_counts_who_would_leave() -> None:
    made = policy()
    made.note_own(("a", "b"))
    assert made.share(("a", "c"))[1] == 1
    assert made.share(("a", "b"))[1] == 0
    assert made.share(())[1] == 2  # if it ran none
    made.note_own(("a", "c"))
    assert made.share(("a", "c"))[1] == 1


def test_tokens_of_all_ranks_tell_how_often_requests_end() -> None:
    made = policy()
    for ended, tokens in ((0, 100), (1, 200)):
        shares = shares_of(made, (2, ended), (2, 0))
        shares[:, 2] = tokens, tokens
        made.choose(DecodeBatch(2, made.take(shares)))
    assert made.runs.describe()["ends_per_token"] == pytest.approx(1 / 400)


def test_a_rank_that_goes_idle_takes_back_no_change_that_it_found() -> None:
    requests = tuple("abcd")
    model = taught(taught(JointAcceptance(STEPS), requests, 0.95), requests, 0.1)
    assert isinstance(model, JointAcceptance)
    model.take(model.own_share(requests).numbers()[None])
    found = model.num_changes
    assert found > 0
    model.take(model.idle_share(num_ended=4, num_tokens=9)[None])
    assert model.num_changes == found
    assert model.expected_tokens((), TIERS).tolist() == [0.0] * len(TIERS)
