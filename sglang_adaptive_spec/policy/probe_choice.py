"""Which tier is worth a look: one that might win, and shows what the tier in force does not.

That is a deeper one. Between chain and tree, or two trees, it is any but zero steps: what one of
them accepts tells about the other only as far as the tree's lift is known. Apart from that, a tier
whose uncertain round time could make it the best is looked at for its time.
"""

import math

from sglang_adaptive_spec.policy.choice import Model
from sglang_adaptive_spec.policy.costs.corrections import SETTLING_ROUNDS
from sglang_adaptive_spec.policy.decision import Decision
from sglang_adaptive_spec.policy.settings import Settings
from sglang_adaptive_spec.tiers import PLAIN_TIER, Tier, chain_tier

MIN_PROBE_ROUNDS = SETTLING_ROUNDS + 1  # the last one's time tells own from drift


class ProbeChoice:
    """Weighs looks at other tiers after one decision."""

    def __init__(self, decision: Decision, model: Model, settings: Settings) -> None:
        self._decision, self._settings = decision, settings
        self._acceptance, self._costs, self._requests, has_first = model
        self._tiers, self._home = decision.tiers, decision.home
        # The deepest position that rounds at the tier in force observe.
        self._depth = decision.home.num_steps or int(has_first)
        self._ms, self._period_ms = decision.round_ms, decision.period_ms
        self._rates = decision.tokens / self._period_ms
        self._home_rate = float(self._rates[decision.tiers.index(decision.home)])

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

    def doubtful_time(self, but: Tier | None, is_curious: bool) -> tuple[Tier, float] | None:
        """Returns the tier whose uncertain round time could make it the best, and that time.

        Args:
            but: A tier to leave out.
            is_curious: Whether seeds may be twice too high.
        """
        # One that is better as far as known is not in force for what it accepts.
        in_doubt = self._rates <= self._home_rate
        if but is not None:
            in_doubt &= [tier != but for tier in self._tiers]
        least = self._costs.least_share_all(self._tiers, self._decision.batch_size, is_curious)
        rates = self._decision.tokens / (self._period_ms - (1 - least) * self._ms)
        idx = int((rates * in_doubt).argmax())
        to_beat = self._home_rate * (1 + self._settings.choice.max_cost_noise)
        if in_doubt[idx] and rates[idx] > to_beat:
            return self._tiers[idx], float(self._ms[idx])
        return None

    def num_rounds(self, tier: Tier) -> int:
        """Returns how many rounds at ``tier`` show what those at the tier in force do not."""
        if self.needs_lift(tier):
            reaching = float(len(self._requests))
        else:  # deeper tiers show something new where the drafts seen so far all hold
            seen = self._home if self._home.num_steps else chain_tier(self._depth)
            reaching = self._acceptance.reaching(self._requests, seen, self._depth)
        settings = self._settings.probing
        wanted = math.ceil(settings.evidence / max(reaching, 1e-3))
        return min(max(wanted, MIN_PROBE_ROUNDS), settings.max_rounds)

    def may_win(self, tier: Tier) -> bool:
        """Returns whether it is not ruled out that ``tier`` beats the tier in force."""
        if tier not in self._tiers:
            return False
        to_beat = self._home_rate * float(self._period_ms[self._tiers.index(tier)])
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
        return max(0.0, 1.0 - float(self._rates[self._tiers.index(tier)]) / self._home_rate)
