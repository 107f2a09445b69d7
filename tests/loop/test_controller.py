"""The loop's promises, on fakes: who gets which result, when tiers change, what survives."""

import logging
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_adaptive_spec.loop.catch_up import CatchUpSchedule
from sglang_adaptive_spec.loop.controller import AdaptiveController, nearest
from sglang_adaptive_spec.loop.sharing import SHARE_ROUNDS, SharedTimes
from sglang_adaptive_spec.tiers import (
    PLAIN_TIER,
    DecodeBatch,
    Plan,
    RoundTime,
    Tier,
    chain_tier,
)
from tests.controller_fakes import (
    INTERVAL,
    STARTUP,
    FakeClock,
    FakePool,
    KnownFirstDrafts,
    PatientPolicy,
    decode,
    lagging,
    make,
)


def test_extend_runs_on_the_startup_tier_and_decode_returns_to_the_chosen_one() -> None:
    controller, _, pool = make(1)
    decode(controller)
    controller.before_extend()
    controller.before_extend()  # already in force: nothing to do
    decode(controller)
    assert pool.activated == [chain_tier(1), STARTUP, chain_tier(1)]
    assert controller.counters.num_prefill_activations == 1


def test_only_changes_of_the_decode_tier_count_as_switches_and_carry_their_reason() -> None:
    controller, _, _ = make(1, 1, 3, 0)
    decode(controller)  # the first choice switches from nothing
    controller.before_extend()
    decode(controller)  # same tier after a prefill
    decode(controller)  # same slot, other tier
    decode(controller, "abcdefgh")  # other slot, other tier
    assert controller.counters.num_switches == {
        "policy": 1,
        "found": 0,
        "batch_size": 1,
        "pin": 0,
        "exact": 0,
        "context_end": 0,
    }


# -- zero steps for the text --


@pytest.mark.parametrize("is_pinned", [False, True])
def test_a_batch_that_needs_zero_steps_runs_them_whoever_chose_otherwise(is_pinned: bool) -> None:
    controller, _, _ = make(3, 5, 7)
    decode(controller)
    controller.pin(STARTUP if is_pinned else None)
    batch = DecodeBatch(2, ("a", "b"), exact="processors")
    launches = [controller.before_decode(batch) for _ in range(2)]
    assert [launch.tier for launch in launches] == [PLAIN_TIER] * 2
    assert not any(launch.is_probe for launch in launches)
    assert controller.counters.num_exact_rounds == {"processors": 2}
    assert controller.counters.num_switches["exact"] == 1
    # The policy was not asked about such batches: its script has not moved on.
    assert decode(controller, "ab").tier == (STARTUP if is_pinned else chain_tier(5))


# -- pinned by an operator --


def test_a_pinned_tier_stays_until_it_is_let_go_and_the_policy_learns_all_the_while() -> None:
    controller, policy, pool = make(1, 3)
    decode(controller)
    controller.pin(STARTUP)
    launches = [decode(controller) for _ in range(3)]
    assert [launch.tier for launch in launches] == [STARTUP] * 3
    assert (pool.current, controller.counters.num_switches["pin"]) == (STARTUP, 1)
    for _ in range(4):
        controller.observe([0], 1)
    assert len(policy.observed) == 4
    controller.pin(None)
    assert decode(controller).tier == chain_tier(3)
    assert controller.counters.num_pins == 2


def test_pinned_to_drafts_a_server_leaves_zero_steps_with_a_catch_up() -> None:
    controller, _, _ = lagging(0)
    decode(controller)
    controller.pin(STARTUP)
    launches = [decode(controller) for _ in range(2)]
    tiers = [(launch.tier, launch.plan.is_catch_up) for launch in launches]
    assert tiers == [(PLAIN_TIER, True), (STARTUP, False)]


@pytest.mark.parametrize(
    ("wanted", "allowed", "expected"),
    [(5, (0, 3, 5), 5), (5, (0, 3, 7), 3), (1, (3, 7), 3), (7, (0,), 0)],
)
def test_where_a_batch_may_not_run_the_pinned_tier_the_next_below_runs(
    wanted: int, allowed: Sequence[int], expected: int
) -> None:
    tiers = [chain_tier(steps) for steps in allowed]
    assert nearest(chain_tier(wanted), tiers) == chain_tier(expected)


# -- near the end of the context --


@pytest.mark.parametrize("pinned", [None, STARTUP])
def test_near_the_end_of_the_context_the_shallowest_tier_runs(pinned: Tier | None) -> None:
    controller, policy, _ = make(3, 1)
    if pinned is not None:
        controller.pin(pinned)
    launches = [decode(controller, is_near_end=is_near_end) for is_near_end in (False, True, False)]
    away = pinned or chain_tier(1)
    assert [launch.tier for launch in launches] == [pinned or chain_tier(3), chain_tier(1), away]
    for launch in launches:
        controller.observe([0], 1)
        assert policy.observed[-1].tier == launch.tier


def test_what_falls_behind_near_the_end_catches_up_before_the_others_draft_on() -> None:
    controller, _, _ = lagging(3, 3, 3, 3, 0)
    near = [decode(controller, "ab", is_near_end=True) for _ in range(2)]
    after = [decode(controller, "a") for _ in range(2)]
    assert [(launch.tier.num_steps, launch.plan.is_catch_up) for launch in (*near, *after)] == [
        *((0, False), (0, False)),
        *((0, True), (3, False)),
    ]


# -- zero steps: the draft falls behind and catches up --


def test_leaving_zero_steps_takes_one_more_plain_round_that_catches_up() -> None:
    controller, policy, pool = lagging(0, 0, 3)
    launches = [decode(controller) for _ in range(4)]
    tiers = [(launch.tier.num_steps, launch.plan.is_catch_up) for launch in launches]
    assert tiers == [(0, False), (0, False), (0, True), (3, False)]
    assert pool.activated == [PLAIN_TIER, chain_tier(3)]
    for _ in launches:
        controller.observe([0], 1)
    assert [seen.tier for seen in policy.observed] == [launch.tier for launch in launches]


def test_a_policy_that_changes_its_mind_in_the_extra_round_stays_at_zero_steps() -> None:
    controller, _, _ = lagging(0, 3, 0)
    launches = [decode(controller) for _ in range(3)]
    assert [launch.tier for launch in launches] == [PLAIN_TIER] * 3
    assert [launch.plan.is_catch_up for launch in launches] == [False, True, False]
    assert sum(controller.counters.num_switches.values()) == 0


def test_a_catch_up_is_due_after_the_interval_and_counts_anew_from_there() -> None:
    controller, _, _ = lagging(0)
    launches = [decode(controller) for _ in range(2 * INTERVAL + 1)]
    due = [number for number, launch in enumerate(launches, 1) if launch.plan.is_catch_up]
    assert due == [INTERVAL, 2 * INTERVAL]


def test_runs_end_with_a_catch_up_where_no_other_one_fits() -> None:
    controller, policy, _ = lagging(0)
    policy.length = 2
    launches = [decode(controller, most_decodes=8) for _ in range(4)]
    assert [(each.plan.num_decodes, each.plan.is_catch_up) for each in launches] == [
        *((2, False), (2, True)),
        *((2, False), (2, True)),
    ]
    assert policy.rooms == [4, 2, 4, 2]
    for _ in launches:
        controller.observe([0], 1)
    assert [seen.plan.num_decodes for seen in policy.observed] == [2] * 4
    assert controller.counters.num_runs == {2: 4}


def test_a_run_is_what_is_left_until_the_catch_up() -> None:
    controller, policy, _ = lagging(0)
    decode(controller)
    policy.length = 8
    launch = decode(controller, most_decodes=8)
    assert (policy.rooms, launch.plan.num_decodes, launch.plan.is_catch_up) == ([3], 3, True)


def test_a_round_cut_short_counts_as_what_it_ran() -> None:
    controller, policy, _ = lagging(0)
    policy.length = 8
    controller.draft_schedule = CatchUpSchedule(99)
    launched = decode(controller, most_decodes=8)
    controller.cut_short(3)
    assert controller.draft_schedule.debts(launched.batch.requests) == [3]
    controller.observe([0], 1)
    assert [seen.plan.num_decodes for seen in policy.observed] == [3]
    assert controller.counters.num_runs == {3: 1}
    assert controller.counters.num_cut_runs == 1


def test_a_round_that_catches_up_may_be_cut_short() -> None:
    controller, policy, _ = lagging(0)
    decode(controller)
    policy.length = 8
    launched = decode(controller, most_decodes=8)
    assert launched.plan.is_catch_up
    controller.cut_short(2)
    assert not controller.draft_schedule.is_behind(launched.batch.requests)
    assert launched.plan.num_decodes == 2


def test_while_a_plan_stands_a_run_is_asked_for_again_only_where_it_does_not_fit() -> None:
    controller, policy, _ = lagging(0)
    policy.rounds_at_once, policy.length = 16, 4
    controller.draft_schedule = CatchUpSchedule(99)
    launches = [decode(controller, most_decodes=most) for most in (8, 8, 5, 2, 2, 8)]
    assert [each.plan.num_decodes for each in launches] == [4, 4, 4, 2, 2, 4]
    assert policy.rooms == [8, 2, 8]


def test_leaving_zero_steps_runs_one_decode_and_so_does_whoever_has_no_room() -> None:
    controller, policy, _ = lagging(0, 3)
    policy.length = 8
    first = decode(controller)  # the scheduler has no room for more
    last = decode(controller, most_decodes=8)
    assert (first.plan.num_decodes, last.plan.num_decodes, last.plan.is_catch_up) == (1, 1, True)
    assert policy.rooms == []


def test_runs_of_a_batch_too_large_to_draft_know_no_catch_up() -> None:
    controller, policy, _ = lagging(0)
    policy.length, policy.most_drafting = 8, 1
    launches = [decode(controller, ("a", "b"), most_decodes=8) for _ in range(3)]
    assert [(each.plan.num_decodes, each.plan.is_catch_up) for each in launches] == [(8, False)] * 3


def test_a_policy_that_fails_about_runs_gets_single_decodes() -> None:
    controller, policy, _ = lagging(0)
    policy.failing = "run_length"
    assert decode(controller, most_decodes=8).plan.num_decodes == 1
    assert controller.counters.num_policy_errors == 1


def test_a_request_that_joins_is_caught_up_with_the_others() -> None:
    controller, _, _ = lagging(0)
    decode(controller, ["a"])
    decode(controller, ["a"])
    launches = [decode(controller, ["a", "b"]) for _ in range(INTERVAL)]
    assert [launch.plan.is_catch_up for launch in launches].index(True) == INTERVAL - 3  # by "a"


def test_a_batch_that_is_too_large_to_draft_is_not_caught_up_until_it_is_smaller() -> None:
    controller, policy, _ = lagging(0)
    policy.most_drafting = 2
    large = [decode(controller, "abc") for _ in range(3 * INTERVAL)]
    small = [decode(controller, "ab") for _ in range(INTERVAL + 1)]
    assert not any(launch.plan.is_catch_up for launch in large)
    due = [number for number, launch in enumerate(small) if launch.plan.is_catch_up]
    assert due == [0, INTERVAL]


def test_drafting_goes_on_at_once_where_no_request_of_the_batch_is_behind() -> None:
    controller, _, _ = lagging(0, 3)
    decode(controller, ["a"])
    launch = decode(controller, ["b"])  # "a" left
    assert (launch.tier, launch.plan.is_catch_up) == (chain_tier(3), False)


def test_a_batch_that_drafts_level_ends_the_stay_too_and_a_probe_does_not() -> None:
    controller, policy, _ = lagging(0, 3, 0)
    ended: list[str] = []
    controller.draft_schedule.end_stay = lambda: ended.append("stay")
    decode(controller, ["a"])
    policy.is_probe = lambda _plan: True
    decode(controller, ["b"])  # "a" left, and "b" lacks nothing
    assert ended == []
    policy.script = [chain_tier(3)]
    policy.is_probe = lambda _plan: False
    decode(controller, ["c"])
    assert ended == ["stay"]


def test_without_a_schedule_zero_steps_are_left_at_once() -> None:
    controller, _, _ = make(0, 3)
    launches = [decode(controller) for _ in range(2)]
    assert [launch.tier for launch in launches] == [PLAIN_TIER, chain_tier(3)]
    assert not any(launch.plan.is_catch_up for launch in launches)


def test_a_switch_is_counted_for_the_tier_that_ran() -> None:
    controller, _, pool = lagging(0, 3, 3, 1)
    expected = [0, 0, 1, 2]  # the catch-up after the choice of 3 is no switch yet
    for num_switches in expected:
        launch = decode(controller)
        assert sum(controller.counters.num_switches.values()) == num_switches
        assert launch.tier == controller.decode_tier == pool.current


def test_first_drafts_reach_the_observation_of_their_own_round() -> None:
    controller, policy, _ = make(0)
    firsts = KnownFirstDrafts(True, None)
    decode(controller, ["a", "b"]).first_drafts = firsts
    decode(controller, ["a", "b"])
    assert firsts.num_reads == 0  # the copy is not there before the result
    for _ in range(2):
        controller.observe([0, 0], 2)
    assert [seen.first_draft_correct for seen in policy.observed] == [(True, None), None]
    assert firsts.num_reads == 1


def test_lengths_of_a_plan_stand_with_it_and_wait_for_a_draft_that_is_behind() -> None:
    controller, policy, _ = lagging(0, 3)
    lens = (1, 4)
    decode(controller, ["a", "b"])  # at zero steps
    policy.choose = lambda _batch: Plan(chain_tier(3), verify_lens=lens)  # type: ignore[method-assign]
    catch_up, *packed = (decode(controller, ["a", "b"]) for _ in range(3))
    assert (catch_up.tier, catch_up.plan.verify_lens, catch_up.kept) == (PLAIN_TIER, None, None)
    for each in packed:
        assert (each.tier, each.plan.verify_lens, each.kept) == (chain_tier(3), lens, [0, 3])


def test_lengths_stand_where_no_draft_can_be_behind() -> None:
    controller, policy, _ = make(3)
    policy.choose = lambda _batch: Plan(chain_tier(3), verify_lens=(4, 2))  # type: ignore[method-assign]
    launched = decode(controller, ["a", "b"])
    assert (launched.plan.verify_lens, launched.kept) == ((4, 2), [3, 1])


# -- time --


def test_the_clock_starts_with_every_decode_round_and_is_interrupted_by_extends() -> None:
    controller, _, _ = lagging(0, 3)
    controller.clock = clock = FakeClock()
    decode(controller, ["a"], context_tokens=10)
    controller.before_extend()
    decode(controller, ["a", "b"], context_tokens=30)
    decode(controller, ["a", "b"], context_tokens=32)
    assert clock.calls == [
        (0, 1, 10, False),
        ("interrupt",),
        (0, 2, 30, True),  # what the round runs at, not what was chosen
        (3, 2, 32, False),
    ]


def test_times_reach_the_policy_when_they_are_known() -> None:
    controller, policy, _ = make(3, 1)
    controller.clock = FakeClock()
    decode(controller, ["a", "b"], context_tokens=20)
    controller.observe([1, 1], 2)
    assert policy.times == []
    decode(controller, ["a"], context_tokens=11)
    controller.observe([1], 1)
    assert policy.times == [RoundTime(Plan(chain_tier(3)), 2, 20, 1.0)]


@pytest.mark.parametrize(
    ("part", "call"),
    [
        ("choose", "choose"),
        ("decision", "choose"),
        ("count_rounds", "count_rounds"),
        ("observe", "observe"),
        ("after_results", "after_results"),
        ("observe_time", "observe"),
    ],
)
def test_a_failing_policy_keeps_the_last_tier_is_counted_and_logged_once(
    part: str, call: str, caplog: pytest.LogCaptureFixture
) -> None:
    controller, policy, pool = make(3)
    controller.clock = FakeClock()
    decode(controller)
    controller.observe([1], 1)
    policy.failing = part
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            decode(controller)
            controller.observe([1], 1)
    assert pool.current == chain_tier(3)
    assert controller.counters.num_policy_errors == 3
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert f"{call}()" in caplog.text


def test_of_a_policy_s_plan_only_the_tier_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    controller, policy, _ = make(3)
    monkeypatch.setattr(policy, "choose", lambda _batch: Plan(chain_tier(3), 8, True))
    assert decode(controller).plan == Plan(chain_tier(3))
    assert controller.counters.num_policy_errors == 0


def test_a_policy_that_returns_no_plan_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    controller, policy, _ = make(3)
    monkeypatch.setattr(policy, "choose", lambda _batch: chain_tier(5))
    assert decode(controller).tier == STARTUP  # the last in force
    assert controller.counters.num_policy_errors == 1


# -- times that several ranks learn together --


def run_sharing(controller: AdaptiveController, learn: Callable[[RoundTime], None]) -> list[int]:
    """Runs two sharings' rounds, results at once; returns how many had started at each message."""
    controller.clock = clock = FakeClock()
    num_started: list[int] = []

    def broadcast(times: Sequence[RoundTime]) -> Sequence[RoundTime]:
        num_started.append(len(clock.calls))
        return times

    controller.shared_times = SharedTimes(learn, broadcast)
    for _ in range(2 * SHARE_ROUNDS):
        decode(controller)
        controller.observe([1], 1)
    return num_started


@pytest.mark.parametrize("call", ["", "choose", "observe", "observe_time"])
def test_a_rank_shares_its_times_at_the_same_rounds_whatever_its_policy_does(call: str) -> None:
    controller, policy, _ = make(3)
    policy.failing = call
    learned: list[RoundTime] = []
    assert run_sharing(controller, learned.append) == [SHARE_ROUNDS - 1, 2 * SHARE_ROUNDS - 1]
    # The head of the round before a message ended the last period known then.
    assert [one.ms for one in learned] == list(range(1, 2 * SHARE_ROUNDS - 1))
    assert (controller.counters.num_policy_errors > 0) == bool(call)


def test_a_policy_that_fails_to_learn_shared_times_is_counted_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    controller, _, pool = make(3)

    def learn(_time: RoundTime) -> None:
        raise ZeroDivisionError("scripted")

    assert len(run_sharing(controller, learn)) == 2
    assert controller.counters.num_policy_errors == 2 * SHARE_ROUNDS - 2  # every time
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "learn_time()" in caplog.text
    assert pool.current == chain_tier(3)


def test_a_message_that_fails_ends_the_rank() -> None:
    """One that went on alone would wait for the others for ever."""
    controller, _, _ = make(3)

    def broadcast(_times: Sequence[RoundTime]) -> Sequence[RoundTime]:
        raise RuntimeError("a rank is gone")

    controller.shared_times = SharedTimes(lambda _time: None, broadcast)
    for _ in range(SHARE_ROUNDS - 1):
        decode(controller)
    with pytest.raises(RuntimeError, match="a rank is gone"):
        decode(controller)


# -- results that wait for one another --


def test_a_patient_policy_gets_its_results_together_and_in_order() -> None:
    policy = PatientPolicy(3, 1)
    controller = AdaptiveController(policy, FakePool(), STARTUP)
    seen = []
    for idx in range(6):
        decode(controller)
        controller.observe([idx % 2], 1)
        seen.append([one.num_correct_drafts for one in policy.observed])
    assert [len(one) for one in seen] == [0, 0, 3, 3, 3, 6]
    assert seen[-1] == [[0], [1]] * 3
    assert [one.tier.num_steps for one in policy.observed] == [3, 3, 3, 1, 1, 1]


def test_a_policy_is_asked_once_for_the_rounds_that_its_plan_stands_for() -> None:
    policy = PatientPolicy(3, 1, 5)
    controller = AdaptiveController(policy, FakePool(), STARTUP)
    steps = [decode(controller).tier.num_steps for _ in range(7)]
    assert steps == [3, 3, 3, 1, 1, 1, 5]
    assert policy.counted == [3, 3]  # the newest plan still stands


@pytest.mark.parametrize("moment", ["another batch", "a result"])
def test_a_plan_stands_no_longer_once(moment: str) -> None:
    policy = PatientPolicy(3, 1)
    controller = AdaptiveController(policy, FakePool(), STARTUP)
    for _ in range(2):
        decode(controller, ["a"])
    if moment == "a result":
        controller.observe([2], 1)
        controller.learn()
        assert policy.counted == [2]  # before it learns from the result
        assert policy.num_learned_from == 1
    requests = ["a", "b"] if moment == "another batch" else ["a"]
    assert decode(controller, requests).tier == chain_tier(1)
    assert policy.counted == [2]


def test_pinned_and_exact_rounds_are_not_counted_as_the_policy_s() -> None:
    policy = PatientPolicy(3, 1)
    controller = AdaptiveController(policy, FakePool(), STARTUP)
    decode(controller)
    controller.pin(chain_tier(5))
    decode(controller)
    controller.pin(None)
    controller.before_decode(DecodeBatch(1, ("a",), exact="penalties"))
    assert [decode(controller).tier.num_steps for _ in range(3)] == [3, 3, 1]
    assert policy.counted == [3]


def test_how_many_decodes_pay_is_asked_anew_for_another_batch_that_needs_zero_steps() -> None:
    controller, policy, _ = make(3)
    controller.draft_schedule = CatchUpSchedule(99)
    lengths = []
    for size, policy.length in ((1, 8), (1, 8), (4, 1), (4, 1)):
        batch = DecodeBatch(size, tuple("abcd"[:size]), exact="penalties", most_decodes=8)
        lengths.append(controller.before_decode(batch).plan.num_decodes)
    assert lengths == [8, 8, 1, 1]
    assert len(policy.rooms) == 2


def test_a_policy_may_become_patient_and_impatient_again() -> None:
    policy = PatientPolicy(3)
    controller = AdaptiveController(policy, FakePool(), STARTUP)
    seen = []
    for request, patience in (("a", 1), ("a", 3), ("a", 3), ("b", 1), ("b", 1)):
        policy.rounds_at_once = patience  # asked after learning, and when the batch has changed
        decode(controller, (request,))
        controller.observe([1], 1)
        seen.append(len(policy.observed))
    assert seen == [1, 2, 2, 4, 5]


@pytest.mark.parametrize("moment", ["another batch", "an extend", "a question"])
def test_results_are_worked_through_before(moment: str) -> None:
    policy = PatientPolicy(3)
    controller = AdaptiveController(policy, FakePool(), STARTUP)
    decode(controller, ["a"])
    controller.observe([2], 1)
    assert policy.observed == []
    if moment == "another batch":
        decode(controller, ["a", "b"])
    elif moment == "an extend":
        controller.before_extend()
    else:
        controller.learn()
    assert [one.requests for one in policy.observed] == [("a",)]
    assert controller.counters.num_rounds == {chain_tier(3): 1}


def test_the_clock_knows_what_is_in_flight_while_results_wait() -> None:
    controller = AdaptiveController(PatientPolicy(3), FakePool(), STARTUP)
    controller.clock = clock = FakeClock()
    decode(controller)
    decode(controller)
    controller.observe([1], 1)
    decode(controller)
    controller.observe([1], 1)
    controller.observe([1], 1)  # the third result: nothing waits, nothing is in flight
    decode(controller)
    assert clock.num_in_flight == [0, 1, 1, 0]
    assert clock.num_polls == 3


@given(st.lists(st.sampled_from([0, 0, 0, 1, 3]), min_size=1, max_size=40))
def test_no_round_drafts_while_the_draft_is_behind(steps: list[int]) -> None:
    controller, _, _ = lagging(*steps)
    behind = 0
    for _ in steps:
        launch = decode(controller)
        if launch.tier == PLAIN_TIER:
            behind = 0 if launch.plan.is_catch_up else behind + 1
        assert behind < INTERVAL
        assert behind == 0 or launch.tier == PLAIN_TIER


def test_a_forward_without_requests_is_counted_and_changes_nothing() -> None:
    controller, _, pool = make(3)
    decode(controller)
    before = list(pool.activated)
    controller.before_idle()
    assert controller.counters.num_idle_rounds == 1
    assert pool.activated == before
    controller.observe([2], 1)  # the round before it still gets its result
    assert controller.counters.num_rounds == {chain_tier(3): 1}
    assert controller.counters.num_feedback_mismatches == 0


# -- what a table has for a round --


def found(*drafts: int) -> DecodeBatch:
    rows = tuple(range(len(drafts)))
    return DecodeBatch(len(rows), rows, most_decodes=8, found=drafts)


def test_a_round_runs_what_pays_for_the_drafts_that_were_found() -> None:
    controller, policy, pool = make(3)
    controller.draft_schedule = None
    policy.given_found = lambda batch: chain_tier(min(batch.found))
    for drafts, tier in (((1, 2), chain_tier(1)), ((0, 2), PLAIN_TIER), ((3, 3), chain_tier(3))):
        launched = controller.before_decode(found(*drafts))
        assert (launched.tier, pool.current, launched.found) == (tier, tier, drafts)
        assert launched.plan.num_decodes == 1  # the table is asked again at once
        controller.observe([0, 0], 2)
    assert [each.found for each in policy.observed] == [(1, 2), (0, 2), (3, 3)]


def test_switches_to_what_a_table_has_are_no_change_of_mind() -> None:
    controller, policy, _ = make(3, 3, 3, 0)
    controller.draft_schedule = None
    policy.given_found = lambda batch: chain_tier(min(batch.found))
    for drafts in (3, 1, 0, 3):  # the last one in a stay at zero steps
        controller.before_decode(found(drafts))
        controller.observe([0], 1)
    switches = controller.counters.num_switches
    assert (switches["found"], switches["policy"], sum(switches.values())) == (3, 0, 3)
    controller.before_decode(found(3, 3, 3, 3, 3, 3, 3, 3))
    assert switches["batch_size"] == 0  # as before
    policy.script = [chain_tier(3)]
    controller.before_decode(found(*[1] * 9))
    controller.before_decode(found(2))
    assert sum(switches.values()) == 5
    assert switches["batch_size"] == 1


def test_what_was_found_moves_a_stay_at_zero_steps_and_no_pinned_tier() -> None:
    controller, policy, _ = make(0, 1)
    controller.draft_schedule = None  # a table lags behind nothing
    policy.given_found = lambda _batch: chain_tier(3)
    policy.wants_found = True
    assert controller.before_decode(found(3)).tier == chain_tier(3)
    assert controller.wants_found(found(3))
    controller.pin(chain_tier(1))
    assert controller.before_decode(found(3)).tier == chain_tier(1)
    assert not controller.wants_found(found(3))


def test_no_table_is_asked_for_rounds_that_must_not_draft() -> None:
    controller, policy, _ = make(3)
    policy.wants_found = True
    assert controller.wants_found(found(3))
    assert not controller.wants_found(found(3)._replace(exact="min_p"))
    assert not controller.wants_found(found(3)._replace(is_near_end=True))
    policy.most_drafting = 1
    assert not controller.wants_found(found(3, 3))


def test_a_decode_that_waited_for_a_look_up_says_nothing_of_a_stay() -> None:
    controller, policy, _ = make(3)
    controller.clock = FakeClock()
    policy.given_found = lambda batch: PLAIN_TIER if not any(batch.found) else chain_tier(3)
    for drafts in (0, 3, 0, 3, 0, 3):
        controller.before_decode(found(drafts))
        controller.observe([0], 1)
    controller.learn()
    assert {each.tier for each in policy.times} == {chain_tier(3)}


@pytest.mark.parametrize(
    ("tier", "asked", "following_asked", "is_learned"),
    [
        (0, None, None, True),  # a stay
        (0, None, (3,), False),  # its last round waits for the look-up of the round that drafts
        (0, (0,), (3,), False),
        (0, (0,), None, True),  # its own was asked before its head
        (3, (3,), (3,), True),
        (3, (3,), None, False),  # the last one that drafts: no look-up is in it
        (3, None, None, True),  # a look at a tier: asked after its head
        (3, None, (3,), False),  # two are in it
    ],
)
def test_a_look_up_falls_into_the_period_of_the_round_before_the_one_that_it_is_for(
    tier: int, asked: Sequence[int] | None, following_asked: Sequence[int] | None, is_learned: bool
) -> None:
    controller, policy, _ = make(tier, 3)
    controller.draft_schedule, controller.clock = None, FakeClock()
    policy.given_found = lambda _batch: chain_tier(tier)
    for each in (asked, following_asked):
        controller.before_decode(DecodeBatch(1, ("a",), found=each))
    for _ in range(2):
        controller.observe([0], 1)
    assert [each.tier.num_steps for each in policy.times] == [tier] * is_learned


def test_a_policy_that_cannot_weigh_what_was_found_keeps_its_plan() -> None:
    controller, policy, _ = make(3)
    policy.given_found = lambda _batch: 1 / 0
    assert controller.before_decode(found(1)).tier == chain_tier(3)
    assert controller.counters.num_policy_errors == 1
