"""Makes the policy that a config asks for."""

from sglang_adaptive_spec.config.schema import AdaptiveConfig
from sglang_adaptive_spec.policy.acceptance.model import AcceptanceModel
from sglang_adaptive_spec.policy.costs.table import CostTable
from sglang_adaptive_spec.policy.ema import EmaPolicy
from sglang_adaptive_spec.policy.goodput import GoodputPolicy
from sglang_adaptive_spec.tiers import Policy


def build_policy(config: AdaptiveConfig, initial_steps: int) -> Policy:
    """Returns a fresh policy; a goodput policy knows no costs yet."""
    if config.policy == "ema":
        return EmaPolicy(config, initial_steps)
    candidates = {bound: slot.tiers for bound, slot in config.slots.items()}
    costs = CostTable.empty(config.tiers)
    trees = [tier for tier in config.tiers if tier.topk > 1]
    acceptance = AcceptanceModel(max(tier.num_steps for tier in config.tiers), trees)
    return GoodputPolicy(candidates, costs, acceptance, config.initial_tier(initial_steps))
