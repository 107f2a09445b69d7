"""A closed loop of few clients: one of them is often about to ask again, and the batch is smaller.

Drafts take twice what they took at start-up, as those of a table that the CPU looks up, so zero
steps pay. The sizes between those of full batches are served for a round or two at a time. Where
nothing was known of them but their seeds, each end of a request brought drafts into force: 8
clients were served 0.93 times as much as zero steps serve.
"""

import pytest

from sglang_adaptive_spec.config.schema import load_config
from sglang_adaptive_spec.simulate.command import goodput
from sglang_adaptive_spec.simulate.regret import StaticPolicy
from sglang_adaptive_spec.simulate.replay import Replay
from sglang_adaptive_spec.simulate.synthetic import Phase, SyntheticWorkload
from sglang_adaptive_spec.simulate.true_costs import ExampleCosts
from sglang_adaptive_spec.tiers import PLAIN_TIER, Tier

SECONDS, GAP_S = 8.0, 0.004
HAZARD = 0.4
SMALLER = 0.4  # rounds of a target of 1.5B over those of 8B
LEAST = 0.97  # of zero steps alone


class OfSmallTarget:
    """Costs at start-up, and while serving, when drafting rounds take ``dearer`` times as long."""

    def __init__(self, dearer: float) -> None:
        self._large, self._dearer = ExampleCosts("fa3"), dearer

    def round_ms(self, tier: Tier, batch_size: int, context_tokens: int) -> float:
        ms = SMALLER * self._large.round_ms(tier, batch_size, context_tokens)
        return ms if tier == PLAIN_TIER else self._dearer * ms

    def plain_extra_ms(self, batch_size: int, context_tokens: int) -> float:
        return SMALLER * self._large.plain_extra_ms(batch_size, context_tokens)


@pytest.mark.parametrize("size", [4, 8])
def test_the_size_before_the_next_request_is_known_from_the_full_one(size: int) -> None:
    starts = [number * GAP_S for number in range(round(SECONDS / GAP_S))]
    load = tuple((start_s, size - number % 2) for number, start_s in enumerate(starts))
    phases = (Phase(0, (HAZARD,)),)
    workload = SyntheticWorkload("loop", SECONDS, load, phases, mean_tokens=110)
    policies = (goodput(OfSmallTarget(1.0), load_config(None)), StaticPolicy(PLAIN_TIER))
    ours, none = (Replay(policy, workload, OfSmallTarget(2.0)).run() for policy in policies)
    assert ours.tokens_per_s >= LEAST * none.tokens_per_s
