"""The loop's promises, on fakes: who gets which result, when tiers change, what survives."""

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_adaptive_spec.controller import AdaptiveController
from sglang_adaptive_spec.policy.tiers import PLAIN_TIER, Observation, Tier, chain_tier

STARTUP = chain_tier(7)


class FakePool:
    """Remembers every activation."""

    def __init__(self) -> None:
        self.current = STARTUP
        self.activated: list[Tier] = []

    def activate(self, tier: Tier) -> None:
        self.current = tier
        self.activated.append(tier)


class ScriptedPolicy:
    """Chooses the tiers of a script, in order; the last one stays."""

    def __init__(self, *steps: int) -> None:
        self.script = [chain_tier(step) for step in steps]
        self.observed: list[Observation] = []
        self.failing = ""

    def choose(self, batch_size: int) -> Tier:
        if self.failing == "choose":
            raise ZeroDivisionError("scripted")
        return self.script.pop(0) if len(self.script) > 1 else self.script[0]

    def observe(self, observation: Observation) -> None:
        if self.failing == "observe":
            raise ZeroDivisionError("scripted")
        self.observed.append(observation)

    def reachable(self, batch_size: int) -> Sequence[Tier]:
        return self.script

    def slot(self, batch_size: int) -> int:
        return 8 if batch_size >= 8 else 1

    def without(self, tiers: Iterable[Tier]) -> "ScriptedPolicy":
        return self

    def describe(self) -> dict[str, Any]:
        return {}


def make(*steps: int) -> tuple[AdaptiveController, ScriptedPolicy, FakePool]:
    policy, pool = ScriptedPolicy(*steps), FakePool()
    return AdaptiveController(policy, pool, STARTUP), policy, pool


def test_a_late_result_goes_to_the_tier_batch_and_requests_that_produced_it() -> None:
    controller, policy, _ = make(3, 1, 0)
    controller.before_decode(2, ["a", "b"])
    controller.before_decode(2, ["a", "b"])  # the overlap schedule: launched before the result
    controller.observe([2, 0], 2)
    controller.before_decode(1, ["b"])
    controller.observe([1, 1], 2)
    controller.observe([0], 1)
    assert policy.observed == [
        Observation(chain_tier(3), 2, ("a", "b"), [2, 0]),
        Observation(chain_tier(1), 2, ("a", "b"), [1, 1]),
        Observation(PLAIN_TIER, 1, ("b",), [0]),
    ]


def test_a_result_of_another_batch_size_clears_what_is_in_flight_and_is_counted() -> None:
    controller, policy, _ = make(3)
    controller.before_decode(2, ["a", "b"])
    controller.before_decode(2, ["a", "b"])
    controller.observe([1, 1, 1], 3)
    controller.observe([1, 1], 2)  # its launch is gone, too
    assert policy.observed == []
    assert controller.counters.num_feedback_mismatches == 2
    controller.before_decode(1, ["a"])
    controller.observe([3], 1)
    assert [observation.num_correct_drafts for observation in policy.observed] == [[3]]


def test_the_requests_of_a_launch_do_not_change_with_the_schedulers_list() -> None:
    controller, policy, _ = make(3)
    requests = ["a", "b"]
    controller.before_decode(2, requests)
    requests.pop()
    controller.observe([1, 1], 2)
    assert policy.observed[0].requests == ("a", "b")


def test_extend_runs_on_the_startup_tier_and_decode_returns_to_the_chosen_one() -> None:
    controller, _, pool = make(1)
    controller.before_decode(1, ["a"])
    controller.before_extend()
    controller.before_extend()  # already in force: nothing to do
    controller.before_decode(1, ["a"])
    assert pool.activated == [chain_tier(1), STARTUP, chain_tier(1)]
    assert controller.counters.num_prefill_activations == 1


def test_only_changes_of_the_decode_tier_count_as_switches_and_carry_their_reason() -> None:
    controller, _, _ = make(1, 1, 3, 0)
    controller.before_decode(1, ["a"])  # the first choice switches from nothing
    controller.before_extend()
    controller.before_decode(1, ["a"])  # same tier after a prefill
    controller.before_decode(1, ["a"])  # same slot, other tier
    controller.before_decode(8, list("abcdefgh"))  # other slot, other tier
    assert controller.counters.num_switches == {"policy": 1, "batch_size": 1}


@pytest.mark.parametrize("call", ["choose", "observe"])
def test_a_failing_policy_keeps_the_last_tier_is_counted_and_logged_once(
    call: str, caplog: pytest.LogCaptureFixture
) -> None:
    controller, policy, pool = make(3)
    controller.before_decode(1, ["a"])
    controller.observe([1], 1)
    policy.failing = call
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            controller.before_decode(1, ["a"])
            controller.observe([1], 1)
    assert pool.current == chain_tier(3)
    assert controller.counters.num_policy_errors == 3
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert call in caplog.text


@given(st.lists(st.tuples(st.sampled_from([0, 1, 3, 5, 7]), st.integers(1, 16)), min_size=1))
def test_every_result_finds_its_launch_at_any_lag(rounds: list[tuple[int, int]]) -> None:
    controller, policy, _ = make(*[steps for steps, _ in rounds])
    expected = []
    for index, (steps, batch_size) in enumerate(rounds):
        controller.before_decode(batch_size, [index] * batch_size)
        expected.append((chain_tier(steps), batch_size, (index,) * batch_size))
    for steps, batch_size in rounds:
        controller.observe([steps] * batch_size, batch_size)
    seen = [(seen.tier, seen.batch_size, seen.requests) for seen in policy.observed]
    assert seen == expected
    assert controller.counters.num_feedback_mismatches == 0
