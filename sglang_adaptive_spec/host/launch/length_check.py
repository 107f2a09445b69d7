"""How much of the context a request must leave free.

Under speculation the host takes prompt and answer only if the drafts of a round fit behind them,
whatever the round drafts (sglang 0.5.23 managers/utils.py:compute_num_reserved_tokens). Here
batches near the end of the context run their shallowest tier (loop/controller.py), so no more than
that one's width must stay free: nothing where a batch may run zero steps.
"""

from sglang_adaptive_spec.ladder import Ladder
from sglang_adaptive_spec.tiers import PLAIN_TIER, Tier


def reserved_tokens(ladder: Ladder) -> int:
    """Returns the tokens that a round near the end of the context may write beyond the answer."""
    return max(_drafted_tokens(tiers[0]) for tiers in ladder.ranges.values())


def _drafted_tokens(tier: Tier) -> int:
    if tier == PLAIN_TIER:
        return 0
    return max(tier.num_steps * tier.topk, tier.num_draft_tokens)
