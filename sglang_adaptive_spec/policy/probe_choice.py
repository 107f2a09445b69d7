"""Which tier is worth a look: one that might win, and shows what the tier in force does not.

That is a deeper one. Between chain and tree, or two trees, it is any but zero steps: what one of
them accepts tells about the other only as far as the tree's lift is known.
"""

from collections.abc import Hashable, Sequence

from sglang_adaptive_spec.policy.acceptance.model import AcceptanceModel
from sglang_adaptive_spec.policy.decision import Decision
from sglang_adaptive_spec.policy.probing import probe_rounds
from sglang_adaptive_spec.policy.settings import ProbingSettings
from sglang_adaptive_spec.tiers import PLAIN_TIER, Tier, chain_tier


class ProbeChoice:
    """Weighs looks at other tiers after one decision."""

    def __init__(
        self,
        acceptance: AcceptanceModel,
        requests: Sequence[Hashable],
        decision: Decision,
        depth: int,
        settings: ProbingSettings,
    ) -> None:
        """Takes the decision and the deepest position that rounds at its tier observe."""
        self._acceptance, self._requests, self._settings = acceptance, requests, settings
        self._tiers, self._home, self._depth = decision.tiers, decision.home, depth
        self._ms = decision.round_ms
        self._rates = decision.rates()
        self._home_rate = self._rates[decision.tiers.index(decision.home)]

    def next_tier(self, last: Tier) -> tuple[Tier, float] | None:
        """Returns the tier to look at and its round time, if any.

        In a ladder of chains the shallowest: a deeper one would show no more of what it lacks. With
        trees the next after ``last``, so that two that stay in doubt do not keep others waiting.
        """
        order = list(range(len(self._tiers)))
        if self._acceptance.trees:
            order.sort(key=lambda idx: self._tiers[idx] <= last)
        for idx in order:
            tier = self._tiers[idx]
            is_new = tier.num_steps > self._depth or self.needs_lift(tier)
            if is_new and self.may_win(tier):
                return tier, float(self._ms[idx])
        return None

    def num_rounds(self, tier: Tier) -> int:
        """Returns how many rounds at ``tier`` show what those at the tier in force do not."""
        if self.needs_lift(tier):
            return probe_rounds(len(self._requests), self._settings)
        # Deeper tiers show something new where the drafts seen so far all hold.
        seen = self._home if self._home.num_steps else chain_tier(self._depth)
        reaching = self._acceptance.reaching(self._requests, seen, self._depth)
        return probe_rounds(reaching, self._settings)

    def may_win(self, tier: Tier) -> bool:
        """Returns whether it is not ruled out that ``tier`` beats the tier in force."""
        if tier not in self._tiers:
            return False
        to_beat = self._home_rate * float(self._ms[self._tiers.index(tier)])
        model, requests = self._acceptance, self._requests
        if model.ceiling(requests, tier) <= to_beat:
            return False
        is_deeper = tier.num_steps > self._depth
        if is_deeper and model.most_tokens(requests, tier, self._depth) > to_beat:
            return True
        return self.needs_lift(tier) and model.upper_tokens(requests, tier, self._home) > to_beat

    def needs_lift(self, tier: Tier) -> bool:
        """Returns whether a lift must be known to compare ``tier`` with the tier in force."""
        is_tree_involved = max(tier.topk, self._home.topk) > 1
        return is_tree_involved and tier not in (self._home, PLAIN_TIER)

    def lost_share(self, tier: Tier) -> float:
        """Returns the share of the home tier's rate that rounds at ``tier`` forgo."""
        if tier not in self._tiers:
            return 0.0
        return max(0.0, 1.0 - self._rates[self._tiers.index(tier)] / self._home_rate)
