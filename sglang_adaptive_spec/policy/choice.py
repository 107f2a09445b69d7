"""Which tier to settle on, given what every tier is expected to serve and take.

Against the tier in force h, the best tier b gains g = 1 - rate(h) / rate(b), a share of its tokens.
h is left where g exceeds the noise of that difference. Downwards only past tiers that are surely
worse: a shallower one stops observing them.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

from sglang_adaptive_spec.policy.acceptance.hazards import Floats
from sglang_adaptive_spec.policy.acceptance.model import AcceptanceModel
from sglang_adaptive_spec.policy.costs.table import CostTable
from sglang_adaptive_spec.policy.settings import Settings
from sglang_adaptive_spec.tiers import Tier


class Choice(NamedTuple):
    """Where to stay or go, and why."""

    tier: Tier
    best: Tier  # with the most expected tokens per ms
    reason: str


class Model(NamedTuple):
    """What a decision is made from."""

    acceptance: AcceptanceModel
    costs: CostTable
    requests: Sequence[Hashable]
    has_first: bool  # zero-step rounds tell about position 1


def lead_noise(model: Model, settings: Settings, best: Tier, other: Tier, tokens: float) -> float:
    """Returns how uncertain the best tier's lead over another is, as a share of its ``tokens``."""
    acceptance, costs, switch_z = model.acceptance, model.costs, settings.choice.switch_z
    noise = switch_z * math.hypot(costs.relative_noise(best), costs.relative_noise(other))
    noise = min(noise, settings.choice.max_cost_noise)
    # What the shallower one does not observe. A deeper tier finds out by itself, so does one of
    # another kind: for the deeper the acceptance counts once it is well known.
    shallow, deep = sorted((best, other))
    well_known = settings.acceptance.slow_memory / 2
    if best == shallow or acceptance.age(deep.num_steps) >= well_known:
        seen = shallow.num_steps or int(model.has_first)
        drafts = acceptance.noise_beyond(model.requests, deep, seen)
        noise = math.hypot(noise, switch_z * drafts / tokens)
    return noise


def choose(
    tiers: tuple[Tier, ...],
    tokens: Floats,
    round_ms: Floats,
    home: Tier,
    noise: Callable[[Tier, Tier, float], float],
) -> Choice:
    """Returns the tier to be on.

    Args:
        tiers: Those that the batch may choose, shallowest first; ``home`` is one of them.
        tokens: [tiers] expected per round.
        round_ms: [tiers].
        home: The tier in force.
        noise: How uncertain the lead of the first tier over the second is, as a share of the
            first one's tokens, the third argument. Asked for no more tiers than the choice needs.
    """
    rates = tokens / round_ms
    best_idx, home_idx = int(rates.argmax()), tiers.index(home)
    best = tiers[best_idx]
    if best == home:
        return Choice(home, best, "best")
    gains = 1.0 - rates / rates[best_idx]

    def is_within_noise(idx: int) -> bool:
        return bool(gains[idx] <= noise(best, tiers[idx], tokens[best_idx]))

    if is_within_noise(home_idx):
        return Choice(home, best, "within noise")
    for idx in range(home_idx - 1, best_idx, -1):  # none where the best tier is the deeper one
        if is_within_noise(idx):
            return Choice(tiers[idx], best, "deepest within noise")
    return Choice(best, best, "gain beyond noise")
