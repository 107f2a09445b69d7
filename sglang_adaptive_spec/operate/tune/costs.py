"""Round times of tiers that nobody measured: on the lines through the chains that somebody did."""

from sglang_adaptive_spec.policy.costs.table import CostTable
from sglang_adaptive_spec.simulate.true_costs import line
from sglang_adaptive_spec.tiers import PLAIN_TIER, Tier


class ExtendedCosts:
    """A server's cost table as `RoundCosts` of any depth.

    Between two measured depths above zero a period is linear, beyond the last two their line goes
    on: the verify of more tokens takes longer at the same pace. That is a guess until a server has
    built the tier and measured it.
    """

    def __init__(self, table: CostTable) -> None:
        """Takes the table of a server with zero steps and two other chains, or more."""
        self._table = table
        self._measured = frozenset(table.tiers)
        self._chains = sorted(tier for tier in table.tiers if tier.topk == 1 and tier != PLAIN_TIER)
        self._depths = [tier.num_steps for tier in self._chains]

    def round_ms(self, tier: Tier, batch_size: int, context_tokens: int) -> float:
        """Returns the period, measured or on the line."""
        if tier in self._measured:
            return self._table.round_ms(tier, batch_size, context_tokens)
        periods = [self._table.round_ms(each, batch_size, context_tokens) for each in self._chains]
        return line(self._depths, periods, tier.num_steps)

    def plain_extra_ms(self, batch_size: int, context_tokens: int) -> float:
        """Returns a catch-up's share of every zero-step round."""
        return self._table.plain_extra_ms(batch_size, context_tokens)
