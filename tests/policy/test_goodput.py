"""What the goodput policy must do, on a server with known acceptance and round times."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_adaptive_spec.ladder import Ladder
from sglang_adaptive_spec.policy.acceptance.hazards import Floats
from sglang_adaptive_spec.policy.acceptance.model import AcceptanceModel
from sglang_adaptive_spec.policy.cadence import PATIENCE_ROUNDS
from sglang_adaptive_spec.policy.goodput import GoodputPolicy
from sglang_adaptive_spec.policy.packing import Packed
from sglang_adaptive_spec.policy.settings import DEFAULTS
from sglang_adaptive_spec.tiers import (
    DecodeBatch,
    Observation,
    Plan,
    RoundTime,
    chain_tier,
)
from tests.policy.rounds import (
    MAX_STEPS,
    STEPS,
    KnownCosts,
    Server,
    best_steps,
    constant,
    goodput,
    half_and_half,
    rates,
)


def share_of(server: Server, steps: int, last: int) -> float:
    return server.steps[-last:].count(steps) / last


def efficiency(server: Server, hazards: np.ndarray) -> float:
    """Tokens per ms over the best tier's, since the server started."""
    return server.tokens / server.total_ms / max(rates(hazards).values())


@pytest.mark.parametrize("batch_size", [1, 8, 32, 128])
@pytest.mark.parametrize("hazard", [0.05, 0.3, 0.5, 0.7, 0.85, 0.95])
def test_steady_batches_run_at_what_pays_most(batch_size: int, hazard: float) -> None:
    hazards = constant(hazard, batch_size)
    server = Server(goodput())
    server.run(400, hazards)  # finding out is the transition tests' matter
    server.tokens = server.total_ms = 0.0
    server.run(800, hazards)
    assert efficiency(server, hazards) >= 0.98


@pytest.mark.parametrize(("batch_size", "hazard"), [(16, 0.7), (64, 0.7)])
def test_steady_input_stops_switching(batch_size: int, hazard: float) -> None:
    hazards = constant(hazard, batch_size)
    server = Server(goodput())
    server.run(20_000, hazards)
    assert share_of(server, best_steps(hazards), 19_900) >= 0.99
    # Two per probe, and the back-off leaves a dozen probes in so many rounds.
    assert server.num_switches <= 40
    assert sum(server.policy.num_switches.values()) <= 8


def test_steady_input_at_zero_steps_stays_there() -> None:
    hazards = constant(0.1, 64)
    server = Server(goodput(initial=7))
    server.run(10_000, hazards)
    assert best_steps(hazards) == 0
    assert share_of(server, 0, 9_900) >= 0.99
    assert efficiency(server, hazards) >= 0.99


@pytest.mark.parametrize(("batch_size", "num_rounds"), [(1, 28), (8, 16), (64, 12), (128, 20)])
@pytest.mark.parametrize(("before", "after"), [(0.3, 0.95), (0.95, 0.3)])
def test_another_phase_is_followed_within_rounds(
    before: float, after: float, batch_size: int, num_rounds: int
) -> None:
    """From zero steps the free look comes once in 16 rounds: hence 20 at batch 128."""
    server = Server(goodput())
    server.run(600, constant(before, batch_size))
    hazards = constant(after, batch_size)
    server.run(num_rounds, hazards)
    server.tokens = server.total_ms = 0.0
    server.run(100, hazards)
    assert efficiency(server, hazards) >= 0.94


@pytest.mark.parametrize("batch_size", [2, 16, 128])
def test_a_mixed_batch_runs_at_the_depth_that_maximises_its_sum(batch_size: int) -> None:
    hazards = half_and_half(batch_size)
    server = Server(goodput())
    server.run(200, hazards)
    server.run(600, hazards)
    assert share_of(server, best_steps(hazards), 600) >= 0.97


def test_bad_requests_that_leave_deepen_the_batch_within_two_rounds() -> None:
    # Of 128 mixed requests the good half stays: what is left pays at greater depth.
    hazards = half_and_half(128)
    policy = goodput()
    server = Server(policy)
    server.run(300, hazards)
    mixed_steps = server.steps[-1]
    good = tuple(f"r{idx}" for idx in range(1, 128, 2))
    batch = DecodeBatch(len(good), good)
    policy.choose(batch)
    policy.count_rounds(PATIENCE_ROUNDS)
    policy.after_results()
    tier = policy.choose(batch).tier
    assert tier.num_steps > mixed_steps
    assert tier.num_steps == best_steps(hazards[1::2])


def test_a_ramp_of_the_load_shortens_and_lengthens_drafts() -> None:
    server = Server(goodput())
    sizes = (1, 16, 64, 128)
    chosen = []
    for size in (*sizes, *reversed(sizes)):
        server.run(60, constant(0.85, size))
        chosen.append(max(set(server.steps[-40:]), key=server.steps[-40:].count))
    wanted = [best_steps(constant(0.85, size)) for size in (*sizes, *reversed(sizes))]
    assert chosen == wanted


# --- probing


@pytest.mark.parametrize(("batch_size", "hazard"), [(128, 0.3), (16, 0.5), (4, 0.7)])
def test_probing_takes_at_most_one_percent_of_the_time(batch_size: int, hazard: float) -> None:
    hazards = constant(hazard, batch_size)
    server = Server(goodput(initial=0))
    for wave in range(40):  # the batch changes all the time, which resets the back-off
        server.run(100, hazards, name=f"wave{wave}-")
    assert 0.0 < server.probing_ms <= DEFAULTS.probing.share * server.total_ms
    described = server.policy.prober.describe()
    assert described["share_of_time"] == pytest.approx(server.probing_ms / server.total_ms, rel=0.2)


def test_probes_that_do_not_pay_become_rare() -> None:
    hazards = constant(0.5, 16)
    server = Server(goodput())
    server.run(8000, hazards)
    early = server.policy.prober.num_probes
    server.run(4000, hazards)
    assert 0 < early <= 10
    assert server.policy.prober.num_probes - early <= 1


def test_a_changed_batch_is_probed_anew() -> None:
    hazards = constant(0.5, 16)
    server = Server(goodput())
    server.run(8000, hazards, name="a")
    prober = server.policy.prober
    before = prober.num_probes
    assert prober.describe()["rounds_to_next"] > 200
    server.run(100, hazards, name="b")
    assert prober.num_probes > before


def test_depth_that_began_to_pay_unseen_is_found_by_probing() -> None:
    """Position 1 does not change, so only a probe can tell that the deeper ones did."""
    hazards = constant(0.8, 8)
    hazards[:, 1:] = 0.02
    server = Server(goodput())
    server.run(500, hazards)
    assert share_of(server, 1, 100) > 0.8
    hazards[:, 1:] = 0.95
    server.run(4000, hazards)
    assert share_of(server, 7, 100) > 0.9


def test_a_probe_that_cannot_pay_is_not_made() -> None:
    """Speculating costs ten times the round: no acceptance could make up for it."""

    def dear(num_steps: int, batch_size: int) -> float:
        return 5.0 if num_steps == 0 else 50.0

    server = Server(goodput(ms=dear, initial=0), ms=dear)
    server.run(5000, constant(0.9, 8))
    assert set(server.steps) == {0}


def test_a_probe_ends_although_its_results_never_come() -> None:
    policy = goodput(initial=1)
    server = Server(policy)
    hazards = constant(0.8, 8)
    hazards[:, 1:] = 0.02
    server.run(500, hazards)
    requests = tuple(f"r{idx}" for idx in range(8))
    steps = []
    for _ in range(2000):
        steps.append(policy.choose(DecodeBatch(8, requests)).tier.num_steps)
        policy.count_rounds(1)
    runs = "".join("p" if step != 1 else "." for step in steps).split(".")
    assert 0 < max(map(len, runs)) <= DEFAULTS.probing.max_rounds
    assert sum(map(bool, runs)) >= 3  # the next one is not held up


def test_probes_from_zero_steps_look_beyond_the_position_that_is_seen_for_free() -> None:
    server = Server(goodput(slots={1: (0, 1, 2)}, initial=0))
    server.run(4000, constant(0.17, 64))
    probes = set(server.steps[200:]) - {0}
    assert probes == {2}


# --- what a policy owes its caller


SLOTS = st.dictionaries(
    st.sampled_from([1, 2, 8, 32, 100]),
    st.lists(st.sampled_from(STEPS), min_size=1, max_size=4, unique=True),
    min_size=1,
)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    slots=SLOTS,
    initial=st.sampled_from(STEPS),
    sizes=st.lists(st.integers(1, 130), min_size=1, max_size=30),
    seed=st.integers(0, 9),
)
def test_every_choice_is_reachable(
    slots: dict[int, list[int]], initial: int, sizes: list[int], seed: int
) -> None:
    policy = goodput(initial, slots=slots)
    rng = np.random.default_rng(seed)
    for size in sizes:
        requests = tuple(range(size))
        for _ in range(3):
            tier = policy.choose(DecodeBatch(size, requests)).tier
            assert tier in policy.ladder.of(size)
            counts = rng.integers(0, tier.num_steps + 1, size).tolist()
            policy.observe(Observation(Plan(tier), size, requests, counts))


def best_depth_at(hazard: float, batch_size: int) -> int:
    policy = goodput()
    rng = np.random.default_rng(0)
    requests = tuple(range(batch_size))
    # The same draws for every hazard, so that more is accepted in every single round.
    for uniform in rng.random((400, batch_size, MAX_STEPS)):
        counts = (uniform < hazard).cumprod(axis=1).sum(axis=1).tolist()
        policy.observe(Observation(Plan(chain_tier(MAX_STEPS)), batch_size, requests, counts))
    policy.choose(DecodeBatch(batch_size, requests))
    assert policy.decision is not None
    return policy.decision.best.num_steps


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    hazard=st.floats(0.05, 0.85), better=st.floats(0.05, 0.12), size=st.sampled_from([1, 16, 100])
)
def test_better_acceptance_never_shortens_drafts(hazard: float, better: float, size: int) -> None:
    assert best_depth_at(hazard, size) <= best_depth_at(hazard + better, size)


def test_the_same_calls_give_the_same_choices() -> None:
    runs = []
    for _ in range(2):
        server = Server(goodput(), seed=3)
        for size, hazard in ((8, 0.3), (40, 0.9), (8, 0.6)):
            server.run(150, constant(hazard, size))
        runs.append((server.steps, server.policy.state(DecodeBatch(8, ()))))
    assert runs[0] == runs[1]


def test_the_clock_is_ignored() -> None:
    policies = goodput(), goodput()
    for round_idx in range(50):
        batches = (
            DecodeBatch(4, ("a", "b", "c", "d"), 0, now_s) for now_s in (0.0, 1e6 * round_idx)
        )
        tiers = [policy.choose(batch).tier for policy, batch in zip(policies, batches, strict=True)]
        assert tiers[0] == tiers[1]
        for policy, tier in zip(policies, tiers, strict=True):
            policy.observe(Observation(Plan(tier), 4, ("a", "b", "c", "d"), [0, 0, 0, 0]))


def test_a_neighbour_that_slows_every_tier_changes_nothing() -> None:
    policy = goodput()
    server = Server(policy)
    hazards = constant(0.7, 16)
    server.run(300, hazards)
    before = server.policy.home
    policy.costs.drift = 1.5
    server.run(100, hazards)
    assert server.policy.home == before


# --- before serving, and telemetry


def test_a_tier_that_the_model_does_not_know_is_refused() -> None:
    with pytest.raises(ValueError, match="candidate"):
        goodput(slots={1: (MAX_STEPS + 1,)})


def test_a_single_tier_is_run_without_further_ado() -> None:
    server = Server(goodput(slots={1: (2,)}))
    server.run(100, constant(0.5, 4))
    assert set(server.steps) == {2}
    assert server.policy.decision is not None
    assert server.policy.decision.describe()["runner_up"] is None


def test_the_description_says_what_was_decided_and_why() -> None:
    server = Server(goodput(slots={1: STEPS, 64: (0, 1)}))
    batch = DecodeBatch(16, ())
    assert server.policy.state(batch)["decisions"]["newest"] is None
    hazards = constant(0.7, 16)
    server.run(300, hazards)
    described = server.policy.state(batch)
    assert json.loads(json.dumps(described)) == described
    decision = described["decisions"]["newest"]
    steps = [int(name) for name in decision["tokens_per_ms"]]
    order = sorted(steps, key=lambda step: -decision["tokens_per_ms"][str(step)])
    assert (decision["best"], decision["runner_up"]) == (str(order[0]), str(order[1]))
    assert decision["reason"] in {"best", "within noise"}
    for name, rate in decision["tokens_per_ms"].items():
        assert rate == pytest.approx(rates(hazards)[int(name)], rel=0.06)
        assert rate == pytest.approx(
            decision["expected_tokens"][name] / decision["round_ms"][name], rel=1e-3
        )
    assert described["slots"]["1"]["current_tier"] == decision["tier"]
    assert described["slots"]["64"] == {"candidate_tiers": ["0", "1"], "current_tier": "1"}
    assert described["acceptance"]["survival"][0] == pytest.approx(0.7, abs=0.05)
    assert described["acceptance"]["change_test"]["num_changes"] >= 0


def test_a_gain_within_the_noise_does_not_move_a_batch() -> None:
    """Two tiers a thousandth apart, noise of the costs above that: no reason to switch."""

    def tie(num_steps: int, batch_size: int) -> float:
        return {1: 1.8, 2: 2.44}[num_steps] * (1.001 if num_steps == 2 else 1.0)

    tiers = {1: [chain_tier(1), chain_tier(2)]}
    policy = GoodputPolicy(Ladder(tiers), KnownCosts(tie), AcceptanceModel(2), chain_tier(2))
    hazards = np.full((8, 2), 0.8)
    server = Server(policy, ms=tie)
    server.run(3000, hazards)
    assert sum(policy.num_switches.values()) <= 12


# -- packed rounds, of which the policy is told as of others --


class StubPacking:
    """Packed rounds in force, and what is learned of their times."""

    def __init__(self) -> None:
        self.newest: Packed | None = None
        self.learned: list[float] = []
        self.costs = self
        self.num_choices = 0
        self.num_counted = 0
        self.has_changed = False

    def learn(self, round_time: RoundTime) -> None:
        self.learned.append(round_time.ms)

    def of_round(self, _round_time: RoundTime) -> float:
        return 9.0

    def count_rounds(self, num_rounds: int) -> None:
        self.num_counted += num_rounds

    def choose(self, batch: DecodeBatch, tiers: Any, *_: Any) -> None:
        """Plans one step with unlike lengths."""
        self.num_choices += 1
        lens = tuple(1 + row % 2 for row in range(batch.size))
        self.newest = Packed(Plan(tiers[1], verify_lens=lens), 2.5 * batch.size, 9.0, 1.0)

    def keep(self, survival: Floats, _may_ask: bool) -> None:
        """Gives every row two tokens."""
        assert self.newest is not None
        plan = self.newest.plan._replace(verify_lens=(2,) * survival.shape[1])
        self.newest = self.newest._replace(plan=plan)


def packed_policy() -> tuple[GoodputPolicy, StubPacking]:
    policy, packing = goodput(), StubPacking()
    policy.packing = packing  # type: ignore[assignment]
    return policy, packing


def test_a_packed_plan_is_no_probe() -> None:
    policy, _ = packed_policy()
    plan = policy.choose(DecodeBatch(4, ("a", "b", "c", "d"), 400))
    policy.after_results()
    if plan.verify_lens is None:  # the first rounds of a batch are before any decision
        policy._decide(DecodeBatch(4, ("a", "b", "c", "d"), 400))
    plan = policy.choose(DecodeBatch(4, ("a", "b", "c", "d"), 400))
    assert plan.verify_lens == (1, 2, 1, 2)
    assert plan.tier != policy.home
    assert not policy.is_probe(plan)
    assert policy.is_probe(Plan(plan.tier))
    decision = policy.decision
    assert decision is not None
    assert decision.expected(plan, 4) == (10.0, 9.0)


def test_a_changed_batch_gets_new_lengths_without_a_decision() -> None:
    policy, packing = packed_policy()
    many = tuple(range(64))
    policy.choose(DecodeBatch(64, many, 6400))
    policy._decide(DecodeBatch(64, many, 6400))
    num_choices = packing.num_choices
    plan = policy.choose(DecodeBatch(64, (*many[1:], 64), 6400))
    assert plan.verify_lens == (2,) * 64
    assert packing.num_choices == num_choices


def test_what_rounds_taught_of_confidence_is_told_after_another_batch_began() -> None:
    policy, sure, new = goodput(), np.full((1, 2), 0.5), DecodeBatch(1, ("new",), 100)
    assert policy.state(new)["confidence"] is None
    policy.confidence.learn(sure, sure, [1, 0], [1, 1])
    policy._start_afresh(new)
    assert policy.state(new)["confidence"] is not None


def test_rounds_of_a_probe_are_no_packed_rounds() -> None:
    policy, packing = packed_policy()
    policy.prober._credit_ms = 1e3
    policy.prober.start(chain_tier(3), num_rounds=2, round_ms=9.0)
    counted = []
    for _ in range(3):
        policy.count_rounds(1)
        counted.append(packing.num_counted)
    assert counted == [0, 0, 1]


def test_a_packed_round_teaches_its_own_costs_and_no_tier_s() -> None:
    policy, packing = packed_policy()
    plan, of_tiers = Plan(chain_tier(3), verify_lens=(1, 4)), []
    policy.costs.observe = of_tiers.append  # type: ignore[method-assign]
    for _ in range(20):
        policy.observe_time(RoundTime(plan, 2, 200, 50.0))
    assert packing.learned == [50.0] * 20
    assert of_tiers == []
    alone_ms: list[float] = []  # of rounds before a prefill
    policy.interruptions.learn = lambda _time, ms: alone_ms.append(ms)  # type: ignore[method-assign]
    policy.observe_time(RoundTime(plan, 2, 200, 29.0, num_joined=2))
    assert (len(packing.learned), alone_ms) == (20, [9.0])


def test_a_packed_round_tells_of_one_draft_more_than_it_verified() -> None:
    told, untold = goodput(), goodput()
    plan = Plan(chain_tier(3), verify_lens=(2, 2))
    for _ in range(40):
        seen = Observation(plan, 2, ("a", "b"), (1, 1), (False, False), kept=(1, 1))
        told.observe(seen)
        untold.observe(seen._replace(first_draft_correct=None))
    assert told.acceptance.survival()[1] < untold.acceptance.survival()[1] - 0.3
    assert told.acceptance.age(2) > 0 == untold.acceptance.age(2)


def test_a_packed_round_is_no_result_of_a_probe() -> None:
    policy = goodput()
    counted: list[object] = []
    policy.prober.observe = counted.append  # type: ignore[method-assign, assignment]
    for lens in ((1, 2), None):
        policy.observe(Observation(Plan(chain_tier(3), verify_lens=lens), 2, ("a", "b"), (0, 0)))
    assert counted == [chain_tier(3)]
