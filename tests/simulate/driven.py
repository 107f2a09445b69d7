"""The controller driven by hand, round by round: results that go wrong, two ranks, trees.

Requests come and go, the acceptance changes, and results arrive one round late.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from sglang_adaptive_spec.config.schema import load_config
from sglang_adaptive_spec.loop.catch_up import CatchUpSchedule
from sglang_adaptive_spec.loop.controller import AdaptiveController
from sglang_adaptive_spec.loop.round import Round
from sglang_adaptive_spec.loop.sharing import SharedTimes
from sglang_adaptive_spec.policy.build import build_policy
from sglang_adaptive_spec.policy.costs.table import CostTable
from sglang_adaptive_spec.policy.goodput import GoodputPolicy
from sglang_adaptive_spec.simulate.command import goodput
from sglang_adaptive_spec.simulate.replay import RoundCosts
from sglang_adaptive_spec.simulate.true_costs import ExampleCosts, seed_table
from sglang_adaptive_spec.tiers import DecodeBatch, Observation, RoundTime, Tier, chain_tier
from tests.controller_fakes import FakePool, KnownFirstDrafts
from tests.hosts import REPO

Row = tuple[int, str, bool]  # batch size, tier as it ran, whether another than the best was asked

COST_NOISE = 0.02
MAX_STEPS = 10
NUM_ROUNDS = 3000
SIZES = (8, 16, 3, 40)  # requests, for `ROUNDS_A_SIZE` rounds each
ROUNDS_A_SIZE = 300
ROUNDS_A_REQUEST = 40  # then the oldest leaves and another joins
LEVELS, ROUNDS_A_LEVEL = (0.9, 0.2, 0.6), 220  # of acceptance
LOST_EVERY, MISFIT_EVERY, FAILS_EVERY = 97, 131, 61
ALL_LOST = range(1500, 1530)  # more than are waited for
TREES = REPO / "tests" / "e2e" / "configs" / "trees.json"
TREE_TOKEN_SHARE = 0.004  # of a round's time, that verifying a token more of a request adds
NEIGHBOUR_MS = 1.3  # per ms, every other `ROUNDS_A_SIZE` rounds: what shares the GPU


class FailingPolicy:
    """Fails now and then."""

    def __init__(self, policy: GoodputPolicy) -> None:
        self._policy = policy
        self._num_observed = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def observe(self, observation: Observation) -> None:
        self._num_observed += 1
        if self._num_observed % FAILS_EVERY == 0:
            raise ZeroDivisionError("planted")
        self._policy.observe(observation)


class TrueClock:
    """Knows every period when the round starts; a prefill in between takes the last one away."""

    def __init__(self, costs: RoundCosts) -> None:
        self._costs = costs
        self._noise = np.random.default_rng(2)
        self._newest: Round | None = None
        self.slowdown = 1.0
        self.ms = 0.0  # of the newest round

    def start(self, launched: Round, num_in_flight: int) -> None:
        del num_in_flight
        shape = (launched.batch.size, launched.batch.context_tokens)
        self.ms = self._costs.round_ms(launched.tier, *shape) * self.slowdown
        measured = self.ms * (1 + COST_NOISE * float(self._noise.standard_normal()))
        launched.period = RoundTime(launched.plan, *shape, measured)
        self._newest = launched

    def interrupt(self, is_mixed: bool = False) -> None:
        if self._newest is not None:
            self._newest.period = None

    def poll(self, done: Round) -> Round | None:
        return done if done.period is not None else None


class TreeCosts:
    """Trees take what chains as deep do, and more with every token that is verified beyond."""

    def __init__(self, chains: RoundCosts) -> None:
        self._chains = chains

    def round_ms(self, tier: Tier, batch_size: int, context_tokens: int) -> float:
        """Returns the period."""
        ms = self._chains.round_ms(chain_tier(tier.num_steps), batch_size, context_tokens)
        num_more = tier.num_draft_tokens - tier.num_steps - 1
        return ms * (1 + TREE_TOKEN_SHARE * num_more * batch_size**0.5)

    def plain_extra_ms(self, batch_size: int, context_tokens: int) -> float:
        """Returns what catching up adds: as with chains."""
        return self._chains.plain_extra_ms(batch_size, context_tokens)


class Driven:
    """The same batches for one controller, or for those of several ranks."""

    def __init__(self, clock: TrueClock, *controllers: AdaptiveController) -> None:
        """Takes the clock of the first; every controller has a schedule of its own."""
        self._clock = clock
        self._controllers = controllers
        self.rows: list[list[Row]] = [[] for _ in controllers]
        self._draws = np.random.default_rng(3)
        self._names = itertools.count()
        self._requests: list[int] = []
        self._in_flight: list[tuple[int, Round]] = []
        self._now_s = 0.0

    def run(self, results_go_wrong: bool = False, has_neighbour: bool = False) -> list[Row]:
        """Returns the rounds of the first rank; ``rows`` has those of all."""
        for number in range(NUM_ROUNDS):
            is_beside = has_neighbour and number // ROUNDS_A_SIZE % 2 == 1
            self._clock.slowdown = NEIGHBOUR_MS if is_beside else 1.0
            self._launch(number)
            if len(self._in_flight) > 1:
                self._report(*self._in_flight.pop(0), results_go_wrong)
        for controller in self._controllers:
            controller.learn()
        return self.rows[0]

    def _launch(self, number: int) -> None:
        joined = tuple(_come_and_go(self._requests, self._names, number))
        requests = self._requests
        batch = DecodeBatch(len(requests), tuple(requests), 300 * len(requests), self._now_s)
        firsts = None
        for controller, rows in zip(self._controllers, self.rows, strict=True):
            if joined:
                controller.before_extend(joined)
            launched = controller.before_decode(batch)
            if launched.plan.is_catch_up:
                firsts = firsts or KnownFirstDrafts(*(self._draws.random(len(requests)) < 0.7))
                launched.first_drafts = firsts
            rows.append((launched.batch.size, launched.tier.label, launched.is_probe))
        self._now_s += self._clock.ms / 1e3
        self._in_flight.append((number, launched))

    def _report(self, number: int, launched: Round, results_go_wrong: bool) -> None:
        """Hands the controllers the result of a round, or what came of it."""
        correct = self._num_correct_drafts(number, launched)
        if results_go_wrong and (number % LOST_EVERY == 0 or number in ALL_LOST):
            return
        for controller in self._controllers:
            if results_go_wrong and number % MISFIT_EVERY == 0:
                controller.observe([0] * 99, 99)
            controller.observe(correct, launched.batch.size)

    def _num_correct_drafts(self, number: int, launched: Round) -> list[int]:
        level = LEVELS[number // ROUNDS_A_LEVEL % len(LEVELS)]
        is_even = np.array(launched.batch.requests, dtype=int) % 2 == 0
        hazards = np.where(is_even, level, 0.8 * level)
        tier = launched.tier
        if tier.topk > 1:  # a draft holds if one of its siblings does, unless they are cut
            hazards = 1 - (1 - hazards) ** min(tier.topk, tier.num_drafts / tier.num_steps)
        held = self._draws.random((launched.batch.size, MAX_STEPS)) < hazards[:, None]
        correct = held.cumprod(axis=1).sum(axis=1).clip(max=tier.num_steps)
        num_correct: list[int] = correct.tolist()
        return num_correct


def _come_and_go(requests: list[int], names: Iterable[int], number: int) -> list[int]:
    """Lets requests leave and join before a round; returns who joined."""
    if number % ROUNDS_A_REQUEST == 0:
        del requests[:1]
    size = SIZES[number // ROUNDS_A_SIZE % len(SIZES)]
    del requests[: max(len(requests) - size, 0)]
    has_joined = list(itertools.islice(names, size - len(requests)))
    requests += has_joined
    return has_joined


def _controller(policy: Any, clock: TrueClock | None) -> AdaptiveController:
    startup_tier = policy.ladder.tiers[-1]
    return AdaptiveController(policy, FakePool(), startup_tier, clock, CatchUpSchedule())


def with_faults() -> list[Row]:
    """Returns the rounds where results are lost, fit no round, or make the policy fail."""
    costs = ExampleCosts("flashinfer")
    clock = TrueClock(costs)
    controller = _controller(FailingPolicy(goodput(costs, load_config(None), COST_NOISE)), clock)
    return Driven(clock, controller).run(results_go_wrong=True)


def on_ranks() -> list[list[Row]]:
    """Returns the rounds of each of two ranks: the first times them, both learn at once."""
    costs = ExampleCosts("flashinfer")
    clock = TrueClock(costs)
    told: list[Sequence[RoundTime]] = []

    def broadcast_from(rank: int) -> Callable[[Sequence[RoundTime]], Sequence[RoundTime]]:
        def broadcast(times: Sequence[RoundTime]) -> Sequence[RoundTime]:
            if rank == 0:
                told[:] = [times]
            return told[0]

        return broadcast

    ranks, config = [], load_config(None)
    for rank in (0, 1):
        table = seed_table(CostTable.empty(config.tiers), costs, noise=COST_NOISE)
        steps = config.initial_steps(None)
        policy = build_policy(config, steps, costs=table, learns_own_times=False)
        ranks.append(_controller(policy, clock if rank == 0 else None))
        ranks[-1].shared_times = SharedTimes(policy.learn_time, broadcast_from(rank))
    driven = Driven(clock, *ranks)
    driven.run(has_neighbour=True)
    return driven.rows


def with_trees() -> list[Row]:
    """Returns the rounds of a ladder with trees, whose siblings make drafts likelier to hold."""
    costs = TreeCosts(ExampleCosts("flashinfer"))
    clock = TrueClock(costs)
    policy = goodput(costs, load_config(str(TREES)), COST_NOISE)
    return Driven(clock, _controller(policy, clock)).run()
