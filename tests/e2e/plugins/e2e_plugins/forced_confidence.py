"""The walk over lengths; the draft's confidence says which rows have them, all together as many.

Batches of any size are asked. /server_info shows as ``e2e_confidence``: ``rounds`` whose lengths
the device chose, how many verified ``as_planned`` many tokens, and in how many they are the
``likeliest`` by the confidences that came back; and how many confidences were ``told``, of which so
many were ``odd``: none, or no probability.
"""

from typing import Any

import numpy as np
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from e2e_plugins.forced_lengths import WalkAllLengths, shown_packed
from e2e_plugins.stand_in import CREATE_WORKER, take_over
from sglang_adaptive_spec.policy.acceptance.confidence import hazards_by


class WalkByConfidence(WalkAllLengths):
    """Lets the device choose where the walk's lengths leave something to choose."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.by_confidence = dict.fromkeys(("rounds", "as_planned", "likeliest", "told", "odd"), 0)

    def choose(self, batch: Any) -> Any:
        plan = super().choose(batch)
        lens, steps = plan.verify_lens, plan.tier.num_steps
        if lens is None or sum(lens) == len(lens):
            return plan
        weights = (self._lengths.uniform(0.5, 1.5), *[self._lengths.gauss(0, 0.5)] * steps)
        return plan._replace(by_confidence=weights)

    def observe(self, observation: Any) -> None:
        super().observe(observation)
        plan, found = observation.plan, observation.confidence
        if found is not None:
            self.by_confidence["told"] += found.size
            self.by_confidence["odd"] += int((~((found > 0) & (found <= 1))).sum())
        if plan.by_confidence is None:
            return
        kept, num_rows = np.array(observation.kept), len(observation.requests)
        survival = np.cumprod(hazards_by(found, plan.by_confidence), axis=0)
        worth = np.sort(survival, axis=None)[::-1][: kept.sum()].sum()
        given = sum(survival[:most, row].sum() for row, most in enumerate(kept.tolist()))
        self.by_confidence["rounds"] += 1
        self.by_confidence["as_planned"] += sum(plan.verify_lens) == sum(kept.tolist()) + num_rows
        self.by_confidence["likeliest"] += bool(abs(worth - given) < 1e-4 * worth)


def shown(walk: WalkByConfidence) -> dict[str, Any]:
    """What /server_info says of it."""
    return {**shown_packed(walk), "e2e_confidence": dict(walk.by_confidence)}


def ask_any(worker_class: Any, *_args: Any, **_kw: Any) -> Any:
    """Lets batches of any size be asked."""
    from sglang_adaptive_spec.host.drafters import confidences

    confidences.MOST_UNASKED = 0
    return worker_class


def any_batch() -> None:
    HookRegistry.register(CREATE_WORKER, ask_any, HookType.AFTER)


def make_askew(worker_class: Any, *_args: Any, **_kw: Any) -> Any:
    """Lets the drafts of all ranks but the first be less sure; once a process."""
    from sglang.srt.runtime_context import get_parallel

    from sglang_adaptive_spec.host.drafters import confidences, eagle

    power, of = 1.0 + get_parallel().tp_rank, confidences.top_probability
    confidences.top_probability = eagle.top_probability = lambda logits: of(logits) ** power
    return worker_class


def register_askew() -> None:
    register()
    HookRegistry.register(CREATE_WORKER, make_askew, HookType.AFTER)


def any_askew() -> None:
    any_batch()
    HookRegistry.register(CREATE_WORKER, make_askew, HookType.AFTER)


def register() -> None:
    any_batch()
    take_over(WalkByConfidence, shown)
