"""The replay runs rounds as the server does: late results, catch-ups, requests that come and go."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from sglang_adaptive_spec.ladder import Ladder
from sglang_adaptive_spec.policy.protocol import SimplePolicy
from sglang_adaptive_spec.simulate.regret import StaticPolicy, replay_oracle
from sglang_adaptive_spec.simulate.replay import Replay
from sglang_adaptive_spec.simulate.synthetic import Phase, SyntheticWorkload
from sglang_adaptive_spec.simulate.true_costs import ExampleCosts, NoSpeculation
from sglang_adaptive_spec.tiers import (
    CATCH_UP_ROUNDS,
    PLAIN_TIER,
    DecodeBatch,
    Observation,
    Plan,
    RoundTime,
    Tier,
    chain_tier,
)

SMALL = SyntheticWorkload("small", 2.0, ((0, 4),), (Phase(0, (0.7,)),), mean_tokens=60)


class LinearCosts:
    """5 ms, 1 ms more per step; catching up takes 0.1 ms for every round that it makes up for."""

    def round_ms(self, tier: Tier, batch_size: int, context_tokens: int) -> float:
        return 5.0 + tier.num_steps + (0.1 if tier == PLAIN_TIER else 0.0)

    def plain_extra_ms(self, batch_size: int, context_tokens: int) -> float:
        return 0.1


class Scripted(SimplePolicy):
    """Chooses by round number and keeps all it is told, in order."""

    def __init__(self, tier_of: Callable[[int], Tier]) -> None:
        self.tier_of = tier_of
        self.ladder = Ladder({1: [PLAIN_TIER, chain_tier(7)]})
        self.events: list[DecodeBatch | Observation | RoundTime] = []
        self.num_chosen = 0

    def choose(self, batch: DecodeBatch) -> Plan:
        self.events.append(batch)
        self.num_chosen += 1
        return Plan(self.tier_of(self.num_chosen - 1))

    def observe(self, observation: Observation) -> None:
        self.events.append(observation)

    def observe_time(self, round_time: RoundTime) -> None:
        self.events.append(round_time)

    def of(self, kind: type) -> list:
        return [event for event in self.events if isinstance(event, kind)]


def replayed(tiers: Sequence[int], workload: SyntheticWorkload = SMALL) -> Scripted:
    """Replays a workload at the given steps, the last of them for ever."""
    policy = Scripted(lambda idx: chain_tier(tiers[min(idx, len(tiers) - 1)]))
    Replay(policy, workload, LinearCosts()).run()
    return policy


def test_results_arrive_one_round_late_and_periods_one_later() -> None:
    long = replace(SMALL, mean_tokens=10_000, duration_s=0.1)
    kinds = [type(event).__name__[0] for event in replayed([3], long).events]
    # The first use of a tier is not timed, here as on a server.
    assert "".join(kinds[:11]) == "D" + "DO" + "DO" + "DOR" + "DOR"


def test_a_period_that_a_prefill_cut_into_says_so() -> None:
    policy = replayed([3])
    batches, times = policy.of(DecodeBatch), policy.of(RoundTime)
    count = Counter((batch.size, batch.context_tokens) for batch in batches)
    cut = {
        (old.size, old.context_tokens)
        for old, new in pairwise(batches)
        if not set(new.requests) <= set(old.requests)
        and count[old.size, old.context_tokens] == 1  # else it names another round as well
    }
    assert len(cut) > 5
    told = {(time.batch_size, time.context_tokens): time.num_joined for time in times}
    assert len(told) > 50
    assert all(told[period] for period in told.keys() & cut)
    assert sum(map(bool, told.values())) > 5


def test_observations_name_the_round_they_belong_to() -> None:
    policy = replayed([0, 0, 2, 5, 1, 3])
    batches, observations = policy.of(DecodeBatch), policy.of(Observation)
    for batch, observation in zip(batches, observations, strict=False):
        assert observation.requests == batch.requests
        assert observation.batch_size == batch.size == len(observation.num_correct_drafts)
        assert max(observation.num_correct_drafts) <= observation.tier.num_steps


def test_leaving_zero_steps_takes_one_more_plain_round() -> None:
    tiers = [seen.tier.num_steps for seen in replayed([3, 0, 0, 3, 3, 5]).of(Observation)]
    assert tiers[:6] == [3, 0, 0, 0, 3, 5]


def test_zero_steps_catch_up_now_and_then_and_then_know_the_first_draft() -> None:
    long = replace(SMALL, mean_tokens=10_000)
    policy = replayed([0], long)
    times, seen = policy.of(RoundTime), policy.of(Observation)
    catch_ups = [idx for idx, one in enumerate(seen) if one.plan.is_catch_up]
    every = CATCH_UP_ROUNDS
    assert catch_ups[:3] == [every - 1, 2 * every - 1, 3 * every - 1]
    known = [idx for idx, one in enumerate(seen) if one.first_draft_correct is not None]
    assert known[:3] == [0, every, 2 * every]  # the prefill knew it, too
    first = [bool(one) for idx in known for one in seen[idx].first_draft_correct]
    assert np.mean(first) == pytest.approx(0.7, abs=4 * (0.7 * 0.3 / len(first)) ** 0.5)
    plain = np.mean([time.ms for time in times if not time.plan.is_catch_up])
    caught = np.mean([time.ms for time in times if time.plan.is_catch_up])
    assert plain == pytest.approx(5.0, rel=0.01)
    assert caught == pytest.approx(5.0 + 0.1 * every, rel=0.02)


def test_a_request_that_joined_after_the_catch_up_has_no_known_first_draft() -> None:
    policy = replayed([0], replace(SMALL, mean_tokens=16, duration_s=4.0))
    mixed = [
        seen.first_draft_correct
        for seen in policy.of(Observation)
        if seen.first_draft_correct and None in seen.first_draft_correct
    ]
    assert mixed


def test_zero_steps_take_what_the_table_says_on_average() -> None:
    result = Replay(StaticPolicy(PLAIN_TIER), SMALL, LinearCosts()).run()
    assert result.time_s / result.num_rounds * 1e3 == pytest.approx(5.1, rel=0.005)
    none = Replay(StaticPolicy(PLAIN_TIER), SMALL, NoSpeculation(LinearCosts())).run()
    assert none.time_s / none.num_rounds * 1e3 == pytest.approx(5.0)


def test_acceptance_follows_the_hazards() -> None:
    for num_steps in (1, 3, 7):
        seen = replayed([num_steps], replace(SMALL, duration_s=8.0)).of(Observation)
        tokens = [count + 1 for one in seen for count in one.num_correct_drafts]
        expected = sum(0.7**depth for depth in range(num_steps + 1))
        assert np.mean(tokens) == pytest.approx(expected, rel=0.03)


def test_every_policy_meets_the_same_luck_at_the_same_position() -> None:
    def outcomes(num_steps: int) -> dict[tuple[int, int], int]:
        """Accepted drafts by request and output position, up to three."""
        found, positions = {}, {}
        for one in replayed([num_steps]).of(Observation):
            for request, count in zip(one.requests, one.num_correct_drafts, strict=True):
                start = positions.get(request, 0)
                found[request, start] = min(count, 3)
                positions[request] = start + count + 1
        return found

    shallow, deep = outcomes(3), outcomes(7)
    shared = set(shallow) & set(deep)
    assert len(shared) > 100
    assert {place: shallow[place] for place in shared} == {place: deep[place] for place in shared}


def test_requests_finish_and_the_next_ones_take_their_place() -> None:
    batches = replayed([3]).of(DecodeBatch)
    assert all(batch.size == 4 for batch in batches)
    assert max(max(batch.requests) for batch in batches) > 20


def test_the_load_ramps_up_at_once_and_down_as_requests_finish() -> None:
    load = ((0.0, 1), (0.5, 8), (1.0, 2))
    batches = replayed([3], replace(SMALL, load=load)).of(DecodeBatch)
    sizes = [(batch.now_s, batch.size) for batch in batches]
    assert {size for now_s, size in sizes if now_s < 0.5} == {1}
    assert {size for now_s, size in sizes if 0.5 <= now_s < 1.0} == {8}
    assert sizes[-1][1] == 2
    falling = [size for now_s, size in sizes if now_s >= 1.0]
    assert falling == sorted(falling, reverse=True)


def test_a_neighbour_slows_every_round_down() -> None:
    slow = replace(SMALL, phases=(Phase(0, (0.7,), slowdown=1.5),))
    alone = Replay(StaticPolicy(chain_tier(3)), SMALL, LinearCosts()).run()
    beside = Replay(StaticPolicy(chain_tier(3)), slow, LinearCosts()).run()
    per_round = beside.time_s / beside.num_rounds / (alone.time_s / alone.num_rounds)
    assert per_round == pytest.approx(1.5)


def test_a_replay_repeats_itself() -> None:
    assert replayed([3, 5, 0]).events == replayed([3, 5, 0]).events


def test_the_oracle_follows_the_phases() -> None:
    workload = replace(SMALL, phases=(Phase(0, (0.1,)), Phase(1.0, (0.95,))))
    tiers = tuple(map(chain_tier, (0, 1, 3, 7)))
    oracle = replay_oracle(workload, LinearCosts(), tiers)
    assert oracle.num_switches == 1
    for tier in tiers:
        static = Replay(StaticPolicy(tier), workload, LinearCosts()).run()
        assert static.tokens_per_s < oracle.tokens_per_s


def test_example_costs_are_the_measured_ones_and_rise_with_batch_depth_and_context() -> None:
    costs = ExampleCosts("flashinfer")
    none = NoSpeculation(costs)
    assert none.round_ms(PLAIN_TIER, 64, 64 * 256) == pytest.approx(6.1)
    assert costs.round_ms(chain_tier(7), 128, 128 * 256) == pytest.approx(32.1)
    assert costs.round_ms(chain_tier(3), 48, 48 * 256) == pytest.approx((8.0 + 10.8) / 2)
    for steps in (0, 1, 2, 3, 5, 7, 10):
        tier = chain_tier(steps)
        by_size = [costs.round_ms(tier, size, 256 * size) for size in range(1, 200)]
        assert by_size == sorted(by_size)
        assert costs.round_ms(tier, 8, 100_000) > costs.round_ms(tier, 8, 10_000)
    # From 2 steps on: at batch 16 one step was measured slower than three.
    at_64 = [costs.round_ms(chain_tier(steps), 64, 0) for steps in (0, 1, 2, 3, 5, 7, 10)]
    assert at_64 == sorted(at_64)
