"""Worlds that a policy is put into: costs that are wrong or grow with tokens; its share there.

Costs here stand where `true_costs.py` has those of an example.
"""

from collections.abc import Callable, Sequence

import numpy as np

from sglang_adaptive_spec.policy.protocol import Choices
from sglang_adaptive_spec.simulate.replay import Replay, ReplayResult, RoundCosts
from sglang_adaptive_spec.simulate.workload import Workload
from sglang_adaptive_spec.tiers import Observation, Tier


class ExpertCosts:
    """A mixture of experts: the more tokens are verified, the more experts are read.

    A token reads one in `SHARE` of them; the chance that nobody reads an expert falls with every
    token, so each further draft costs much at a small batch and nothing at a large one.
    """

    SHARE = 1 / 16
    ALL_EXPERTS_MS = 6.0  # assumed: as much as the rest of a round of the example

    def __init__(self, costs: RoundCosts) -> None:
        self._costs = costs

    def round_ms(self, tier: Tier, batch_size: int, context_tokens: int) -> float:
        """Returns the period, experts included."""
        num_tokens = batch_size * tier.num_draft_tokens
        ms = self._costs.round_ms(tier, batch_size, context_tokens)
        return ms + self.ALL_EXPERTS_MS * (1 - (1 - self.SHARE) ** num_tokens)

    def plain_extra_ms(self, batch_size: int, context_tokens: int) -> float:
        """Returns what catching up adds: the draft has no experts."""
        return self._costs.plain_extra_ms(batch_size, context_tokens)


class HostBound:
    """A slow CPU: no drafting round takes less than ``host_ms``."""

    def __init__(self, costs: RoundCosts, host_ms: float) -> None:
        self._costs, self._host_ms = costs, host_ms

    def round_ms(self, tier: Tier, batch_size: int, context_tokens: int) -> float:
        """Returns what takes longer, the GPU's part or the host's."""
        ms = self._costs.round_ms(tier, batch_size, context_tokens)
        return max(ms, self._host_ms) if tier.num_steps else ms

    def plain_extra_ms(self, batch_size: int, context_tokens: int) -> float:
        """Returns what catching up adds, as on a fast CPU."""
        return self._costs.plain_extra_ms(batch_size, context_tokens)


class Slower:
    """A GPU that takes so many times longer, by steps."""

    def __init__(self, costs: RoundCosts, factor: Callable[[int], float]) -> None:
        self._costs, self._factor = costs, factor

    def round_ms(self, tier: Tier, batch_size: int, context_tokens: int) -> float:
        """Returns the slower period."""
        ms = self._costs.round_ms(tier, batch_size, context_tokens)
        return self._factor(tier.num_steps) * ms

    def plain_extra_ms(self, batch_size: int, context_tokens: int) -> float:
        """Returns what catching up adds, as on the faster one."""
        return self._costs.plain_extra_ms(batch_size, context_tokens)


class OtherMachine:
    """Costs that are wrong tier by tier, with and without context, by a factor of 2 at most."""

    def __init__(self, costs: RoundCosts, tiers: Sequence[Tier], seed: int) -> None:
        luck = np.random.default_rng(seed)
        self._costs = costs
        self._factors = {tier: 2.0 ** luck.uniform(-1.0, 1.0, 2) for tier in tiers}

    def round_ms(self, tier: Tier, batch_size: int, context_tokens: int) -> float:
        """Returns the other machine's period."""
        base_ms = self._costs.round_ms(tier, batch_size, 0)
        context_ms = self._costs.round_ms(tier, batch_size, context_tokens) - base_ms
        base, slope = self._factors[tier]
        return float(base * base_ms + slope * context_ms)

    def plain_extra_ms(self, batch_size: int, context_tokens: int) -> float:
        """Returns what catching up adds, as on the true machine."""
        return self._costs.plain_extra_ms(batch_size, context_tokens)


class SettledShare:
    """Adds up what rounds were worth beside the best tier in the same state; a `RoundRecorder`.

    Unlike a replay of the oracle it compares round by round, by expectation: no luck, and no state
    that one policy reaches earlier than the other. ``replay`` is set by whoever replays.
    """

    def __init__(
        self,
        workload: Workload,
        costs: RoundCosts,
        tiers: Sequence[Tier],
        since_s: float = 0.0,
        num_rounds: int = 500,
    ) -> None:
        """Counts from ``num_rounds`` rounds after second ``since_s`` of the replay."""
        self.replay: Replay | None = None
        self._workload, self._costs, self._tiers = workload, costs, tuple(tiers)
        self._since_s, self._rounds_left = since_s, num_rounds
        self._served = self._best = 0.0

    @property
    def share(self) -> float:
        """What the rounds gave over what the best tier would have given in their time."""
        return self._served / self._best

    def record(self, observation: Observation, context_tokens: int, now_s: float) -> None:
        """Takes a round as it runs."""
        assert self.replay is not None
        if now_s < self._since_s:
            return
        self._rounds_left -= 1
        if self._rounds_left >= 0:
            return
        live, clock = self.replay.live, self.replay.clock
        tokens = self._workload.expected_tokens(self._workload.phase(clock), live)
        ms = {
            tier: self._costs.round_ms(tier, live.size, context_tokens)
            * self._workload.slowdown(clock, tier.num_steps)
            for tier in {*self._tiers, observation.tier}
        }
        self._served += tokens[observation.tier.num_steps]
        best = max(tokens[tier.num_steps] / ms[tier] for tier in self._tiers)
        self._best += best * ms[observation.tier]


def settled_share(
    policy: Choices,
    workload: Workload,
    costs: RoundCosts,
    tiers: Sequence[Tier],
    since_s: float = 0.0,
) -> tuple[float, ReplayResult]:
    """Replays ``policy``; returns its `SettledShare` among ``tiers``, and what it served."""
    share = SettledShare(workload, costs, tiers, since_s)
    share.replay = Replay(policy, workload, costs, recorder=share)
    result = share.replay.run()
    return share.share, result
