"""Makes the policy that a config asks for; nowhere else is one made for a server."""

from sglang_adaptive_spec.config.schema import AdaptiveConfig
from sglang_adaptive_spec.ladder import Ladder
from sglang_adaptive_spec.policy.acceptance.joint import JointAcceptance
from sglang_adaptive_spec.policy.acceptance.model import AcceptanceModel
from sglang_adaptive_spec.policy.costs.table import CostTable
from sglang_adaptive_spec.policy.ema import EmaPolicy
from sglang_adaptive_spec.policy.goodput import GoodputPolicy
from sglang_adaptive_spec.policy.joint import JointPolicy
from sglang_adaptive_spec.policy.packing import Packing
from sglang_adaptive_spec.policy.protocol import Policy
from sglang_adaptive_spec.policy.settings import DEFAULTS, Settings


def build_policy(
    config: AdaptiveConfig,
    initial_steps: int,
    ladder: Ladder | None = None,
    costs: CostTable | None = None,
    learns_own_times: bool = True,
    settings: Settings = DEFAULTS,
    is_joint: bool = False,
    packing: Packing | None = None,
    are_runs_cut: bool = False,
) -> Policy:
    """Returns a fresh policy.

    Args:
        config: What the user asked for.
        initial_steps: Where to start.
        ladder: What of the config's tiers a server has; all without one.
        costs: What rounds take, for a policy that weighs it, made with their own settings. Without
            any an empty table, to be seeded before the policy chooses.
        learns_own_times: Else it waits to be told what all ranks learn (`Policy.learn_time`).
        settings: What goodput was tuned with.
        is_joint: Whether several ranks have requests of their own (policy/joint.py).
        packing: Chooses packed rounds of goodput, where a server has such; made with ``costs``.
        are_runs_cut: Whether zero-step rounds of several decodes end early where a request does.
    """
    ladder = ladder or config.ladder
    if config.policy == "ema":
        return EmaPolicy(config.on(ladder), initial_steps)
    costs = costs or CostTable.empty(config.tiers, settings=settings.costs)
    max_steps = max(tier.num_steps for tier in config.tiers)
    initial = config.initial_tier(initial_steps)
    if is_joint:
        return JointPolicy(ladder, costs, JointAcceptance(max_steps, settings), initial, settings)
    trees = [tier for tier in config.tiers if tier.topk > 1]
    acceptance = AcceptanceModel(max_steps, trees, settings)
    parts = ladder, costs, acceptance, initial, learns_own_times, settings, packing
    return GoodputPolicy(*parts, are_runs_cut)
