"""Ranks with requests of their own run the same plans, whatever each has to do."""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from sglang_adaptive_spec.ladder import Ladder
from sglang_adaptive_spec.loop.catch_up import CatchUpSchedule
from sglang_adaptive_spec.loop.joint import JointController
from sglang_adaptive_spec.loop.round import Round
from sglang_adaptive_spec.tiers import PLAIN_TIER, CatchUp, DecodeBatch, Plan, chain_tier
from tests.controller_fakes import STARTUP, FakeClock, FakePool, ScriptedPolicy

NUM_RANKS = 3
INTERVAL = 8
ALL_TIERS = [PLAIN_TIER, chain_tier(1), chain_tier(3)]


class JointScript(ScriptedPolicy):
    """A script that is asked on the first rank alone, and tells no acceptance."""

    def __init__(self, *steps: int) -> None:
        super().__init__(*steps)
        self.asked: list[DecodeBatch] = []
        self.taken: list[Any] = []

    @property
    def ladder(self) -> Ladder:
        return Ladder({1: ALL_TIERS, 9: [PLAIN_TIER]})

    def choose(self, batch: DecodeBatch) -> Plan:
        self.asked.append(batch)
        return super().choose(batch)

    def share(self, requests: tuple[object, ...], limits: object = None) -> Any:
        self._fail_in("share")
        return np.array([float(len(requests)), 0.5])

    def note_own(self, requests: tuple[object, ...]) -> None:
        """Takes no notice."""

    def take(self, shares: Any) -> tuple[object, ...]:
        self._fail_in("take")
        self.taken.append(shares.tolist())
        return tuple(range(int(shares[:, 0].sum())))


class Ranks:
    """Controllers of some ranks, gathered before every round."""

    def __init__(self, *steps: int, is_overlapping: bool = True, interval: int = INTERVAL) -> None:
        self.controllers = [
            JointController(
                JointScript(*steps),
                FakePool(),
                STARTUP,
                FakeClock() if rank == 0 else None,
                CatchUpSchedule(interval),
                is_first=rank == 0,
                is_overlapping=is_overlapping,
            )
            for rank in range(NUM_RANKS)
        ]

    @property
    def first(self) -> JointScript:
        policy = self.controllers[0].policy
        assert isinstance(policy, JointScript)
        return policy

    def decode(self, *batches: DecodeBatch) -> list[Round]:
        pairs = list(zip(self.controllers, batches, strict=True))
        for each, of_rank in pairs:
            each.offer(of_rank)
        table = np.stack([each.row for each in self.controllers])
        for each, _ in pairs:
            each.take(table.copy())
        return [each.before_decode(batch) for each, batch in pairs]

    def plans(self, *batches: DecodeBatch) -> set[Plan]:
        return {launched.plan for launched in self.decode(*batches)}

    def observe(self, launched: Sequence[Round]) -> None:
        for each, of_rank in zip(self.controllers, launched, strict=True):
            if of_rank.batch.size:
                each.observe([of_rank.tier.num_steps] * of_rank.batch.size, of_rank.batch.size)


def batch(*requests: str, **fields: Any) -> DecodeBatch:
    return DecodeBatch(len(requests), requests, 10 * len(requests), 0.0, **fields)


IDLE = DecodeBatch(0, ())


def test_all_run_what_the_first_chose_in_the_round_before() -> None:
    ranks = Ranks(1, 3, 1)
    batches = batch("a"), batch("b", "c"), IDLE
    tiers = [ranks.plans(*batches) for _ in range(4)]
    assert tiers[1:] == [{Plan(chain_tier(steps))} for steps in (1, 3, 1)]
    others = [each.policy for each in ranks.controllers[1:]]
    assert [each.asked for each in others] == [[], []]


def test_the_first_decides_for_the_largest_batch_and_the_requests_of_all() -> None:
    ranks = Ranks(1)
    ranks.decode(batch("a"), batch("b", "c"), IDLE)
    (asked,) = ranks.first.asked
    assert (asked.size, asked.context_tokens, len(asked.requests)) == (2, 20, 3)
    assert ranks.first.taken == [[[1.0, 0.5], [2.0, 0.5], [0.0, 0.5]]]


def test_a_first_rank_without_requests_decides_all_the_same() -> None:
    ranks = Ranks(3)
    for _ in range(3):
        found = ranks.plans(IDLE, batch("b"), IDLE)
    assert found == {Plan(chain_tier(3))}


@pytest.mark.parametrize("rank", range(NUM_RANKS))
def test_what_one_rank_must_run_all_do(rank: int) -> None:
    ranks = Ranks(3)
    usual = [batch("a"), batch("b"), batch("c")]
    ranks.decode(*usual)
    for fields in ({"exact": "penalties"}, {"is_near_end": True}):
        batches = [*usual]
        batches[rank] = usual[rank]._replace(**fields)
        assert {plan.tier for plan in ranks.plans(*batches)} == {PLAIN_TIER}
    counted = [dict(each.counters.num_exact_rounds) for each in ranks.controllers]
    assert counted == [{"penalties": 1} if idx == rank else {} for idx in range(NUM_RANKS)]


def test_the_largest_batch_says_what_may_be_chosen() -> None:
    ranks = Ranks(3)
    large = batch(*map(str, range(9)))
    for _ in range(2):
        found = ranks.plans(batch("a"), IDLE, large)
    assert {plan.tier for plan in found} == {PLAIN_TIER}


def test_all_catch_up_where_the_draft_of_one_is_behind() -> None:
    ranks = Ranks(0, 0, 3)
    batches = batch("a"), batch("b"), IDLE
    ranks.decode(*batches)
    for _ in range(2):
        assert ranks.plans(*batches) == {Plan(PLAIN_TIER)}
    joined = batch("new"), batch("b"), batch("other")  # the last one has no debts
    assert ranks.plans(*joined) == {Plan(PLAIN_TIER, catch_up=CatchUp.WHOLE)}
    assert ranks.plans(*joined) == {Plan(chain_tier(3))}


def test_runs_are_as_long_as_the_tightest_rank_allows() -> None:
    ranks = Ranks(0, interval=99)
    ranks.first.length = 8
    free, other = batch("a", most_decodes=8), batch("b", most_decodes=8)
    for _ in range(2):
        found = ranks.plans(free, other, IDLE)
    assert found == {Plan(PLAIN_TIER, 8)}
    assert ranks.plans(free, other._replace(most_decodes=3), IDLE) == {Plan(PLAIN_TIER, 2)}


@pytest.mark.parametrize("is_overlapping", [False, True])
def test_random_traffic_never_parts_them(is_overlapping: bool) -> None:
    draws = random.Random(3)
    ranks = Ranks(*(draws.choice((0, 0, 1, 3)) for _ in range(400)), is_overlapping=is_overlapping)
    ranks.first.length = 4
    running: list[list[str]] = [[] for _ in range(NUM_RANKS)]
    late: list[Round] = []
    names = map(str, range(10**6))
    for _ in range(400):
        for requests in running:
            requests[:] = [each for each in requests if draws.random() > 0.05]
            while draws.random() < 0.3 and len(requests) < 8:
                requests.append(next(names))
        if not any(running):
            continue
        most = [draws.choice((1, 4, 8)) for _ in running]
        must = [draws.random() < 0.03 for _ in running]
        batches = [
            batch(*requests, most_decodes=m, exact="min_p" if e and requests else None)
            for requests, m, e in zip(running, most, must, strict=True)
        ]
        launched = ranks.decode(*batches)
        assert len({each.plan for each in launched}) == 1
        if is_overlapping:
            launched, late = late, launched
        if launched:
            ranks.observe(launched)
    for each in ranks.controllers:
        counters = each.counters
        errors = counters.num_disagreements, counters.num_feedback_mismatches
        assert (*errors, counters.num_policy_errors) == (0, 0, 0)
        assert len(each.rounds) < 16  # those without requests are taken as done
        assert set(counters.num_rounds) == set(ALL_TIERS)


def test_a_rank_that_decides_alone_is_counted_by_the_others() -> None:
    ranks = Ranks(3)
    batches = batch("a"), batch("b"), batch("c")
    ranks.decode(*batches)
    alone = ranks.controllers[1]
    agreed = alone._choose
    alone._choose = lambda each: agreed(each)._replace(tier=chain_tier(1))  # type: ignore[method-assign]
    ranks.decode(*batches)
    ranks.decode(*batches)
    assert [each.counters.num_disagreements for each in ranks.controllers] == [1, 1, 1]


@pytest.mark.parametrize("call", ["choose", "take", "share", "run_length"])
def test_a_policy_that_fails_on_the_first_rank_parts_nobody(call: str) -> None:
    ranks = Ranks(3, 0)
    batches = [batch(name, most_decodes=4) for name in "abc"]
    ranks.decode(*batches)
    ranks.first.failing = call
    for _ in range(4):
        assert len(ranks.plans(*batches)) == 1
    assert ranks.controllers[0].counters.num_policy_errors > 0


@pytest.mark.parametrize("is_overlapping", [False, True])
def test_times_are_those_of_the_largest_batch_also_on_an_idle_first_rank(
    is_overlapping: bool,
) -> None:
    ranks = Ranks(3, is_overlapping=is_overlapping)
    for _ in range(6):
        ranks.decode(IDLE, batch("b", "c"), IDLE)
    clock = ranks.controllers[0].clock
    assert isinstance(clock, FakeClock)
    assert ranks.controllers[0].rounds.num_launched == 6
    assert clock.num_polls == (4 if is_overlapping else 5)
    loads = [clock.poll(Round(number, IDLE, Plan(PLAIN_TIER))) for number in (3, 4)]
    assert [each.load.size for each in loads if each is not None] == [2, 2]
