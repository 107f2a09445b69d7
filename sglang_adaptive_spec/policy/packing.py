"""Which drafts to verify, where a round may verify another number of each request's.

A draft of request r at depth d is worth the chance S_r(d) that it is accepted: the product of its
hazards up to there. These fall along a row, so the T - n largest of a batch of n make prefixes of
rows, and no other T tokens give more:

    tokens(t, T) = n + the sum of the T - n largest S_r(d), d up to the steps of t

(t, T) is one more choice beside the tiers, by expected tokens per ms with the measured time of that
T. In traffic of one kind a tier is as good, since all rows get the same; so packing must gain
`PackingSettings.min_gain` over it, and keep half of that.

If start-up measured a depth as too slow, it would never be tried. So an untried depth counts as
`PackingSettings.hope` faster; the share falls with every packed round of it in that size class.
What made packed rounds dearer may pass, too, and none tells of it meanwhile: so after
`retry_rounds` without any a size class takes all depths as untried, with the times of start-up;
after twice as many where it did not stay with packing.

Between decisions requests come and go: t and T stay, and the lengths are chosen anew.

Drafts beyond a request's limit have a survival of 0, and are never verified.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sglang_adaptive_spec.policy.acceptance.hazards import Floats
from sglang_adaptive_spec.policy.costs.widths import WidthCosts
from sglang_adaptive_spec.policy.settings import DEFAULTS, PackingSettings
from sglang_adaptive_spec.size_classes import size_class
from sglang_adaptive_spec.tiers import DecodeBatch, Plan, Tier


class Confident(NamedTuple):
    """What the draft's confidence says of the newest rounds of a batch."""

    weights: tuple[float, ...]  # for the device, which knows that of the round to come
    survivals: Sequence[Floats]  # [steps, rows] of some rounds, the newest last


class Packed(NamedTuple):
    """A packed round, and what it is expected to give and to take."""

    plan: Plan
    tokens: float
    round_ms: float
    rate: float  # tokens per ms, from one round to the next; if untried, as hoped


@dataclass(slots=True)
class Habit:
    """How rounds of one size class were packed."""

    patience: int  # rounds that are not packed until packing is tried anew
    num_unpacked: int = 0  # since one was packed or tried
    num_in_row: int = 0  # packed
    num_tried: Counter[Tier] = field(default_factory=Counter)  # packed, since it was tried anew


class Packing:
    """Chooses tier, tokens and lengths of packed rounds."""

    def __init__(
        self,
        costs: WidthCosts,
        window: int,
        most_rows: int,
        settings: PackingSettings = DEFAULTS.packing,
        most_unasked: int = 0,
    ) -> None:
        """Takes what rounds cost, of rows of up to ``window`` tokens, so many at most.

        Of up to ``most_unasked`` rows nobody asks the draft how sure it is.
        """
        self.costs, self._settings = costs, settings
        self._window, self._most_rows, self._most_unasked = window, most_rows, most_unasked
        self.newest: Packed | None = None  # in force; None: a tier is
        self.has_changed = False  # with the last choice, by more than its rows' lengths
        self._habits: dict[int, Habit] = {}  # by size class
        self._num_rows = 1  # that the last choice was for
        self._num_by_confidence = 0  # of all packed rounds

    def describe(self) -> dict[str, object]:
        """Returns the packed round in force and what widths take, for /server_info."""
        newest = self.newest
        in_force = newest and {
            "tier": newest.plan.tier.label,
            "verify_lens": newest.plan.verify_lens,
            "by_confidence": newest.plan.by_confidence is not None,
            "tokens": round(newest.tokens, 3),
            "round_ms": round(newest.round_ms, 3),
        }
        return {
            "in_force": in_force,
            "num_by_confidence": self._num_by_confidence,
            "widths": self.costs.describe(),
        }

    def count_rounds(self, num_rounds: int) -> None:
        """Counts rounds that were launched."""
        habit = self._habit(self._num_rows)
        if self.newest is None:
            habit.num_unpacked, habit.num_in_row = habit.num_unpacked + num_rounds, 0
            return
        habit.num_unpacked, habit.num_in_row = 0, habit.num_in_row + num_rounds
        habit.num_tried[self.newest.plan.tier] += num_rounds
        if self.newest.plan.by_confidence is not None:
            self._num_by_confidence += num_rounds
        if habit.num_in_row >= self._settings.stay_rounds:
            habit.patience = self._settings.retry_rounds

    def _habit(self, num_rows: int) -> Habit:
        place = size_class(num_rows)
        if place not in self._habits:
            self._habits[place] = Habit(self._settings.retry_rounds)
        return self._habits[place]

    def choose(
        self,
        batch: DecodeBatch,
        tiers: tuple[Tier, ...],
        survival: Floats,
        between_ms: Callable[[Floats], Floats],
        rate: float,
        confident: Confident | None = None,
    ) -> None:
        """Takes the packed round in force that beats ``rate``, the best of all tiers; or none.

        Args:
            batch: Whose rows are asked about.
            tiers: That it may choose; trees are not packed.
            survival: [steps, rows] chance that a draft is accepted; falls along the steps.
            between_ms: What comes between rounds that give so many tokens: [tiers, W] of as many.
            rate: Tokens per ms.
            confident: What confidence says, where the device may choose the lengths by it.
        """
        settings = self._settings
        self._num_rows = batch.size
        habit = self._habit(batch.size)
        best = self.best(batch, tiers, survival, between_ms, confident)
        if best is not None and habit.num_unpacked >= habit.patience:
            habit.num_unpacked = 0
            habit.patience = min(2 * habit.patience, settings.max_retry_rounds)
            habit.num_tried.clear()
            self.costs.forget(batch.size)
            best = self.best(batch, tiers, survival, between_ms, confident)
        margin = settings.min_gain * (0.5 if self.newest is not None else 1.0)
        before = self._shape()
        self.newest = best if best is not None and best.rate > (1 + margin) * rate else None
        self.has_changed = self._shape() != before

    def _hope(self, tier: Tier, batch_size: int) -> float:
        """Returns the share by which packed rounds of a tier are taken to be faster than known."""
        settings = self._settings
        num_tried = self._habit(batch_size).num_tried[tier]
        if num_tried >= settings.window:
            return 0.0
        return settings.hope * settings.prior_rounds / (settings.prior_rounds + num_tried)

    def keep(self, survival: Floats, may_ask: bool = True) -> None:
        """Keeps depth and tokens for another batch; takes none in force where they do not fit.

        Args:
            survival: [steps, rows] of its rows.
            may_ask: Whether the device may choose by confidence.
        """
        if self.newest is None:
            return
        plan, num_rows = self.newest.plan, survival.shape[1]
        self._num_rows = num_rows
        assert plan.verify_lens is not None
        survival, width = survival[: plan.tier.num_steps], sum(plan.verify_lens)
        num_counted = int((survival > 0.0).sum())
        if not num_rows < width < num_rows + num_counted or num_rows > self._most_rows:
            self.newest = None
            return
        lens = lengths(survival, width - num_rows) + 1
        is_asked = may_ask and num_rows > self._most_unasked
        weights = plan.by_confidence if is_asked else None
        plan = plan._replace(verify_lens=tuple(lens.tolist()), by_confidence=weights)
        self.newest = self.newest._replace(plan=plan)

    def _shape(self) -> tuple[Tier, int, bool] | None:
        """Returns depth and tokens of the packed round in force, and whether confidence chooses."""
        if self.newest is None:
            return None
        plan = self.newest.plan
        return plan.tier, sum(plan.verify_lens or ()), plan.by_confidence is not None

    def best(
        self,
        batch: DecodeBatch,
        tiers: tuple[Tier, ...],
        survival: Floats,
        between_ms: Callable[[Floats], Floats],
        confident: Confident | None = None,
    ) -> Packed | None:
        """Returns the packed round that promises the most tokens per ms; None without a width."""
        num_rows, costs = survival.shape[1], self.costs
        tiers = tuple(t for t in tiers if t.topk == 1 and 1 < t.num_draft_tokens <= self._window)
        num_drafts = costs.widths - num_rows
        if not (tiers and len(num_drafts)) or not num_rows == batch.size <= self._most_rows:
            return None
        ms = costs.round_ms(tiers, batch.size, batch.context_tokens)
        known: list[tuple[Sequence[Floats], tuple[float, ...] | None, Floats]]
        known = [((survival,), None, ms)]
        if confident is not None and num_rows > self._most_unasked:
            by_device = ms + costs.choosing_ms(tiers, batch.size)[:, None]
            known.append((confident.survivals, confident.weights, by_device))
        hope = np.array([[1 + self._hope(tier, batch.size)] for tier in tiers])
        best: Packed | None = None
        for survivals, weights, round_ms in known:
            tokens = _tokens(tiers, survivals, num_drafts)
            rates = hope * tokens / (round_ms + between_ms(tokens))
            at = np.unravel_index(int(rates.argmax()), rates.shape)
            if rates[at] <= (0.0 if best is None else best.rate):
                continue
            tier = tiers[at[0]]
            lens = lengths(survival[: tier.num_steps], int(num_drafts[at[1]])) + 1
            plan = Plan(tier, verify_lens=tuple(lens.tolist()), by_confidence=weights)
            best = Packed(plan, float(tokens[at]), float(round_ms[at]), float(rates[at]))
        return best


def _tokens(
    tiers: Sequence[Tier], survivals: Sequence[Floats], num_drafts: npt.NDArray[np.int64]
) -> Floats:
    """Returns the tokens of rounds that verify so many of the likeliest drafts: [tiers, W].

    They are the mean over ``survivals``, [steps, rows] each. 0 where a tier does not draft more:
    some drafts are packed, not all. Nor is one that does not count.
    """
    num_rows, num_samples = survivals[0].shape[1], len(survivals)
    tokens = np.zeros((len(tiers), len(num_drafts)))
    for idx, tier in enumerate(tiers):
        drafted = np.array([survival[: tier.num_steps] for survival in survivals])
        num_counted = int((drafted[0] > 0.0).sum())
        drafted = np.sort(drafted.reshape(num_samples, -1), axis=1)[:, ::-1]
        given = np.cumsum(np.add.reduce(drafted, 0)) / num_samples
        first, end = np.searchsorted(num_drafts, (1, min(len(given), num_counted + 1)))
        tokens[idx, first:end] = num_rows + given[num_drafts[first:end] - 1]
    return tokens


def lengths(survival: Floats, num_drafts: int) -> npt.NDArray[np.int64]:
    """Returns how many drafts of each row are among the ``num_drafts`` likeliest: [rows].

    Of those equally likely the shallower ones come first.
    """
    num_rows = survival.shape[1]
    least = np.partition(survival, survival.size - num_drafts, axis=None)[-num_drafts:].min()
    found: npt.NDArray[np.int64] = (survival > least).sum(axis=0)
    ties = np.flatnonzero(survival == least)[: num_drafts - int(found.sum())]
    np.add.at(found, ties % num_rows, 1)
    return found
