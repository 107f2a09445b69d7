"""Answers that end soon: prefills between rounds, and clients that come alone with new requests."""

import math
from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest

from sglang_adaptive_spec.config.schema import load_config
from sglang_adaptive_spec.loop.round import Round
from sglang_adaptive_spec.policy.settings import DEFAULTS, Settings
from sglang_adaptive_spec.simulate.command import goodput
from sglang_adaptive_spec.simulate.regret import StaticPolicy
from sglang_adaptive_spec.simulate.replay import Replay
from sglang_adaptive_spec.simulate.synthetic import Phase, SyntheticWorkload
from sglang_adaptive_spec.simulate.true_costs import ExampleCosts
from sglang_adaptive_spec.tiers import PLAIN_TIER, DecodeBatch, Observation, Plan, Tier, chain_tier
from tests.simulate.worlds import HostBound

GPU = ExampleCosts("flashinfer")
COST_NOISE = 0.02
PREFILL_MS, PREFILL_MS_EACH = 8.0, 0.5  # whatever is let in, and a request of it
NO_PREFILLS = replace(DEFAULTS, interruptions=replace(DEFAULTS.interruptions, min_periods=10**6))
ALL_LOOKS = replace(DEFAULTS, cadence=replace(DEFAULTS.cadence, min_fresh_looks=10**6))
STATIC = (PLAIN_TIER, *map(chain_tier, (1, 3, 5, 7)))
MOST_DECODES = 4
HOST_MS = 18.0  # 3.6 decodes of one request


class WithPrefills(Replay):
    """A replay in which letting requests in takes time."""

    def _admit(self) -> bool:
        first = self._next_request
        has_joined = super()._admit()
        if has_joined and first:
            num_requests = self._next_request - first
            self.result.time_s += (PREFILL_MS + PREFILL_MS_EACH * num_requests) / 1e3
        return has_joined


def busy(hazard: float, size: int = 96) -> SyntheticWorkload:
    """Returns many clients whose answers have 60 tokens on average."""
    phases = (Phase(0.0, (hazard,)),)
    return SyntheticWorkload("busy", 12.0, ((0.0, size),), phases, mean_tokens=60)


def over_best_static(workload: SyntheticWorkload, seed: int, settings: Settings) -> float:
    policy = goodput(GPU, load_config(None), COST_NOISE, seed, settings)
    rate = WithPrefills(policy, workload, GPU).run().tokens_per_s
    return rate / max(
        WithPrefills(StaticPolicy(tier), workload, GPU).run().tokens_per_s for tier in STATIC
    )


def test_prefills_before_every_round_are_weighed() -> None:
    """A deeper round lets more in at once. Without their time the rounds are too short."""
    hazards = (0.4, 0.6, 0.8)

    def mean(settings: Settings) -> float:
        shares = [over_best_static(busy(hazard), 1, settings) for hazard in hazards]
        return math.exp(fmean(map(math.log, shares)))

    with_them, without = mean(DEFAULTS), mean(NO_PREFILLS)
    assert with_them >= 0.99
    assert with_them >= without + 0.02


class Faster:
    """A GPU, or a model, that takes a third of the time."""

    def round_ms(self, tier: Tier, batch_size: int, context_tokens: int) -> float:
        """Returns the shorter period."""
        return GPU.round_ms(tier, batch_size, context_tokens) / 3

    def plain_extra_ms(self, batch_size: int, context_tokens: int) -> float:
        """Returns what catching up adds there."""
        return GPU.plain_extra_ms(batch_size, context_tokens) / 3


class WithRuns(WithPrefills):
    """Zero-step rounds run several decodes, but those before which requests wait."""

    def _launch(self, batch: DecodeBatch) -> Round:
        most = 1 if self.result.num_rounds % 3 == 0 else MOST_DECODES
        is_stay = self._controller.decode_tier == PLAIN_TIER
        told = batch._replace(most_decodes=most if is_stay else 1, most_in_stay=most)
        return super()._launch(told)

    def _run_round(self, launched: Round) -> list[int]:
        correct = super()._run_round(launched)
        for _ in range(launched.plan.num_decodes - 1):
            ones = np.ones(self.live.size, np.int64)
            self.result.num_tokens += self.live.advance(ones)
            self.result.time_s += self._ms(launched) / 1e3
        return correct


class LongestRuns(StaticPolicy):
    """Zero steps, with as many decodes as may be."""

    def run_length(self, batch: DecodeBatch) -> int:
        """Returns what the batch allows."""
        return batch.most_decodes


@pytest.mark.parametrize("hazard", [0.3, 0.5, 0.8])
def test_runs_that_share_a_prefill_are_weighed_before_they_are_served(hazard: float) -> None:
    """By the newest run alone, a single decode, zero steps were left: 0.65 at 0.3, 0.79 at 0.5."""
    costs, workload = Faster(), busy(hazard)
    rate = WithRuns(goodput(costs, load_config(None), COST_NOISE, 1), workload, costs).run()
    statics = [LongestRuns(PLAIN_TIER), *map(StaticPolicy, STATIC[1:])]
    best = max(WithRuns(each, workload, costs).run().tokens_per_s for each in statics)
    assert rate.tokens_per_s >= 0.94 * best


def lone(hazards: tuple[float, ...]) -> SyntheticWorkload:
    """Returns one client; every request is of one of the kinds."""
    phases = (Phase(0.0, hazards),)
    return SyntheticWorkload("lone", 60.0, ((0.0, 1),), phases, mean_tokens=60)


def lone_rate(hazards: tuple[float, ...], settings: Settings) -> float:
    """Returns tokens/s where the host takes as long for every drafting round."""
    policy = goodput(GPU, load_config(None), COST_NOISE, 1, settings)
    return Replay(policy, lone(hazards), HostBound(GPU, HOST_MS)).run().tokens_per_s


def test_a_lone_client_whose_drafts_do_not_pay_is_looked_at_now_and_then() -> None:
    costs = HostBound(GPU, HOST_MS)
    none = Replay(StaticPolicy(PLAIN_TIER), lone((0.4,)), costs).run().tokens_per_s
    rate = lone_rate((0.4,), DEFAULTS)
    assert rate >= 0.955 * none
    assert rate >= 1.08 * lone_rate((0.4,), ALL_LOOKS)


@pytest.mark.parametrize("hazards", [(0.4, 0.85), (0.4, 0.4, 0.4, 0.85)])
def test_where_drafts_pay_for_some_requests_none_is_lost(hazards: tuple[float, ...]) -> None:
    assert lone_rate(hazards, DEFAULTS) >= 0.99 * lone_rate(hazards, ALL_LOOKS)


def test_runs_that_zero_steps_may_not_make_any_more_share_no_prefill() -> None:
    """Requests wait, so each zero-step round is one decode; runs of eight were served before."""
    policy = goodput(GPU, load_config(None), COST_NOISE, 1)
    rate = WithPrefills(policy, busy(0.6), GPU).run().tokens_per_s
    late = goodput(GPU, load_config(None), COST_NOISE, 1)
    for _ in range(8):
        plan = Plan(PLAIN_TIER, num_decodes=8)
        late.observe(Observation(plan, 96, tuple(range(96)), [0] * 96))
    assert WithPrefills(late, busy(0.6), GPU).run().tokens_per_s >= 0.99 * rate
