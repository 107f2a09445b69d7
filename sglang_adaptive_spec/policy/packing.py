"""Which drafts to verify, where a round may verify another number of each request's.

A draft of request r at depth d is worth the chance S_r(d) that it is accepted: the product of its
hazards up to there. These fall along a row, so the T - n largest of a batch of n make prefixes of
rows, and no other T tokens give more:

    tokens(t, T) = n + the sum of the T - n largest S_r(d), d up to the steps of t

(t, T) is one more choice beside the tiers, by expected tokens per ms with the measured time of that
T. In traffic of one kind a tier is as good, since all rows get the same; so packing must gain
`PackingSettings.min_gain` over it, and keep half of that.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from sglang_adaptive_spec.policy.acceptance.hazards import Floats
from sglang_adaptive_spec.policy.costs.widths import WidthCosts
from sglang_adaptive_spec.policy.settings import DEFAULTS, PackingSettings
from sglang_adaptive_spec.tiers import DecodeBatch, Plan, Tier


class Packed(NamedTuple):
    """A packed round, and what it is expected to give and to take."""

    plan: Plan
    tokens: float
    round_ms: float
    rate: float  # tokens per ms, from one round to the next


class Packing:
    """Chooses tier, tokens and lengths of packed rounds."""

    def __init__(
        self,
        costs: WidthCosts,
        window: int,
        most_rows: int,
        settings: PackingSettings = DEFAULTS.packing,
    ) -> None:
        """Takes what rounds cost, of rows of up to ``window`` tokens, so many at most."""
        self.costs, self._settings = costs, settings
        self._window, self._most_rows = window, most_rows
        self.newest: Packed | None = None  # in force; None: a tier is

    def describe(self) -> dict[str, object]:
        """Returns the packed round in force and what widths take, for /server_info."""
        newest = self.newest
        in_force = newest and {
            "tier": newest.plan.tier.label,
            "verify_lens": newest.plan.verify_lens,
            "tokens": round(newest.tokens, 3),
            "round_ms": round(newest.round_ms, 3),
        }
        return {"in_force": in_force, "widths": self.costs.describe()}

    def choose(
        self,
        batch: DecodeBatch,
        tiers: tuple[Tier, ...],
        survival: Floats,
        between_ms: Callable[[Floats], Floats],
        rate: float,
    ) -> None:
        """Takes the packed round in force that beats ``rate``, the best of all tiers; or none.

        Args:
            batch: Whose rows are asked about.
            tiers: That it may choose; trees are not packed.
            survival: [steps, rows] chance that a draft is accepted; falls along the steps.
            between_ms: What comes between rounds that give so many tokens: [W] of [W].
            rate: Tokens per ms.
        """
        margin = self._settings.min_gain * (0.5 if self.newest is not None else 1.0)
        best = self.best(batch, tiers, survival, between_ms)
        self.newest = best if best is not None and best.rate > (1 + margin) * rate else None

    def best(
        self,
        batch: DecodeBatch,
        tiers: tuple[Tier, ...],
        survival: Floats,
        between_ms: Callable[[Floats], Floats],
    ) -> Packed | None:
        """Returns the packed round with the most tokens per ms; None if there is no width."""
        num_rows = survival.shape[1]
        if num_rows > self._most_rows or num_rows != batch.size:
            return None
        order = np.argsort(-survival, axis=None, kind="stable")  # of [steps, rows], row by row
        steps = order // num_rows
        worth = survival.ravel()[order]
        found: tuple[float, Tier, int, float, float] | None = None
        for tier in tiers:
            if tier.topk > 1 or not 1 < tier.num_draft_tokens <= self._window:
                continue
            widths = self._widths(num_rows, tier)
            if widths.start == widths.stop:
                continue
            given = np.cumsum(worth[steps < tier.num_steps])
            num_drafts = self.costs.widths[widths] - num_rows
            tokens = num_rows + given[num_drafts - 1]
            ms = self.costs.round_ms(tier, batch.size, batch.context_tokens, widths)
            rates = tokens / (ms + between_ms(tokens))
            idx = int(rates.argmax())
            if found is None or rates[idx] > found[0]:
                most = int(num_drafts[idx])
                found = float(rates[idx]), tier, most, float(tokens[idx]), float(ms[idx])
        if found is None:
            return None
        rate, tier, num_drafts_best, tokens_best, ms_best = found
        chosen = order[steps < tier.num_steps][:num_drafts_best] % num_rows
        lens = np.bincount(chosen, minlength=num_rows) + 1
        plan = Plan(tier, verify_lens=tuple(lens.tolist()))
        return Packed(plan, tokens_best, ms_best, rate)

    def _widths(self, num_rows: int, tier: Tier) -> slice:
        """Returns which of the measured widths leave room to choose: some drafts, not all."""
        begin, end = np.searchsorted(
            self.costs.widths, (num_rows + 1, num_rows * tier.num_draft_tokens)
        )
        return slice(int(begin), int(end))
