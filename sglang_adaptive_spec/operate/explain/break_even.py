"""Which tier pays for a batch and an acceptance, and from which acceptance on any does.

    rate(t) = batch_size * n(t) / round_ms(t)        n = 1 + a + .. + a^K = (1 - a^(K+1)) / (1 - a)

n is what a chain of K drafts gives a request in a round if every draft holds with chance a, given
that those before it did. A tree adds its lift to the log-odds of a (policy/acceptance/).
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul
from typing import NamedTuple

from sglang_adaptive_spec.ladder import Ladder
from sglang_adaptive_spec.policy.acceptance.tree_hazards import guessed_lift
from sglang_adaptive_spec.simulate.replay import RoundCosts
from sglang_adaptive_spec.tiers import PLAIN_TIER, Tier

HIGHEST = 0.999  # acceptance that is looked at
BISECTIONS = 20  # of [0, 1]: to a millionth


class Pays(NamedTuple):
    """The tier that serves most, and what it gains."""

    tier: Tier
    over_none: float  # tokens/s over those of no speculation
    over_fixed: float | None  # and over those of a fixed depth, if it was measured


class Equation(NamedTuple):
    """The throughput equation of a chain with its numbers."""

    tier: Tier
    tokens: float  # n, of a request and round
    draft_ms: float | None  # of a line through the chains' rounds: t = K * draft + verify
    verify_ms: float | None
    round_ms: float  # as measured
    none_ms: float
    tokens_per_s: float
    none_tokens_per_s: float


@dataclass(frozen=True)
class Explorer:
    """Answers from round times and a ladder; every request has the same context and acceptance."""

    times: RoundCosts
    ladder: Ladder
    context: int  # tokens of a request
    fixed_steps: int = 3
    lifts: Mapping[Tier, Sequence[float]] = field(default_factory=dict)  # of trees, by depth

    def tokens(self, tier: Tier, acceptance: float) -> float:
        """Returns the tokens of a request in a round of ``tier``."""
        hazards = [_raised(acceptance, each) for each in self.lifts_of(tier)]
        survival: list[float] = list(accumulate(hazards, mul))
        return 1.0 + sum(survival)

    def lifts_of(self, tier: Tier) -> list[float]:
        """Returns by depth what is added to the log-odds of the acceptance; of a chain zeros."""
        lifts = self.lifts.get(tier, [guessed_lift(tier)] * tier.num_steps)
        return list(lifts[: tier.num_steps])

    def round_ms(self, tier: Tier, batch_size: int) -> float:
        """Returns what a round takes, as measured."""
        return self.times.round_ms(tier, batch_size, self.context * batch_size)

    def none_ms(self, batch_size: int) -> float:
        """Returns what a round without speculation takes: a zero-step round without catch-ups."""
        extra_ms = self.times.plain_extra_ms(batch_size, self.context * batch_size)
        return self.round_ms(PLAIN_TIER, batch_size) - extra_ms

    def rate(self, tier: Tier, batch_size: int, acceptance: float) -> float:
        """Returns the tokens a second of a batch."""
        tokens = batch_size * self.tokens(tier, acceptance)
        return 1e3 * tokens / self.round_ms(tier, batch_size)

    def pays(self, batch_size: int, acceptance: float) -> Pays:
        """Returns the tier that serves most tokens a second."""
        tiers = self.ladder.of(batch_size)
        best = max(tiers, key=lambda tier: self.rate(tier, batch_size, acceptance))
        rate = self.rate(best, batch_size, acceptance)
        fixed = [t for t in self.ladder.tiers if t.topk == 1 and t.num_steps == self.fixed_steps]
        over_fixed = rate / self.rate(fixed[0], batch_size, acceptance) if fixed else None
        return Pays(best, rate * self.none_ms(batch_size) / batch_size / 1e3, over_fixed)

    def break_even(self, batch_size: int) -> float | None:
        """Returns the least acceptance at which some draft pays; None if none does."""
        drafting = [tier for tier in self.ladder.of(batch_size) if tier != PLAIN_TIER]
        none = 1e3 * batch_size / self.none_ms(batch_size)

        def does_pay(acceptance: float) -> bool:
            return any(self.rate(tier, batch_size, acceptance) >= none for tier in drafting)

        if not does_pay(HIGHEST):
            return None
        low, high = 0.0, HIGHEST  # more acceptance never gives fewer tokens
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            low, high = (low, middle) if does_pay(middle) else (middle, high)
        return high

    def equation(self, batch_size: int, acceptance: float) -> Equation | None:
        """Returns the numbers of the equation for the best chain; None where none may run."""
        chains = [t for t in self.ladder.of(batch_size) if t.topk == 1 and t != PLAIN_TIER]
        if not chains:
            return None
        best = max(chains, key=lambda tier: self.rate(tier, batch_size, acceptance))
        draft_ms, verify_ms = _line(
            [tier.num_steps for tier in chains], [self.round_ms(t, batch_size) for t in chains]
        )
        none_ms = self.none_ms(batch_size)
        return Equation(
            best,
            self.tokens(best, acceptance),
            draft_ms,
            verify_ms,
            self.round_ms(best, batch_size),
            none_ms,
            self.rate(best, batch_size, acceptance),
            1e3 * batch_size / none_ms,
        )


def _raised(hazard: float, lift: float) -> float:
    """Returns a chance whose log-odds are higher by ``lift``."""
    if hazard in (0.0, 1.0):
        return hazard
    odds = hazard / (1.0 - hazard) * math.exp(lift)
    return odds / (1.0 + odds)


def _line(xs: Sequence[int], ys: Sequence[float]) -> tuple[float | None, float | None]:
    """Returns slope and intercept of the line nearest to the points; None of fewer than two."""
    return statistics.linear_regression(xs, ys) if len(xs) > 1 else (None, None)
