"""What a round takes that verifies another number of drafts per request.

Start-up measures a round for every number of tokens T that has a graph, in series of one depth and
batch size. Between two rounds of a series only the verify differs, so it gives the time of that by
T, up to a constant; series of other batch sizes are joined where they measured the same T. A packed
round of any depth and batch is a round of its tier, with another verify:

    round_ms(t, n, T) = ratio[T] * (round_ms(t, n) + verify_ms(T) - verify_ms(n * width of t))

T is taken from measured ones alone: times do not rise evenly (on an H200 448 tokens took 3 ms more
than 480). The width of the tier's own verify may lie between them, where the line through its
neighbours serves; what that is off by is learned: ratio is served over expected time, of T as far
as its rounds are known, else of all packed rounds. ms; no clock.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import mean, median

import numpy as np

from sglang_adaptive_spec.policy.costs.curves import Floats
from sglang_adaptive_spec.policy.costs.table import CostTable
from sglang_adaptive_spec.policy.settings import DEFAULTS, PackingSettings
from sglang_adaptive_spec.tiers import Plan, RoundTime, Tier


class WidthCosts:
    """Owns the times of verifies by their tokens, and what serving taught about them."""

    def __init__(
        self,
        table: CostTable,
        series: Sequence[Mapping[int, float]],
        settings: PackingSettings = DEFAULTS.packing,
    ) -> None:
        """Takes the table of rounds that are not packed, and measured rounds by their tokens.

        A number of tokens that is dearer than a larger one is never worth it: it is left out.

        Args:
            table: Of tiers.
            series: ms by tokens, each of one depth and batch size; one shares tokens with those
                before it, or is left out.
            settings: How fast serving corrects it.
        """
        self._table, self._settings = table, settings
        joined = _joined(series)
        self._grid = np.array(sorted(joined), dtype=np.int64)
        self._grid_ms = np.array([joined[width] for width in sorted(joined)])
        cheapest = np.minimum.accumulate(self._grid_ms[::-1])[::-1]
        is_worth = self._grid_ms <= cheapest
        self.widths = self._grid[is_worth]  # [W] tokens, ascending
        self._verify_ms = self._grid_ms[is_worth]  # [W]
        self._logs: dict[int, list[float]] = {}  # newest served over expected, by tokens
        self._ratio = np.ones(len(self.widths))

    def round_ms(self, tiers: tuple[Tier, ...], batch_size: int, context_tokens: int) -> Floats:
        """Returns what rounds of ``tiers`` take that verify `widths` tokens: [tiers, W]."""
        return self._expected_ms(tiers, batch_size, context_tokens) * self._ratio

    def forget(self) -> None:
        """Takes rounds for what start-up measured again: what serving taught may be over."""
        self._logs.clear()
        self._ratio[:] = 1.0

    def describe(self) -> dict[str, list[float]]:
        """Returns by tokens what verifies take beyond the fewest, and served over expected time."""
        shares = zip(self.widths.tolist(), self._verify_ms.tolist(), self._ratio, strict=True)
        least_ms = float(self._verify_ms.min(initial=math.inf))
        return {
            str(width): [round(ms - least_ms, 4), round(float(ratio), 4)]
            for width, ms, ratio in shares
        }

    def of_round(self, round_time: RoundTime) -> float:
        """Returns what a packed round is expected to take."""
        plan, batch_size, context_tokens = round_time[:3]
        idx = self._idx(plan)
        if idx is None:
            return self._table.round_ms(plan.tier, batch_size, context_tokens)
        return float(self.round_ms((plan.tier,), batch_size, context_tokens)[0, idx])

    def learn(self, round_time: RoundTime) -> None:
        """Takes a packed round that nothing interrupted; one of another width is left alone."""
        plan, batch_size, context_tokens, ms = round_time[:4]
        idx = self._idx(plan)
        if idx is None:
            return
        expected_ms = float(self._expected_ms((plan.tier,), batch_size, context_tokens)[0, idx])
        logs = self._logs.setdefault(idx, [])
        logs.append(math.log(ms / expected_ms))
        del logs[: -self._settings.window]
        self._fit()

    def _idx(self, plan: Plan) -> int | None:
        """Returns where a plan's width stands; None if it is left out."""
        assert plan.verify_lens is not None
        width = sum(plan.verify_lens)
        idx = int(np.searchsorted(self.widths, width))
        return idx if idx < len(self.widths) and self.widths[idx] == width else None

    def _expected_ms(self, tiers: tuple[Tier, ...], batch_size: int, context_tokens: int) -> Floats:
        base_ms = self._table.round_ms_all(tiers, batch_size, context_tokens)
        own = [batch_size * tier.num_draft_tokens for tier in tiers]
        own_ms = np.interp(own, self._grid, self._grid_ms)
        # Drafting takes a part of a round, whatever is verified.
        rest_ms = (base_ms - own_ms)[:, None] + self._verify_ms
        expected: Floats = np.maximum(rest_ms, base_ms[:, None] / 4)
        return expected

    def _fit(self) -> None:
        """Each width's median, as far as it has rounds; the rest follows all of them."""
        own = {idx: median(logs) for idx, logs in self._logs.items()}
        weights = {idx: min(len(logs), self._settings.window) for idx, logs in self._logs.items()}
        common = sum(own[idx] * weights[idx] for idx in own) / sum(weights.values())
        self._ratio[:] = math.exp(common)
        for idx, log in own.items():
            share = weights[idx] / (weights[idx] + self._settings.prior_rounds)
            self._ratio[idx] = math.exp(share * log + (1 - share) * common)


def _joined(series: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """Returns the ms of all series, shifted to the first; of two for a width their mean."""
    joined: dict[int, list[float]] = {}
    for each in series:
        shared = joined.keys() & each.keys()
        if joined and not shared:
            continue
        shift = sum(mean(joined[width]) - each[width] for width in shared) / max(len(shared), 1)
        for width, ms in each.items():
            joined.setdefault(width, []).append(ms + shift)
    return {width: mean(each) for width, each in joined.items()}
