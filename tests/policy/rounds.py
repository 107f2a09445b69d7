"""A server of rounds for policy tests: known acceptance, known round times, no GPU.

The loop is the product's own controller: results reach the policy one round late, and leaving zero
steps takes a catch-up round first. A zero-step round whose draft was level tells whether the
draft's first token would have held.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from sglang_adaptive_spec.ladder import Ladder
from sglang_adaptive_spec.loop.catch_up import CatchUpSchedule
from sglang_adaptive_spec.loop.controller import AdaptiveController
from sglang_adaptive_spec.loop.round import Round
from sglang_adaptive_spec.policy.acceptance.model import AcceptanceModel
from sglang_adaptive_spec.policy.goodput import GoodputPolicy
from sglang_adaptive_spec.tiers import (
    CATCH_UP_ROUNDS,
    NO_LIMITS,
    PLAIN_TIER,
    DecodeBatch,
    RoundTime,
    Tier,
    chain_tier,
)
from tests.controller_fakes import STARTUP, FakePool, KnownFirstDrafts, KnownPeriods

STEPS = (0, 1, 2, 3, 5, 7)
MAX_STEPS = max(STEPS)
TIERS = tuple(chain_tier(steps) for steps in STEPS)

RoundMs = Callable[[int, int], float]  # of (num_steps, batch_size)


def round_ms(num_steps: int, batch_size: int) -> float:
    """Memory-bound at first, then every drafted token costs; zero steps skip the verify."""
    if num_steps == 0:
        return 5.0 + 0.01 * batch_size
    tokens = batch_size * (num_steps + 1)
    drafting = num_steps * (0.33 + 0.002 * batch_size)
    return 5.6 + 0.012 * batch_size + drafting + 0.008 * max(0, tokens - 200)


class KnownCosts:
    """A cost table that is right from the start."""

    def __init__(self, ms: RoundMs = round_ms) -> None:
        self.ms = ms
        self.drift = 1.0

    def round_ms_all(
        self, tiers: tuple[Tier, ...], batch_size: int, context_tokens: int
    ) -> np.ndarray:
        return self.drift * np.array([self.ms(tier.num_steps, batch_size) for tier in tiers])

    def seeded_ms(self, tier: Tier, batch_size: int, context_tokens: int) -> float:
        return self.ms(tier.num_steps, batch_size)

    def plain_extra_ms(self, batch_size: int, context_tokens: int) -> float:
        return 0.1 * self.ms(0, batch_size) / CATCH_UP_ROUNDS

    def relative_noise(self, tier: Tier) -> float:
        return 0.003

    def least_share_all(self, tiers: tuple[Tier, ...], *_: object) -> np.ndarray:
        return np.ones(len(tiers))  # nothing is in doubt

    def observe(self, round_time: RoundTime) -> None:
        """Knows already."""

    def snapshot(self) -> dict[str, Any]:
        return {}

    def describe(self, batch_size: int, context_tokens: int) -> dict[str, Any]:
        return {}


def goodput(
    initial: int = 3,
    ms: RoundMs = round_ms,
    slots: dict[int, Sequence[int]] | None = None,
) -> GoodputPolicy:
    """Returns a policy over `STEPS`, or over ``slots``."""
    candidates = {1: STEPS} if slots is None else slots
    tiers = {
        bound: [chain_tier(steps) for steps in allowed] for bound, allowed in candidates.items()
    }
    return GoodputPolicy(
        Ladder(tiers), KnownCosts(ms), AcceptanceModel(MAX_STEPS), chain_tier(initial)
    )


def true_tokens(hazards: np.ndarray, num_steps: int) -> float:
    """Returns the expected tokens of a round; ``hazards`` [requests, MAX_STEPS]."""
    survival = hazards[:, :num_steps].cumprod(axis=1)
    return len(hazards) + float(survival.sum())


def constant(hazard: float | Sequence[float], batch_size: int) -> np.ndarray:
    """Returns hazards [requests, MAX_STEPS] that do not depend on the position."""
    column = np.broadcast_to(np.asarray(hazard, dtype=float), (batch_size,))
    return np.repeat(column[:, None], MAX_STEPS, axis=1)


def half_and_half(batch_size: int) -> np.ndarray:
    """Returns hazards of a batch whose requests accept 0.3 and 0.9 in turns."""
    return constant([0.3 if idx % 2 == 0 else 0.9 for idx in range(batch_size)], batch_size)


def draw(rng: np.random.Generator, hazards: np.ndarray, num_steps: int) -> list[int]:
    """Returns accepted drafts per request."""
    held = rng.random((len(hazards), num_steps)) < hazards[:, :num_steps]
    return [int(count) for count in held.cumprod(axis=1).sum(axis=1)]


class Loop:
    """The real controller around one policy; results come one round late."""

    def __init__(self, policy: GoodputPolicy, ms: Callable[[Tier, int], float]) -> None:
        self.ms = ms
        clock = KnownPeriods(lambda launched: ms(launched.tier, launched.batch.size))
        self._controller = AdaptiveController(policy, FakePool(), STARTUP, clock, CatchUpSchedule())
        self._late: list[int] | None = None  # the result of the round in flight

    def run(
        self,
        requests: tuple[str, ...],
        counts: Callable[[Tier], list[int]],
        firsts: Callable[[], np.ndarray],
        limits: Mapping[Hashable, int] = NO_LIMITS,
    ) -> Round:
        """Runs a round.

        Args:
            requests: The rows of the batch.
            counts: Returns what they accept at a tier that drafts.
            firsts: Returns whether their first drafts would hold.
            limits: Drafts that count of some rows.
        """
        batch = DecodeBatch(len(requests), requests, limits=limits)
        launched = self._controller.before_decode(batch)
        if self._late is not None:
            self._controller.observe(self._late, len(self._late))
        assert self._controller.counters.num_policy_errors == 0
        if launched.tier != PLAIN_TIER:
            self._late = counts(launched.tier)
            return launched
        self._late = [0] * len(requests)
        if max(launched.debts, default=0) == 1:  # the draft was level
            launched.first_drafts = KnownFirstDrafts(*firsts().tolist())
        return launched

    def end(self) -> None:
        """Works through the results that wait."""
        self._controller.learn()


class Server:
    """Runs decode rounds of one policy and keeps what happened."""

    def __init__(self, policy: GoodputPolicy, ms: RoundMs = round_ms, seed: int = 0) -> None:
        self.policy = policy
        self.ms = ms
        self.rng = np.random.default_rng(seed)
        self.steps: list[int] = []  # of every round, as run
        self.total_ms = 0.0
        self.probing_ms = 0.0  # rounds for which another tier than the one in force was asked
        self.tokens = 0.0  # expected at what was run, so that luck does not blur a comparison
        self._loop = Loop(policy, lambda tier, size: self.ms(tier.num_steps, size))

    def run(
        self,
        num_rounds: int,
        hazards: np.ndarray,
        name: str = "r",
        limits: Mapping[Hashable, int] = NO_LIMITS,
    ) -> None:
        """Runs rounds of one batch: request i is ``name`` and i, at ``hazards[i]``."""
        requests = tuple(f"{name}{idx}" for idx in range(len(hazards)))
        for _ in range(num_rounds):
            launched = self._loop.run(
                requests,
                lambda tier: draw(self.rng, hazards, tier.num_steps),
                lambda: self.rng.random(len(hazards)) < hazards[:, 0],
                limits,
            )
            tier = launched.tier
            ms = self._loop.ms(tier, len(requests))
            self.steps.append(tier.num_steps)
            self.total_ms += ms
            self.probing_ms += launched.is_probe * ms
            self.tokens += true_tokens(hazards, tier.num_steps)
        self._loop.end()

    @property
    def num_switches(self) -> int:
        """Rounds that ran at another tier than the one before."""
        return sum(one != other for one, other in pairwise(self.steps))


def rates(hazards: np.ndarray, ms: RoundMs = round_ms) -> dict[int, float]:
    """Returns the true tokens per ms of every step count."""
    return {steps: true_tokens(hazards, steps) / ms(steps, len(hazards)) for steps in STEPS}


def best_steps(hazards: np.ndarray, ms: RoundMs = round_ms) -> int:
    """Returns the step count with the most tokens per ms."""
    by_steps = rates(hazards, ms)
    return max(by_steps, key=by_steps.__getitem__)
