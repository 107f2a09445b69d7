"""Every result goes to the round that produced it; one that fits none costs no other its own."""

from hypothesis import given
from hypothesis import strategies as st

from sglang_adaptive_spec.loop.controller import AdaptiveController
from sglang_adaptive_spec.loop.round import MAX_ROUNDS
from sglang_adaptive_spec.tiers import PLAIN_TIER, DecodeBatch, Observation, Plan, chain_tier
from tests.controller_fakes import (
    STARTUP,
    FakeClock,
    FakePool,
    PatientPolicy,
    ScriptedPolicy,
    decode,
    make,
)

LAUNCHES = st.tuples(st.sampled_from([0, 1, 3, 5, 7]), st.integers(1, 16))


def test_a_late_result_goes_to_the_tier_batch_and_requests_that_produced_it() -> None:
    controller, policy, _ = make(3, 1, 0)
    decode(controller, ["a", "b"])
    decode(controller, ["a", "b"])  # the overlap schedule: launched before the result
    controller.observe([2, 0], 2)
    decode(controller, ["b"])
    controller.observe([1, 1], 2)
    controller.observe([0], 1)
    assert policy.observed == [
        Observation(Plan(chain_tier(3)), 2, ("a", "b"), [2, 0]),
        Observation(Plan(chain_tier(1)), 2, ("a", "b"), [1, 1]),
        Observation(Plan(PLAIN_TIER), 1, ("b",), [0]),
    ]


def test_a_result_of_no_round_in_flight_is_counted_and_costs_no_other_its_own() -> None:
    controller, policy, _ = make(3, 1)
    decode(controller, ["a", "b"])
    decode(controller, ["a", "b"])
    controller.observe([1, 1, 1], 3)
    controller.observe([2, 1], 2)
    controller.observe([1, 0], 2)
    controller.observe([1], 1)  # nothing is in flight
    observed = [
        (observation.tier, observation.num_correct_drafts) for observation in policy.observed
    ]
    assert observed == [(chain_tier(3), [2, 1]), (chain_tier(1), [1, 0])]
    assert controller.counters.num_feedback_mismatches == 2


def test_a_result_that_never_comes_is_counted_and_the_next_one_finds_its_round() -> None:
    controller, policy, _ = make(3, 1, 5)
    controller.clock = clock = FakeClock()
    decode(controller, ["a", "b"])  # its result is lost
    decode(controller)
    decode(controller)
    controller.observe([1], 1)
    controller.observe([4], 1)
    observed = [
        (observation.tier, observation.num_correct_drafts) for observation in policy.observed
    ]
    assert observed == [(chain_tier(1), [1]), (chain_tier(5), [4])]
    assert controller.counters.num_feedback_mismatches == 1
    assert clock.num_polls == 2  # periods are known by the number of a round: none of the lost


def test_rounds_whose_results_never_come_are_given_up_and_counted() -> None:
    controller, policy, _ = make(3)
    controller.clock = clock = FakeClock()
    for _ in range(MAX_ROUNDS + 1):
        decode(controller)
    assert controller.counters.num_feedback_mismatches == MAX_ROUNDS
    controller.observe([2], 1)
    assert len(policy.observed) == clock.num_polls == 1


def test_a_result_that_cannot_be_counted_is_a_failure_survived() -> None:
    controller, policy, _ = make(3)
    decode(controller)
    controller.observe([4], 1)  # more than the round drafted
    assert policy.observed == []
    assert controller.counters.num_policy_errors == 1
    decode(controller)
    controller.observe([3], 1)
    assert len(policy.observed) == 1


def test_a_result_without_its_launch_is_found_out_among_those_that_wait() -> None:
    policy = PatientPolicy(3)
    controller = AdaptiveController(policy, FakePool(), STARTUP)
    for _ in range(3):
        decode(controller)
    controller.observe([1], 1)
    controller.observe([1, 1], 2)
    controller.observe([1], 1)
    assert len(policy.observed) == 2
    assert controller.counters.num_feedback_mismatches == 1


@given(st.lists(LAUNCHES, min_size=1, max_size=MAX_ROUNDS))
def test_every_result_finds_its_launch_at_any_lag(rounds: list[tuple[int, int]]) -> None:
    controller, policy, _ = make(*[steps for steps, _ in rounds])
    expected = []
    for index, (steps, batch_size) in enumerate(rounds):
        decode(controller, [index] * batch_size)
        expected.append((chain_tier(steps), batch_size, (index,) * batch_size))
    for steps, batch_size in rounds:
        controller.observe([steps] * batch_size, batch_size)
    seen = [(seen.tier, seen.batch_size, seen.requests) for seen in policy.observed]
    assert seen == expected
    assert controller.counters.num_feedback_mismatches == 0


def test_the_clock_is_told_of_every_round_whose_result_came() -> None:
    clock, policy = FakeClock(), ScriptedPolicy(3)
    controller = AdaptiveController(policy, FakePool(), STARTUP, clock=clock)
    policy.failing = "observe"
    controller.before_decode(DecodeBatch(1, ("a",)))
    controller.observe([1], 1)
    assert clock.num_polls == 1  # the policy failed, the result was processed all the same
    controller.before_decode(DecodeBatch(1, ("a",)))
    controller.observe([1, 1], 2)  # of no round in flight
    assert clock.num_polls == 1
