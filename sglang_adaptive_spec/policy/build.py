"""Makes the policy that a config asks for."""

from sglang_adaptive_spec.config.schema import AdaptiveConfig
from sglang_adaptive_spec.ladder import Ladder
from sglang_adaptive_spec.policy.acceptance.model import AcceptanceModel
from sglang_adaptive_spec.policy.costs.table import CostTable
from sglang_adaptive_spec.policy.ema import EmaPolicy
from sglang_adaptive_spec.policy.goodput import GoodputPolicy
from sglang_adaptive_spec.policy.protocol import Policy


def build_policy(
    config: AdaptiveConfig, initial_steps: int, ladder: Ladder | None = None
) -> Policy:
    """Returns a fresh policy; a goodput policy knows no costs yet.

    Args:
        config: What the user asked for.
        initial_steps: Where to start.
        ladder: What of the config's tiers a server has; all without one.
    """
    ladder = ladder or config.ladder
    if config.policy == "ema":
        return EmaPolicy(config.on(ladder), initial_steps)
    costs = CostTable.empty(config.tiers)
    trees = [tier for tier in config.tiers if tier.topk > 1]
    acceptance = AcceptanceModel(max(tier.num_steps for tier in config.tiers), trees)
    return GoodputPolicy(ladder, costs, acceptance, config.initial_tier(initial_steps))
