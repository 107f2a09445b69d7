"""A table has drafts now and then: what holds is learned of those that were there."""

import random
from dataclasses import replace

import numpy as np
import pytest

from sglang_adaptive_spec.ladder import Ladder
from sglang_adaptive_spec.policy.acceptance.model import AcceptanceModel
from sglang_adaptive_spec.policy.goodput import GoodputPolicy
from sglang_adaptive_spec.policy.probing import Probe
from sglang_adaptive_spec.policy.settings import DEFAULTS
from sglang_adaptive_spec.policy.table_asks import TableAsks
from sglang_adaptive_spec.tiers import PLAIN_TIER, DecodeBatch, Observation, Plan, chain_tier
from tests.policy.cost_server import TIERS, seeded

HAZARD, MOST = 0.9, 7  # of a draft that is there; as many in a row, in every other round
SEVEN = chain_tier(MOST)
REQUESTS = ("a", "b")


def rounds(num_rounds: int, seed: int = 1) -> list[tuple[list[int], list[int]]]:
    """Drafts found and accepted per request, all or nothing found by turns."""
    rng = random.Random(seed)
    made = []
    for number in range(num_rounds):
        found = [MOST if (number + row) % 2 else 0 for row in range(len(REQUESTS))]
        held = [0 for _ in found]
        for row, most in enumerate(found):
            while held[row] < most and rng.random() < HAZARD:
                held[row] += 1
        made.append((found, held))
    return made


@pytest.fixture
def model() -> AcceptanceModel:
    model = AcceptanceModel(MOST)
    for found, held in rounds(400):
        model.count_found(found)
        model.observe(REQUESTS, held, SEVEN, found)
    return model


def tokens(hazard: float, depth: int) -> float:
    return sum(hazard**drafts for drafts in range(depth + 1))


def test_drafts_that_are_there_hold_as_often_as_such_drafts_did(model: AcceptanceModel) -> None:
    for found in (0, 2, MOST):
        (given,) = model.tokens_given(("a",), [SEVEN], [found])
        assert given == pytest.approx(tokens(HAZARD, found), rel=0.06), found
    both = model.tokens_given(REQUESTS, TIERS, [MOST, 0])
    assert both[0] == 2.0  # zero steps: a token each
    assert both[-1] == pytest.approx(1 + tokens(HAZARD, MOST), rel=0.06)


def test_before_a_look_up_drafts_are_there_as_often_as_they_were(model: AcceptanceModel) -> None:
    (expected,) = model.expected_tokens(REQUESTS, [SEVEN])
    assert expected == pytest.approx(2 * (1 + (tokens(HAZARD, MOST) - 1) / 2), rel=0.06)
    assert model.found.describe()[0] == pytest.approx(0.5, abs=0.05)


def test_a_text_that_begins_to_repeat_is_noticed_within_a_probe(model: AcceptanceModel) -> None:
    for _ in range(1000):
        model.count_found([0])
    (before,) = model.expected_tokens(("a",), [SEVEN])
    assert before < 1.01
    for _ in range(16):
        model.count_found([MOST])
    (after,) = model.expected_tokens(("a",), [SEVEN])
    assert after > 1 + (tokens(HAZARD, MOST) - 1) / 3


def test_new_requests_are_judged_by_their_own_first_rounds(model: AcceptanceModel) -> None:
    for _ in range(1000):
        model.count_found([0])
    model.shorten_memory()
    for _ in range(4):
        model.count_found([MOST])
    assert model.found.describe()[0] > 0.6


@pytest.mark.parametrize(("memory", "share"), [(8.0, 0.86), (64.0, 0.22)])
def test_how_long_a_table_is_remembered_is_a_setting(memory: float, share: float) -> None:
    acceptance = replace(DEFAULTS.acceptance, found_memory_rounds=memory, found_fresh_rounds=1e9)
    model = AcceptanceModel(MOST, settings=replace(DEFAULTS, acceptance=acceptance))
    for _ in range(1000):
        model.count_found([0])
    model.shorten_memory()  # to so many rounds that nothing is forgotten
    for _ in range(16):
        model.count_found([MOST])
    assert model.found.describe()[0] == pytest.approx(share, abs=0.01)


def test_what_a_narrow_round_left_out_teaches_nothing() -> None:
    """Five were found, two of them verified, and both held: the third was never asked about."""
    model = AcceptanceModel(MOST)
    for _ in range(100):
        model.observe(("a",), [2], chain_tier(3), [2])
    assert model.age(2) > 50
    assert model.age(3) == 0


def test_rounds_with_and_without_a_table_may_follow_each_other() -> None:
    model = AcceptanceModel(MOST)
    for found in ([3], None, [0], None):
        model.observe(("a",), [0], SEVEN, found)
    model.flush()
    assert model.age(1) == pytest.approx(3, rel=0.1)


def test_a_head_always_has_drafts() -> None:
    model = AcceptanceModel(MOST)
    for _, held in rounds(50):
        model.observe(REQUESTS, held, SEVEN)
    (expected,) = model.expected_tokens(REQUESTS, [SEVEN])
    assert model.tokens_given(REQUESTS, [SEVEN], [MOST, MOST])[0] == pytest.approx(expected)
    assert model.found.describe() == [0.0] * MOST


def policy() -> GoodputPolicy:
    table = seeded()
    return GoodputPolicy(Ladder({1: TIERS}), table, AcceptanceModel(MOST), SEVEN)


def test_a_round_is_as_wide_as_what_was_found_pays_for() -> None:
    ours = policy()
    batch = DecodeBatch(2, REQUESTS)
    for found, held in rounds(200):
        ours.choose(batch)
        ours.observe(Observation(Plan(SEVEN), 2, REQUESTS, held, found=found, kept=found))
        ours.after_results()
    assert ours.given_found(batch._replace(found=[0, 0])) == PLAIN_TIER
    assert ours.given_found(batch._replace(found=[MOST, MOST])) == SEVEN
    few = ours.given_found(batch._replace(found=[1, 1]))
    assert few.num_steps <= 1


def asked_in(ours: GoodputPolicy, number: int, drafts: int) -> list[int]:
    """Runs rounds of a text that the table has so many drafts of; returns those it was asked in."""
    batch, asked = DecodeBatch(2, REQUESTS), []
    for idx in range(number):
        tier, found = ours.choose(batch).tier, None
        if ours.wants_found:
            asked.append(idx)
            found = [drafts] * 2
            tier = ours.given_found(batch._replace(found=found))
        held = [min(drafts, tier.num_steps)] * 2
        ours.observe(Observation(Plan(tier), 2, REQUESTS, held, found=found, kept=held))
        ours.count_rounds(1)
        ours.after_results()
    return asked


def test_the_table_is_asked_first_while_drafting_pays_on_the_whole() -> None:
    ours = policy()
    assert asked_in(ours, 50, MOST) == list(range(50))
    assert ours.home != PLAIN_TIER


def test_a_stay_at_zero_steps_asks_less_and_less_often_while_nothing_is_found() -> None:
    ours, cadence = policy(), DEFAULTS.cadence
    asked_in(ours, 150, 0)
    assert ours.home == PLAIN_TIER
    between = np.diff(asked_in(ours, 2000, 0))
    assert cadence.max_ask_decodes <= between.max() <= 1.2 * cadence.max_ask_decodes  # probes
    assert between.mean() > 0.9 * cadence.max_ask_decodes


def test_where_a_stay_finds_what_pays_the_next_rounds_ask_again() -> None:
    ours = policy()
    asked_in(ours, 1000, 0)
    assert ours.home == PLAIN_TIER
    number = DEFAULTS.cadence.max_ask_decodes
    asked = asked_in(ours, 2 * number, MOST)
    assert asked[0] <= number
    assert asked == list(range(asked[0], 2 * number))


def test_asking_goes_on_until_its_credit_is_spent() -> None:
    asks, settings = TableAsks(DEFAULTS.cadence), DEFAULTS.cadence
    asks.follow(is_drafting=True)
    asks.book(100.0)  # no more than a full credit
    lost = [asks.book(-0.5) for _ in range(round(2 * settings.ask_credit))]
    assert lost.index(True) == len(lost) - 1
    assert not asks.is_due
    assert not asks.book(-9.0)  # a round that was in flight
    asks.count_decodes(settings.ask_decodes)
    assert asks.is_due
    asks.answered(has_paid=False)
    assert not asks.is_due
    asks.count_decodes(settings.ask_decodes)
    assert not asks.is_due  # twice as far away
    asks.count_decodes(settings.ask_decodes)
    asks.answered(has_paid=True)
    asks.book(2.0)
    asks.answered(has_paid=False)
    assert asks.is_due  # it has earned some rounds
    asks.follow(is_drafting=False)
    asks.answered(has_paid=False)
    assert not asks.is_due


def test_look_ups_that_find_what_does_not_pay_end_in_a_stay() -> None:
    """However sure of it the decision is that drafting pays."""
    ours = policy()
    asked_in(ours, 50, MOST)
    assert ours.home != PLAIN_TIER
    asked_in(ours, 20, 0)
    assert ours.home == PLAIN_TIER
    assert ours.totals()["moves"]["found"] == 1


def test_a_look_at_zero_steps_spends_nothing() -> None:
    ours = policy()
    asked_in(ours, 50, MOST)
    ours.prober.probe = Probe(PLAIN_TIER, 0, 99, 10.0, 10.0, patience=99)
    misses = Observation(Plan(PLAIN_TIER), 2, REQUESTS, [0, 0], found=[0, 0])
    for _ in range(50):
        ours.observe(misses)
    assert ours.home == SEVEN
    ours.prober.probe = None
    for _ in range(50):
        ours.observe(misses)
    assert ours.home == PLAIN_TIER
