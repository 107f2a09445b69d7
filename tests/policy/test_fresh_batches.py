"""A batch of none but new requests may be of another kind: it is not judged by those before."""

from sglang_adaptive_spec.policy.goodput import GoodputPolicy
from sglang_adaptive_spec.policy.probing import Probe
from sglang_adaptive_spec.policy.settings import DEFAULTS
from sglang_adaptive_spec.tiers import DecodeBatch, Observation, Plan, chain_tier
from tests.policy.rounds import goodput


def run_batch(policy: GoodputPolicy, requests: list[str], num_rounds: int, hold: bool) -> list[int]:
    """Runs rounds in which every draft holds, or none; returns the steps that ran."""
    ran = []
    for _ in range(num_rounds):
        tier = policy.choose(DecodeBatch(len(requests), tuple(requests))).tier
        policy.count_rounds(1)
        ran.append(tier.num_steps)
        correct = [tier.num_steps if hold else 0] * len(requests)
        policy.observe(Observation(Plan(tier), len(requests), requests, correct))
        policy.after_results()
    return ran


def test_a_small_batch_of_new_requests_is_given_the_chance_to_differ() -> None:
    """At zero steps four requests show one draft each in 15 rounds: seconds, if nobody asked."""
    policy = goodput(initial=3)
    assert run_batch(policy, ["a", "b", "c", "d"], 400, hold=False)[-1] == 0
    ran = run_batch(policy, ["e", "f", "g", "h"], 60, hold=True)
    assert ran[0] == 3  # the initial tier, at once
    assert min(ran[20:]) >= 3
    assert policy.num_switches["fresh"] == 1


def test_requests_that_join_others_start_nothing_afresh() -> None:
    policy = goodput(initial=3)
    for first in range(40):
        run_batch(policy, [f"r{first + seat}" for seat in range(4)], 10, hold=False)
    assert policy.num_switches["fresh"] == 0


def test_a_large_batch_of_new_requests_shows_itself_at_zero_steps() -> None:
    policy = goodput(initial=3)
    assert run_batch(policy, [f"a{row}" for row in range(64)], 400, hold=False)[-1] == 0
    assert run_batch(policy, [f"b{row}" for row in range(64)], 1, hold=False) == [0]
    assert policy.num_switches["fresh"] == 0


def test_a_fresh_batch_of_another_slot_runs_at_no_tier_that_its_slot_forbids() -> None:
    policy = goodput(initial=3, slots={1: (0, 3, 7), 9: (0, 3)})
    assert run_batch(policy, ["a", "b", "c", "d"], 100, hold=True)[-1] == 7
    ran = run_batch(policy, [f"c{row}" for row in range(16)], 8, hold=True)
    assert set(ran) <= {0, 3}


def test_a_probe_ends_with_the_slot_that_allows_its_tier() -> None:
    policy = goodput(initial=3, slots={1: (0, 3, 7), 9: (0, 3)})
    run_batch(policy, ["a", "b", "c", "d"], 4, hold=True)
    policy.prober.probe = Probe(chain_tier(7), 4, 4, 10.0, 10.0, patience=2)
    ran = run_batch(policy, [f"c{row}" for row in range(16)], 4, hold=True)
    assert set(ran) <= {0, 3}


def test_the_more_requests_the_sooner_a_fresh_batch_is_decided_about() -> None:
    """Up to then results are taken one by one; what was in force may be far too deep."""
    rounds = {}
    for size in (4, 16, 64):
        policy = goodput(initial=3)
        run_batch(policy, [f"a{row}" for row in range(size)], 100, hold=True)
        requests = [f"b{row}" for row in range(size)]
        policy.choose(DecodeBatch(size, tuple(requests)))
        assert policy.rounds_at_once == 1
        ran, at_once = [], []
        for _ in range(20):
            ran += run_batch(policy, requests, 1, hold=False)
            at_once.append(policy.rounds_at_once)
        assert max(at_once) > 1
        rounds[size] = next(idx for idx, steps in enumerate(ran) if steps < 7)
    assert rounds[64] < rounds[16] < rounds[4] <= DEFAULTS.cadence.fresh_rounds + 1
