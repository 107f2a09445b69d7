"""A full bucket gives a probe as many rounds as it pays for, and the shortest one in advance."""

import pytest

from sglang_adaptive_spec.policy.probe_choice import MIN_PROBE_ROUNDS
from sglang_adaptive_spec.policy.probing import Prober
from sglang_adaptive_spec.policy.settings import DEFAULTS
from sglang_adaptive_spec.tiers import chain_tier

CREDIT_LIMIT_MS = DEFAULTS.probing.credit_limit_ms
HOME, DEEPER = chain_tier(3), chain_tier(7)
HOME_MS = 100.0  # a round earns one


def with_credit(ms: float) -> Prober:
    prober = Prober()
    for _ in range(round(ms)):
        prober.count_rounds(1, HOME_MS)
    return prober


@pytest.mark.parametrize(("round_ms", "num_rounds"), [(20.0, 15), (60.0, 5), (200.0, 3)])
def test_a_dear_probe_is_as_short_as_a_full_bucket_pays_for(
    round_ms: float, num_rounds: int
) -> None:
    prober = with_credit(CREDIT_LIMIT_MS + 1)
    prober.start(DEEPER, 16, round_ms)
    assert prober.probe is not None
    assert prober.probe.rounds_left == num_rounds >= MIN_PROBE_ROUNDS


def test_a_probe_waits_for_what_it_costs_or_for_a_full_bucket() -> None:
    prober = with_credit(CREDIT_LIMIT_MS - 10)
    prober.start(DEEPER, MIN_PROBE_ROUNDS, 200.0)
    assert prober.probe is None
    prober.start(DEEPER, MIN_PROBE_ROUNDS, 50.0)
    assert prober.probe is not None


def test_what_a_probe_owes_is_earned_before_the_next() -> None:
    prober = with_credit(CREDIT_LIMIT_MS + 1)
    prober.start(DEEPER, MIN_PROBE_ROUNDS, 200.0)
    for _ in range(MIN_PROBE_ROUNDS):
        prober.count_rounds(1, HOME_MS)
        prober.observe_time(DEEPER, 200.0)
    prober.finish(has_paid=True)
    num_waited = 0
    while not prober.is_ready:
        prober.count_rounds(1, HOME_MS)
        num_waited += 1
    # 600 ms cost, 300 ms were there: a round earns one.
    assert num_waited == pytest.approx(CREDIT_LIMIT_MS, abs=2 * MIN_PROBE_ROUNDS + 1)


def probed(*times_ms: float, late_ms: float | None = None) -> Prober:
    """Returns the bucket after a probe of three rounds of 10 ms, some of whose times came."""
    prober = with_credit(100)
    prober.start(DEEPER, MIN_PROBE_ROUNDS, 10.0)
    for _ in range(MIN_PROBE_ROUNDS):
        prober.count_rounds(1, HOME_MS)
        prober.observe(DEEPER)
    for ms in times_ms:
        prober.observe_time(DEEPER, ms)
    prober.finish(has_paid=False)
    if late_ms is not None:
        prober.observe_time(DEEPER, late_ms)
    return prober


def credit_ms(prober: Prober) -> float:
    return float(prober.describe()["credit_ms"])


def test_a_stalled_round_of_a_probe_counts_as_twice_its_time() -> None:
    assert credit_ms(probed(200.0)) == pytest.approx(credit_ms(probed(10.0)) - 3 * 10.0)


def test_a_time_that_comes_after_the_last_result_is_booked_once() -> None:
    late = probed(late_ms=15.0)
    assert credit_ms(late) == pytest.approx(credit_ms(probed(15.0)))
    late.observe_time(DEEPER, 15.0)
    assert credit_ms(late) == pytest.approx(credit_ms(probed(15.0)))


def test_the_next_probe_of_a_tier_is_paid_at_what_its_last_one_took() -> None:
    costs = []
    for ms in (10.0, 15.0):
        prober = probed(ms)
        before = credit_ms(prober)
        prober.start(DEEPER, MIN_PROBE_ROUNDS, 10.0)
        costs.append(before - credit_ms(prober))
    assert costs == pytest.approx([30.0, 45.0])


def test_a_tier_that_stays_dear_is_paid_at_that_every_time() -> None:
    prober = with_credit(400)
    costs = []
    for _ in range(3):
        before = credit_ms(prober)
        prober.start(DEEPER, MIN_PROBE_ROUNDS, 10.0)
        costs.append(before - credit_ms(prober))
        for _ in range(MIN_PROBE_ROUNDS):
            prober.count_rounds(1, HOME_MS)
            prober.observe(DEEPER)
        prober.observe_time(DEEPER, 15.0)
        prober.finish(has_paid=False)
    assert costs == pytest.approx([30.0, 45.0, 45.0])


def test_a_time_that_comes_long_after_a_probe_is_not_its_own() -> None:
    prober = probed()
    for _ in range(DEFAULTS.probing.late_rounds):
        prober.count_rounds(1, HOME_MS)
    before = credit_ms(prober)
    prober.observe_time(DEEPER, 45.0)
    assert credit_ms(prober) == before
