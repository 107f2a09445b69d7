"""The choice between tiers, on numbers: when the tier in force is left, and how far."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_adaptive_spec.policy.acceptance.model import AcceptanceModel
from sglang_adaptive_spec.policy.choice import Model, choose, lead_noise
from sglang_adaptive_spec.policy.costs.table import CostTable
from sglang_adaptive_spec.policy.settings import DEFAULTS
from sglang_adaptive_spec.tiers import PLAIN_TIER, Tier, chain_tier

TIERS = tuple(chain_tier(steps) for steps in (0, 1, 3, 5, 7))
MS = np.array([5.0, 6.0, 7.0, 8.0, 9.0])
CHOICE = DEFAULTS.choice


def chosen(rates: list[float], home: int, noise: float) -> tuple[int, int, str]:
    """Returns the steps chosen, the best ones and the reason; the noise is the same for all."""
    asked: list[Tier] = []

    def of(best: Tier, other: Tier, tokens: float) -> float:
        assert tokens == pytest.approx(max(rates) * MS[TIERS.index(best)])
        asked.append(other)
        return noise

    choice = choose(TIERS, np.array(rates) * MS, MS, chain_tier(home), of)
    assert len(asked) == len(set(asked))
    return choice.tier.num_steps, choice.best.num_steps, choice.reason


@pytest.mark.parametrize(
    ("rates", "home", "noise", "found"),
    [
        ([1.0, 1.1, 1.2, 1.1, 1.0], 3, 0.0, (3, 3, "best")),
        ([1.0, 1.1, 1.2, 1.1, 1.0], 7, 0.5, (7, 3, "within noise")),
        ([1.0, 1.1, 1.2, 1.1, 1.0], 7, 0.0, (3, 3, "gain beyond noise")),
        ([1.0, 1.1, 1.2, 1.1, 1.0], 0, 0.1, (3, 3, "gain beyond noise")),
        # 5 steps are within noise of the best, 7 are not: it goes no further down.
        ([1.0, 1.1, 1.2, 1.1, 1.0], 7, 0.1, (5, 3, "deepest within noise")),
        # Upwards it passes tiers that are as good: they would not show what lies beyond.
        ([1.0, 1.19, 1.19, 1.2, 1.0], 0, 0.02, (5, 5, "gain beyond noise")),
    ],
)
def test_the_tier_in_force_is_left_beyond_noise_and_downwards_step_by_step(
    rates: list[float], home: int, noise: float, found: tuple[int, int, str]
) -> None:
    assert chosen(rates, home, noise) == found


@given(
    rates=st.lists(st.floats(0.5, 2.0), min_size=5, max_size=5),
    home=st.sampled_from([tier.num_steps for tier in TIERS]),
    noise=st.floats(0.0, 0.5),
)
def test_what_is_chosen_is_home_the_best_or_between_them(
    rates: list[float], home: int, noise: float
) -> None:
    tier, best, _ = chosen(rates, home, noise)
    assert min(home, best) <= tier <= max(home, best)
    steps = [one.num_steps for one in TIERS]
    lost = 1 - rates[steps.index(tier)] / max(rates)
    assert lost <= noise + 1e-9  # of what the best would serve


def test_position_1_is_no_reason_to_go_on_drafting_where_zero_steps_show_it() -> None:
    tier, acceptance = chain_tier(3), AcceptanceModel(max_steps=3)
    acceptance.observe(["a"], [1], tier)
    costs = CostTable.empty([PLAIN_TIER, tier])
    noise = {
        has_first: lead_noise(
            Model(acceptance, costs, ["a"], has_first), DEFAULTS, PLAIN_TIER, tier, tokens=1.0
        )
        for has_first in (False, True)
    }
    beyond_first = acceptance.noise_beyond(["a"], tier, 1)
    assert noise[True] == pytest.approx(
        math.hypot(CHOICE.max_cost_noise, CHOICE.switch_z * beyond_first)
    )
    assert noise[True] < 0.8 * noise[False]
