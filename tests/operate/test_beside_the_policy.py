"""The tier that `explain` names from what a server learned, beside the one its policy settles on.

Both are judged by the true costs, which neither knows.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from sglang_adaptive_spec.config.schema import parse_config
from sglang_adaptive_spec.operate.explain.break_even import Explorer
from sglang_adaptive_spec.operate.explain.source import of_state
from sglang_adaptive_spec.policy.acceptance.tree_hazards import guessed_lift
from sglang_adaptive_spec.simulate.command import goodput
from sglang_adaptive_spec.simulate.true_costs import ExampleCosts
from sglang_adaptive_spec.tiers import DecodeBatch, Tier
from tests.policy.rounds import Loop

CHAINS = '"1": {"candidate_steps": [0, 1, 2, 3, 5, 7]}'
TREES = '"1": {"candidate_steps": [0, 1, 3, 5], "candidate_tiers": [[2, 4, 7], [4, 4, 12]]}'
NUM_ROUNDS = 500
SEED_NOISE = 0.02


class WiderCosts(ExampleCosts):
    """The example, in which every token that a tree verifies beyond its depth takes time, too."""

    def round_ms(self, tier: Tier, batch_size: int, context_tokens: int) -> float:
        beyond = tier.num_draft_tokens - tier.num_steps - 1
        return super().round_ms(tier, batch_size, context_tokens) + 0.004 * beyond * batch_size


def drawn(rng: np.random.Generator, size: int, acceptance: float, tier: Tier) -> list[int]:
    """Returns what a round of a tier accepts per request."""
    odds = acceptance / (1 - acceptance) * np.exp(guessed_lift(tier))
    held = rng.random((size, tier.num_steps)) < odds / (1 + odds)
    return [int(count) for count in held.cumprod(axis=1).sum(axis=1)]


def served(slots: str, size: int, acceptance: float) -> Any:
    """Returns the policy after rounds of one batch."""
    config = parse_config("x", f'{{"policy": "goodput", {slots}}}'.encode())
    costs, rng = WiderCosts(), np.random.default_rng(3)
    policy = goodput(costs, config, SEED_NOISE)
    loop = Loop(policy, lambda tier, batch: costs.round_ms(tier, batch, 0))
    requests = tuple(f"r{idx}" for idx in range(size))
    for _ in range(NUM_ROUNDS):
        loop.run(
            requests,
            lambda tier: drawn(rng, size, acceptance, tier),
            lambda: rng.random(size) < acceptance,
        )
    loop.end()
    return policy


@pytest.mark.parametrize("slots", [CHAINS, TREES], ids=["chains", "trees"])
@pytest.mark.parametrize("size", [1, 8, 64])
def test_what_it_names_serves_what_the_policy_settles_on(slots: str, size: int) -> None:
    shares: list[float] = []
    named: Sequence[Tier] = []
    for acceptance in (0.2, 0.5, 0.7, 0.85, 0.95):
        policy = served(slots, size, acceptance)
        batch = DecodeBatch(size, tuple(f"r{idx}" for idx in range(size)))
        state = {"policy": "goodput", "current_tier": policy.home.label, **policy.state(batch)}
        found = of_state(state, "here", context=1).explorer.pays(size, acceptance).tier
        truth = Explorer(WiderCosts(), policy.ladder, context=0)
        best = truth.rate(policy.home, size, acceptance)
        shares.append(truth.rate(found, size, acceptance) / best)
        named = [*named, found]
    assert min(shares) >= 0.99, list(zip(named, shares, strict=True))
    assert len(set(named)) > 1
