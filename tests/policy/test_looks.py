"""Looks at round times: made where uncertain times could decide, paid from the probes' budget."""

import numpy as np
import pytest

from sglang_adaptive_spec.policy.costs.corrections import SETTLING_ROUNDS
from sglang_adaptive_spec.policy.probing import Prober
from sglang_adaptive_spec.policy.settings import DEFAULTS
from sglang_adaptive_spec.tiers import Tier, chain_tier
from tests.policy.rounds import KnownCosts, Server, constant, goodput

LOOK_RESULTS = DEFAULTS.probing.look_results
LOOK_ROUNDS = SETTLING_ROUNDS + LOOK_RESULTS
HOME, OTHER = chain_tier(3), chain_tier(1)


class DoubtfulCosts(KnownCosts):
    """One step may take half of what is believed until they were timed so many times."""

    def __init__(self) -> None:
        super().__init__()
        self.timed: dict[Tier, int] = {}

    def least_share_all(self, tiers: tuple[Tier, ...], *_: object) -> np.ndarray:
        known = self.timed.get(OTHER, 0) >= LOOK_RESULTS
        return np.array([0.5 if tier == OTHER and not known else 1.0 for tier in tiers])

    def observe(self, round_time) -> None:
        self.timed[round_time.tier] = self.timed.get(round_time.tier, 0) + 1


def test_a_tier_that_its_uncertain_time_could_make_the_best_is_looked_at_once() -> None:
    policy = goodput(slots={1: (1, 3)})
    policy.costs = DoubtfulCosts()
    server = Server(policy)
    server.run(2000, constant(0.7, 16))
    assert policy.prober.num_looks == 1
    assert server.steps.count(1) == LOOK_ROUNDS
    assert server.steps[-1] == 3


class TwoDoubtful(KnownCosts):
    """One and two steps may take half of what is believed, whatever is seen of them."""

    def least_share_all(self, tiers: tuple[Tier, ...], *_: object) -> np.ndarray:
        return np.array([0.5 if tier.num_steps in (1, 2) else 1.0 for tier in tiers])

    def observe(self, round_time) -> None:
        pass


def test_a_look_that_was_cut_short_lets_another_tier_go_first() -> None:
    policy = goodput(slots={1: (1, 2, 3)})
    policy.costs = TwoDoubtful()
    server = Server(policy)
    seen: list[Tier] = []  # by turns
    for _ in range(3000):
        server.run(1, constant(0.7, 16))
        probe = policy.prober.probe
        if probe is not None and probe.is_look:
            probe.results_left = 9  # more times than ever come
            if not seen or seen[-1] != probe.tier:
                seen.append(probe.tier)
    assert len(seen) >= 3


def test_times_that_are_known_are_not_looked_at() -> None:
    policy = goodput(slots={1: (1, 3)})
    Server(policy).run(2000, constant(0.7, 16))
    assert policy.prober.num_looks == 0


def after(rounds: int) -> Prober:
    prober = Prober()
    for _ in range(rounds):
        prober.count_rounds(1, 10.0)
    return prober


def test_a_look_waits_until_the_budget_pays_for_it() -> None:
    for rounds, num_looks in ((100 * LOOK_ROUNDS - 10, 0), (100 * LOOK_ROUNDS + 10, 1)):
        prober = after(rounds)  # a tenth of a millisecond each
        prober.look(OTHER, 10.0)
        assert prober.num_looks == num_looks


def test_a_look_lets_the_tier_settle_and_ends_with_its_second_time() -> None:
    prober = after(1000)
    prober.look(OTHER, 10.0)
    assert (prober.tier, prober.num_to_ask) == (OTHER, LOOK_ROUNDS)
    prober.count_rounds(LOOK_ROUNDS, 10.0)
    assert (prober.tier, prober.num_to_ask) == (None, 0)
    assert prober.probe is not None
    for is_over in (False, True):
        prober.observe_time(OTHER, 10.0)
        assert prober.probe.is_over == is_over


def test_a_look_cut_short_takes_back_what_it_did_not_run() -> None:
    prober = after(1000)
    prober.look(OTHER, 10.0)
    prober.count_rounds(1, 10.0)
    prober.finish(has_paid=False)
    assert prober.describe()["credit_ms"] == pytest.approx(100 - 10, abs=0.2)


def test_a_look_is_booked_at_what_its_rounds_took() -> None:
    described = []
    for ms in (10.0, 20.0):
        prober = after(1000)
        prober.look(OTHER, 10.0)
        for _ in range(3):
            prober.count_rounds(1, 10.0)
            prober.observe_time(OTHER, ms)
        prober.finish(has_paid=False)
        described.append(prober.describe())
    assert described[1]["share_of_time"] > 1.9 * described[0]["share_of_time"]
    assert described[0]["credit_ms"] - described[1]["credit_ms"] == pytest.approx(30.0)
