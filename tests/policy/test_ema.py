"""The EMA policy on its own: what it may choose, what it averages, when it rests."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_adaptive_spec.config.schema import AdaptiveConfig, SlotConfig, load_config
from sglang_adaptive_spec.policy.build import build_policy
from sglang_adaptive_spec.policy.ema import EmaPolicy
from sglang_adaptive_spec.tiers import PLAIN_TIER, DecodeBatch, Observation, Plan, Tier, chain_tier

steps_sets = st.sets(st.integers(0, 8), min_size=1, max_size=5).map(lambda s: tuple(sorted(s)))
slot_configs = st.builds(
    SlotConfig,
    steps_sets,
    ema_alpha=st.floats(0.01, 1),
    update_interval=st.integers(1, 5),
    warmup_batches=st.integers(0, 5),
    up_hysteresis=st.floats(-2, 2),
    down_hysteresis=st.floats(-2, 2),
    ceiling_coeff=st.one_of(st.just(0.0), st.floats(0, 4)),
)
policies = st.builds(
    EmaPolicy,
    st.dictionaries(st.integers(0, 64), slot_configs, min_size=1, max_size=3).map(
        lambda slots: AdaptiveConfig("test", None, "ema", slots)
    ),
    st.integers(0, 8),
)
drafts = st.lists(st.integers(0, 8), max_size=6)
rounds = st.lists(st.tuples(st.integers(0, 80), drafts), max_size=60)


def policy_with(initial_steps: int = 3, **slot) -> EmaPolicy:
    defaults = {"candidate_steps": (1, 3, 7), "warmup_batches": 0, "update_interval": 1}
    config = AdaptiveConfig("test", None, "ema", {1: SlotConfig(**{**defaults, **slot})})
    return EmaPolicy(config, initial_steps)


def observe(policy: EmaPolicy, accepted: list[int], tier: Tier | None = None) -> None:
    size = len(accepted)
    tier = tier or policy.choose(DecodeBatch(size, tuple(range(size)))).tier
    policy.observe(Observation(Plan(tier), size, range(size), accepted))


def state(policy: EmaPolicy):
    return policy.describe()


@given(policies, rounds)
def test_the_choice_is_always_reachable_and_the_average_finite(policy: EmaPolicy, rounds):
    for batch_size, accepted in rounds:
        before = policy.choose(DecodeBatch(batch_size, ())).tier
        assert before in policy.ladder.of(batch_size)
        changed = policy.update(accepted, batch_size)
        assert changed == (policy.choose(DecodeBatch(batch_size, ())).tier != before)
        average = state(policy)[str(policy.ladder.bound(batch_size))]["ema_accept_len"]
        assert math.isfinite(average)
        assert -1 <= average <= 8


@given(policies, rounds)
def test_a_round_without_requests_changes_nothing(policy: EmaPolicy, rounds):
    for batch_size, accepted in rounds:
        policy.update(accepted, batch_size)
        before = state(policy)
        assert policy.update([], batch_size) is False
        observe(policy, [])
        assert state(policy) == before


@given(policies, rounds, st.integers())
def test_the_order_of_requests_in_a_batch_is_irrelevant(policy: EmaPolicy, rounds, seed):
    twin, shuffle = EmaPolicy(policy.config, policy.initial_steps), random.Random(seed).shuffle
    for batch_size, accepted in rounds:
        policy.update(accepted, batch_size)
        shuffle(accepted)
        twin.update(accepted, batch_size)
    assert state(policy) == state(twin)


@given(
    st.sets(st.integers(1, 8), min_size=1).map(lambda steps: tuple(sorted(steps))),
    st.floats(0.1, 1),
    st.floats(-2, 2),
    st.floats(0, 2),
    st.lists(st.integers(0, 8), min_size=1, max_size=6),
)
def test_steady_traffic_stops_switching(candidates, alpha, up, gap, accepted):
    """With no zero step to probe from, no ceiling, and falling no easier than rising is hard."""
    policy = policy_with(
        candidates[0],
        candidate_steps=candidates,
        ema_alpha=alpha,
        up_hysteresis=up,
        down_hysteresis=up - gap,
    )

    def serve() -> bool:
        steps = policy.choose(DecodeBatch(1, ())).tier.num_steps
        return policy.update([min(count, steps) for count in accepted], 1)

    for _ in range(600):  # 0.9 ** 600 is far below the resolution of a float
        serve()
    assert not any(serve() for _ in range(100))


def test_good_acceptance_deepens_and_bad_acceptance_shortens():
    policy = policy_with()
    for _ in range(20):
        observe(policy, [policy.choose(DecodeBatch(1, ())).tier.num_steps])
    assert policy.choose(DecodeBatch(1, ())).tier == chain_tier(7)
    for _ in range(40):
        observe(policy, [0])
    assert policy.choose(DecodeBatch(1, ())).tier == chain_tier(1)


def test_nothing_moves_before_the_warmup_and_then_only_every_interval():
    rhythm = {"warmup_batches": 3, "update_interval": 2, "ema_alpha": 0.1}
    policy = policy_with(1, candidate_steps=(1, 2, 3, 4), **rhythm)
    trace = []
    for _ in range(12):
        policy.update([4], 1)
        trace.append(policy.choose(DecodeBatch(1, ())).tier.num_steps)
    # After rounds 5, 7, 9, 11 it looks; the averages there are 1.64, 2.09, 2.45 and 2.75.
    assert trace == [1] * 4 + [3] * 6 + [4] * 2


def test_the_ceiling_caps_a_tier_but_never_a_rise():
    policy = policy_with(7, ema_alpha=1.0, ceiling_coeff=1.0)
    policy.update([3], 1)  # 3 > 2.25 keeps 7, the ceiling of 3 does not
    assert policy.choose(DecodeBatch(1, ())).tier.num_steps == 3
    policy.update([3], 1)
    assert policy.choose(DecodeBatch(1, ())).tier.num_steps == 7


def test_zero_steps_average_nothing_and_probe_the_next_step():
    policy = policy_with(0, candidate_steps=(0, 3), update_interval=2)
    assert policy.choose(DecodeBatch(1, ())).tier == PLAIN_TIER
    assert policy.update([0], 1) is False
    assert state(policy)["1"]["ema_accept_len"] == -1.0
    assert policy.update([0], 1) is True
    assert policy.choose(DecodeBatch(1, ())).tier == chain_tier(3)
    assert state(policy)["1"]["ema_accept_len"] == 2.0


def test_a_slot_with_only_zero_steps_stays_there():
    policy = policy_with(3, candidate_steps=(0,))
    assert not any(policy.update([0], 1) for _ in range(5))
    assert policy.choose(DecodeBatch(1, ())).tier == PLAIN_TIER


def test_a_round_of_another_tier_is_counted_and_not_averaged():
    policy = policy_with(3)
    before = state(policy)
    observe(policy, [7, 7], tier=chain_tier(7))
    assert (state(policy), policy.num_stale) == (before, 1)
    observe(policy, [0, 0])
    assert policy.num_stale == 1
    assert state(policy)["1"]["ema_accept_len"] < 2.0


def test_observe_is_the_hosts_update_for_a_round_of_the_slots_own_tier():
    policy, twin = policy_with(), policy_with()
    rng = random.Random(1)
    for _ in range(200):
        accepted = [rng.randrange(8) for _ in range(3)]
        observe(policy, accepted)
        twin.update(accepted, 3)
    assert state(policy) == state(twin)
    assert policy.num_stale == 0


@pytest.mark.parametrize(
    ("batch_size", "slot"), [(0, 1), (1, 1), (7, 1), (8, 8), (31, 8), (32, 32), (500, 32)]
)
def test_a_batch_belongs_to_the_slot_of_the_largest_lower_bound(batch_size: int, slot: int):
    policy = EmaPolicy(load_config("conservative"), 3)
    assert policy.ladder.bound(batch_size) == slot
    steps = policy.config.slots[slot].candidate_steps
    assert [tier.num_steps for tier in policy.ladder.of(batch_size)] == list(steps)


def test_slots_average_apart():
    policy = EmaPolicy(load_config("conservative"), 3)
    policy.update([0] * 8, 8)
    assert [slot["ema_accept_len"] for slot in state(policy).values()] == [2.0, 1.6, 0.0]


def test_describe_shows_every_slot_as_server_info_does():
    assert EmaPolicy(load_config("conservative"), 7).describe() == {
        "1": {"candidate_steps": [1, 3, 7], "current_steps": 7, "ema_accept_len": 6.0},
        "8": {"candidate_steps": [1, 3], "current_steps": 3, "ema_accept_len": 2.0},
        "32": {"candidate_steps": [1], "current_steps": 1, "ema_accept_len": 0.0},
    }


def test_a_withdrawn_tier_is_never_reachable_and_the_initial_step_snaps_as_the_host_does():
    config = load_config("host-default")
    policy = build_policy(config, 7, config.ladder.without([chain_tier(7), PLAIN_TIER]))
    reachable = {tier.num_steps for size in range(1, 200) for tier in policy.ladder.of(size)}
    assert reachable == {1, 3, 5}
    # 7 is gone: the middle of the rest; the other lost its only step: the smallest.
    assert policy.choose(DecodeBatch(1, ())).tier.num_steps == 3
    assert policy.choose(DecodeBatch(64, ())).tier.num_steps == 1
