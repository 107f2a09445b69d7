"""The host's policy, decision for decision: an average of accepted drafts against thresholds.

Each batch-size slot keeps ``ema <- (1 - ema_alpha) * ema + ema_alpha * mean(num_correct_drafts)``
over the rounds it ran. After ``warmup_batches`` rounds, every ``update_interval`` rounds, it walks
its candidate steps ``c``:

    down to c[i-1]  while ema <= c[i-1] - 0.5 + down_hysteresis  (a zero step counts as 1)
    up to c[i+1]    while ema >  c[i] - 0.5 + up_hysteresis      (only if it did not go down)
    capped at       max(1, ceil(ema * ceiling_coeff))            (never on the way up)

At zero steps nothing is drafted, so the next decision tries the smallest step above zero.
Same floats and order of operations as sglang 0.5.23 speculative/adaptive_spec_params.py; what
differs is what it is told (`EmaPolicy.observe`). See docs/config.md.
"""

import math
from collections.abc import Sequence
from typing import Any

from sglang_adaptive_spec.config.schema import AdaptiveConfig, SlotConfig
from sglang_adaptive_spec.policy.protocol import SimplePolicy
from sglang_adaptive_spec.tiers import (
    DecodeBatch,
    Observation,
    Plan,
    RoundTime,
    Tier,
    chain_tier,
)


def mean_into(ema: float, alpha: float, num_correct_drafts: Sequence[int]) -> float:
    """Returns ``ema`` after one round that accepted ``num_correct_drafts``, one per request."""
    mean = sum(num_correct_drafts) / len(num_correct_drafts)
    return (1 - alpha) * ema + alpha * mean


def fall_thresholds(slot: SlotConfig) -> tuple[float, ...]:
    """Returns per candidate the average at or below which it gives way to the one before."""
    floors = (0.5 if step == 0 else step - 0.5 for step in slot.candidate_steps[:-1])
    return (-math.inf, *(floor + slot.down_hysteresis for floor in floors))


def rise_thresholds(slot: SlotConfig) -> tuple[float, ...]:
    """Returns per candidate the average above which it gives way to the one after."""
    rises = (step - 0.5 + slot.up_hysteresis for step in slot.candidate_steps[:-1])
    return (*rises, math.inf)


def cap_idx(candidate_steps: Sequence[int], idx: int, ema: float, ceiling_coeff: float) -> int:
    """Returns ``idx`` lowered to the deepest candidate within the ceiling, or to the first."""
    ceiling = max(1, math.ceil(ema * ceiling_coeff))
    while idx > 0 and candidate_steps[idx] > ceiling:
        idx -= 1
    return idx


class StepSlot:
    """The tier in force for one range of batch sizes, and the average that moves it."""

    def __init__(self, config: SlotConfig, initial_steps: int) -> None:
        steps = config.candidate_steps
        self.config = config
        self.tiers = tuple(chain_tier(step) for step in steps)
        self.idx = steps.index(initial_steps) if initial_steps in steps else len(steps) // 2
        self.ema_accept_len = float(steps[self.idx] - 1)  # neutral: this tier would stay
        self._fall = fall_thresholds(config)
        self._rise = rise_thresholds(config)
        self._num_rounds = 0

    @property
    def tier(self) -> Tier:
        """The tier this slot runs at."""
        return self.tiers[self.idx]

    def update(self, num_correct_drafts: Sequence[int]) -> bool:
        """Takes one round's accepted drafts per request; returns whether the tier changed."""
        if not num_correct_drafts:
            return False
        config = self.config
        if self.tier.num_steps > 0:
            self.ema_accept_len = mean_into(
                self.ema_accept_len, config.ema_alpha, num_correct_drafts
            )
        self._num_rounds += 1
        rounds_since_warmup = self._num_rounds - config.warmup_batches
        if rounds_since_warmup <= 0 or rounds_since_warmup % config.update_interval != 0:
            return False
        before = self.idx
        self.idx = self._probe_idx() if self.tier.num_steps == 0 else self._follow_idx()
        return self.idx != before

    def _probe_idx(self) -> int:
        """Leaves zero steps, if another candidate exists, to see what drafting would give."""
        idx = min(self.idx + 1, len(self.tiers) - 1)
        if self.ema_accept_len < 0:  # never drafted: start neutral at the tier probed
            self.ema_accept_len = float(self.tiers[idx].num_steps - 1)
        return idx

    def _follow_idx(self) -> int:
        idx = self.idx
        while self.ema_accept_len <= self._fall[idx]:
            idx -= 1
        if idx == self.idx:
            while self.ema_accept_len > self._rise[idx]:
                idx += 1
        if self.config.ceiling_coeff > 0 and idx <= self.idx:
            steps = self.config.candidate_steps
            idx = cap_idx(steps, idx, self.ema_accept_len, self.config.ceiling_coeff)
        return idx


class EmaPolicy(SimplePolicy):
    """Routes a batch to its slot by its size, as the host does while serving."""

    knows_costs = False

    def __init__(self, config: AdaptiveConfig, initial_steps: int) -> None:
        self.config = config
        self.initial_steps = initial_steps
        self.num_stale = 0  # observations of another depth than their slot's, not averaged
        self.ladder = config.ladder
        self._slots = {bound: StepSlot(slot, initial_steps) for bound, slot in config.slots.items()}

    def choose(self, batch: DecodeBatch) -> Plan:
        """Returns the tier in force for the batch's size."""
        return Plan(self._slot_of(batch.size).tier)

    def observe(self, observation: Observation) -> None:
        """Averages a round into its slot, unless the slot has moved to another tier since.

        Such a round is censored at another depth: the host averages it all the same.
        """
        slot = self._slot_of(observation.batch_size)
        if observation.tier == slot.tier:
            slot.update(observation.num_correct_drafts)
        else:
            self.num_stale += 1

    def update(self, num_correct_drafts: Sequence[int], batch_size: int) -> bool:
        """Does what the host's ``on_verify_complete`` does; returns whether the tier changed."""
        return self._slot_of(batch_size).update(num_correct_drafts)

    def learn_time(self, round_time: RoundTime) -> None:
        """Takes no notice: the host's policy knows no costs."""

    def totals(self) -> dict[str, dict[str, int]]:
        """Returns nothing: there is nothing that it counts."""
        return {}

    def state(self, _newest: DecodeBatch) -> dict[str, Any]:
        """Returns its slots for /server_info."""
        unknown = dict.fromkeys(("decisions", "acceptance", "costs", "cost_table"))
        return {"slots": self.describe(), "num_stale": self.num_stale, **unknown}

    def describe(self) -> dict[str, dict[str, Any]]:
        """Returns every slot by its lower bound: candidates, current steps, average."""
        return {
            str(bound): {
                "candidate_steps": list(slot.config.candidate_steps),
                "current_steps": slot.tier.num_steps,
                "ema_accept_len": slot.ema_accept_len,
            }
            for bound, slot in self._slots.items()
        }

    def _slot_of(self, batch_size: int) -> StepSlot:
        return self._slots[self.ladder.bound(batch_size)]
