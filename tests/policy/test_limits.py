"""Limits of single requests: what counts for a tier, what is packed, and what others may lose."""

from collections.abc import Hashable, Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_adaptive_spec.policy.acceptance.joint import NUM_SCALARS
from sglang_adaptive_spec.policy.acceptance.model import AcceptanceModel
from sglang_adaptive_spec.tiers import DecodeBatch, Observation, Plan, Tier, chain_tier
from tests.policy.rounds import (
    MAX_STEPS,
    Server,
    best_steps,
    constant,
    draw,
    goodput,
    round_ms,
    true_tokens,
)
from tests.policy.test_joint import policy as joint_policy
from tests.policy.test_packing import CHAINS, batch, in_force, nothing, packing, survivals

NAMES = ("a", "b", "c")


def taught(trees: tuple[Tier, ...] = ()) -> AcceptanceModel:
    model = AcceptanceModel(MAX_STEPS, trees)
    rng, hazards = np.random.default_rng(0), constant([0.9, 0.6, 0.8], 3)
    for _ in range(200):
        model.observe(NAMES, draw(rng, hazards, MAX_STEPS), chain_tier(MAX_STEPS))
    return model


@pytest.mark.parametrize("limits", [{"b": 2}, {"a": 0, "b": 1, "c": 3}, {"c": MAX_STEPS}])
def test_drafts_beyond_a_limit_count_for_no_tier(limits: dict[Hashable, int]) -> None:
    model = taught()
    alone = {name: model.survival_of([name])[:, 0].copy() for name in NAMES}
    model.limit(limits)
    for tier in map(chain_tier, range(MAX_STEPS + 1)):
        counted = {name: min(limits.get(name, tier.num_steps), tier.num_steps) for name in NAMES}
        expected = 3 + sum(alone[name][: counted[name]].sum() for name in NAMES)
        assert model.expected_tokens(NAMES, [tier])[0] == pytest.approx(expected)
        ceiling = model.ceiling(NAMES, tier)
        assert expected <= model.most_tokens(NAMES, tier, 0) <= ceiling + 1e-9
    survival = model.survival_of(NAMES)
    for row, name in enumerate(NAMES):
        assert (survival[limits.get(name, MAX_STEPS) :, row] == 0.0).all()
    found = model.tokens_given(NAMES, [chain_tier(3)], (3, 3, 3))
    assert found[0] == pytest.approx(
        3 + sum(alone[name][: min(limits.get(name, 3), 3)].sum() for name in NAMES)
    )


def test_a_tree_counts_no_deeper_than_a_limit() -> None:
    tree = Tier(3, 2, 6)
    model = taught((tree,))
    free = model.expected_tokens(NAMES, [tree])[0]
    model.limit({"a": 1, "b": 1, "c": 1})
    limited = model.expected_tokens(NAMES, [tree])[0]
    assert 3 < limited < free
    assert model.noise_beyond(NAMES, tree, 1) == pytest.approx(0.0)
    model.limit({})
    assert model.expected_tokens(NAMES, [tree])[0] == pytest.approx(free)


def test_what_is_learned_does_not_depend_on_limits() -> None:
    free, limited = taught(), AcceptanceModel(MAX_STEPS)
    limited.limit({"a": 0, "b": 1})
    rng, hazards = np.random.default_rng(0), constant([0.9, 0.6, 0.8], 3)
    for _ in range(200):
        limited.expected_tokens(NAMES, [chain_tier(3)])
        limited.observe(NAMES, draw(rng, hazards, MAX_STEPS), chain_tier(MAX_STEPS))
    assert limited.survival() == pytest.approx(free.survival(), rel=0.05)


@pytest.mark.parametrize("most", [0, 1, 3])
def test_a_batch_of_limits_drafts_no_deeper_from_its_first_round_on(most: int) -> None:
    server = Server(goodput(initial=7))
    server.run(50, constant(0.95, 4), name="free")
    assert max(server.steps[-20:]) > 3
    server.steps.clear()
    limits = {f"limited{idx}": most for idx in range(4)}
    server.run(3000, constant(0.95, 4), name="limited", limits=limits)
    assert max(server.steps) == most  # probes as well
    server.run(200, constant(0.95, 4), name="free again")
    assert server.steps[-1] > 3


def test_requests_without_a_limit_are_drafted_for_beside_others() -> None:
    hazards = constant(0.9, 4)
    server = Server(goodput())
    server.run(400, hazards, limits={"r0": 0})
    assert server.steps[-1] == best_steps(hazards[1:], lambda steps, _: round_ms(steps, 4))


@settings(deadline=None, max_examples=30)
@given(
    limits=st.dictionaries(st.integers(0, 15), st.integers(0, MAX_STEPS)),
    acceptance=st.lists(st.sampled_from([0.1, 0.3, 0.6, 0.9]), min_size=16, max_size=16),
)
def test_whatever_limits_clients_set_a_batch_is_served_as_fast_as_without_speculation(
    limits: Mapping[int, int], acceptance: list[float]
) -> None:
    """What counts is at most what is given, and zero steps are always there to choose."""
    hazards = constant(acceptance, 16)
    server = Server(goodput())
    of_rows: dict[Hashable, int] = {f"r{row}": limit for row, limit in limits.items()}
    server.run(300, hazards, limits=of_rows)
    server.tokens = server.total_ms = 0.0
    server.run(300, hazards, limits=of_rows)
    plain = true_tokens(hazards, 0) / round_ms(0, 16)
    assert server.tokens / server.total_ms >= 0.98 * plain


def test_rounds_that_give_more_than_counts_are_not_compared_with_what_was_expected() -> None:
    policy, limited = goodput(), DecodeBatch(2, ("a", "b"), limits={"a": 2})
    policy.choose(limited)
    policy._decide(limited)
    decision = policy.decision
    assert decision is not None
    comparable = [tier for tier in decision.tiers if decision.expected(Plan(tier), 2) is not None]
    assert comparable == [chain_tier(0), chain_tier(1), chain_tier(2)]
    packed = replace(decision, packed=(5.0, 9.0))
    assert packed.expected(Plan(chain_tier(3), verify_lens=(3, 4)), 2) == (5.0, 9.0)


# -- packed rounds --


def test_a_limit_is_a_row_s_longest_and_no_row_is_filled_with_what_does_not_count() -> None:
    survival = survivals(np.full((3, 3), 0.9))
    survival[1:, 0] = 0.0  # one draft counts
    survival[:, 1] = 0.0  # none
    for width in (4, 5, 6, 7):
        found = packing(width).best(batch(), CHAINS[3:], survival, nothing)
        assert found is not None
        lens = found.plan.verify_lens
        assert lens is not None
        assert sum(lens) == width
        assert (lens[0] <= 2, lens[1]) == (True, 1)
    assert packing(8).best(batch(), CHAINS[3:], survival, nothing) is None


@pytest.mark.parametrize(
    ("limits", "wanted"),
    [((1, 3, 3, 3), (2, 2, 2, 2)), ((3, 3, 3, 0), (3, 2, 2, 1)), ((1, 1, 1, 1), None)],
)
def test_between_decisions_no_row_is_filled_beyond_its_limit(
    limits: tuple[int, ...], wanted: tuple[int, ...] | None
) -> None:
    """Where four rows may have one draft each, eight tokens are all they can have."""
    packed = in_force(4, 1, 2, 1)
    survival = survivals(np.full((3, 4), 0.5))
    for row, limit in enumerate(limits):
        survival[limit:, row] = 0.0
    packed.keep(survival)
    assert (packed.newest and packed.newest.plan.verify_lens) == wanted


def test_confidence_does_not_choose_where_it_knows_no_limits() -> None:
    packed = in_force(4, 1, 2, 1)
    assert packed.newest is not None
    plan = packed.newest.plan._replace(by_confidence=(1.0, 0.0))
    packed.newest = packed.newest._replace(plan=plan)
    survival = survivals(np.full((3, 4), 0.5))
    packed.keep(survival)
    assert packed.newest.plan.by_confidence is not None
    packed.keep(survival, may_ask=False)
    assert packed.newest.plan.by_confidence is None


# -- attention DP --


def test_a_rank_tells_what_counts_of_its_requests() -> None:
    requests, limits = ("a", "b"), {"a": 0, "b": 1}
    free = joint_policy().share(requests, {})
    limited = joint_policy()
    survival = slice(NUM_SCALARS, NUM_SCALARS + limited.joint.max_steps)
    told = limited.share(requests, limits)[survival]
    assert told[0] == pytest.approx(free[survival][0] / 2)
    assert (told[1:] == 0.0).all()
    limited.note_own(requests)
    limited.observe(Observation(Plan(chain_tier(3)), 2, requests, (3, 3)))
    limited.after_results()
    assert (limited.share(requests)[survival][1:] == 0.0).all(), "those named last hold"
