"""Packed rounds in replays: gained where requests are unlike, nothing lost where they are alike."""

from dataclasses import replace
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from sglang_adaptive_spec.config.schema import load_config
from sglang_adaptive_spec.simulate.command import goodput
from sglang_adaptive_spec.simulate.regret import StaticPolicy
from sglang_adaptive_spec.simulate.replay import Replay
from sglang_adaptive_spec.simulate.synthetic import Phase, SyntheticWorkload, matrix_cell
from sglang_adaptive_spec.tiers import DecodeBatch, Observation, Plan, RoundTime, chain_tier
from tests.simulate.packed_world import COST_NOISE, Fa3Costs, packed_replay, packing_policy

COSTS = Fa3Costs()
SPREAD = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
STATIC_STEPS = (0, 1, 2, 3, 5, 7)


def share_of_best_static(workload: SyntheticWorkload, seed: int = 1) -> float:
    _, served = packed_replay(workload, seed)
    statics = (StaticPolicy(chain_tier(steps)) for steps in STATIC_STEPS)
    best = max(Replay(static, workload, COSTS).run().tokens_per_s for static in statics)
    return served.tokens_per_s / best


def gain_over_tiers(workload: SyntheticWorkload) -> float:
    """Returns throughput over that of the policy that has none."""
    alone = Replay(goodput(COSTS, load_config(None), COST_NOISE), workload, COSTS).run()
    return packed_replay(workload)[1].tokens_per_s / alone.tokens_per_s


def mean_gain_over_tiers(workload: SyntheticWorkload) -> float:
    """Returns the same over eight draws: with short answers they differ by 4 %."""
    return fmean(gain_over_tiers(replace(workload, seed=seed)) for seed in range(1, 9))


@pytest.mark.parametrize(
    ("size", "hazards", "least"),
    [
        (64, (0.95, 0.3), 1.15),
        (128, (0.95, 0.3), 1.15),
        (64, (0.9, 0.3), 1.08),
        (128, (0.9, 0.3), 1.10),
        (64, SPREAD, 1.02),
        (128, SPREAD, 1.02),
    ],
)
def test_unlike_requests_gain(size: int, hazards: tuple[float, ...], least: float) -> None:
    assert share_of_best_static(matrix_cell(size, *hazards, duration_s=6.0)) >= least


@pytest.mark.parametrize("size", [48, 64, 128])
@pytest.mark.parametrize("hazard", [0.3, 0.5, 0.7, 0.85, 0.95])
def test_requests_of_one_kind_lose_nothing(size: int, hazard: float) -> None:
    assert gain_over_tiers(matrix_cell(size, hazard, duration_s=4.0)) >= 0.98


@pytest.mark.parametrize("hazards", [(0.95, 0.3), (0.9, 0.3), SPREAD, (0.7,)])
def test_a_small_batch_loses_nothing(hazards: tuple[float, ...]) -> None:
    assert gain_over_tiers(matrix_cell(16, *hazards, duration_s=4.0)) >= 0.98


@pytest.mark.parametrize("size", [32, 64, 128])
@pytest.mark.parametrize("mean_tokens", [60, 200, 400])
def test_requests_that_come_and_go_lose_nothing(size: int, mean_tokens: int) -> None:
    phases = (Phase(0, (0.95, 0.3)),)
    load = ((0, size),)
    workload = SyntheticWorkload("churn", 2.0, load, phases, mean_tokens=mean_tokens)
    assert mean_gain_over_tiers(workload) >= 0.98


def test_requests_that_change_places_are_followed() -> None:
    phases = tuple(Phase(2.0 * idx, (0.95, 0.3) if idx % 2 else (0.3, 0.95)) for idx in range(4))
    assert (
        gain_over_tiers(replace(matrix_cell(64, 0.95, 0.3, duration_s=8.0), phases=phases)) >= 0.98
    )


def test_a_slow_spell_does_not_end_packing_for_good() -> None:
    hazards = (0.9, 0.3)
    phases = (Phase(0, hazards), Phase(1, hazards, slowdown=1.3), Phase(2, hazards))
    workload = replace(matrix_cell(64, *hazards, duration_s=12.0), phases=phases)
    assert gain_over_tiers(workload) >= 1.03


def without_confidence(workload: SyntheticWorkload) -> float:
    """Returns throughput of packed rounds where the policy is not told how sure the draft is."""
    silent = packing_policy(COSTS)
    silent._confident = lambda _survival: None  # type: ignore[method-assign,assignment]
    served = Replay(silent, workload, COSTS, packed_ms=COSTS.packed_ms).run()
    return served.tokens_per_s


@pytest.mark.parametrize(
    ("size", "hazards", "least"),
    [
        (64, SPREAD, 1.015),
        (128, SPREAD, 1.02),
        (64, (0.9, 0.3), 1.01),
        (128, (0.9, 0.3), 1.02),
        (64, (0.5,), 1.01),
        (128, (0.7,), 1.01),
        (64, (0.7,), 0.985),
        (64, (0.85,), 0.985),
        (16, (0.7,), 0.98),
    ],
)
def test_a_draft_that_knows_its_chances_gains_more(
    size: int, hazards: tuple[float, ...], least: float
) -> None:
    """Chances scatter about each request's hazard as those of a real pair do."""
    workload = replace(matrix_cell(size, *hazards, duration_s=6.0), concentration=3.0)
    assert packed_replay(workload)[1].tokens_per_s >= least * without_confidence(workload)


@pytest.mark.parametrize("hazard", [0.5, 0.8])
def test_what_confidence_cut_off_biases_no_hazard(hazard: float) -> None:
    workload = replace(matrix_cell(64, hazard, duration_s=6.0), concentration=3.0)
    policy, _ = packed_replay(workload)
    survival = [1.0, *policy.acceptance.survival()[:3]]
    hazards = np.array(survival[1:]) / np.array(survival[:-1])
    assert np.abs(hazards - hazard).max() < 0.03


class LengthsAtRandom:
    """The policy, whose every drafting round verifies random lengths."""

    def __init__(self, is_told: bool) -> None:
        self._is_told, self._tier = is_told, chain_tier(5)
        self._policy = packing_policy(COSTS)
        self._draws = np.random.default_rng(5)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def choose(self, batch: DecodeBatch) -> Plan:
        self._policy.choose(batch)
        lens = self._draws.integers(1, self._tier.num_draft_tokens + 1, batch.size)
        return Plan(self._tier, verify_lens=tuple(lens.tolist()))

    def observe_time(self, _round_time: RoundTime) -> None:
        """Its widths are nobody's."""

    def observe(self, observation: Observation) -> None:
        if not self._is_told:
            observation = observation._replace(kept=None)
        self._policy.observe(observation)


def hazard_off(hazard: float, is_told: bool) -> float:
    """Returns by how much the hazards of three positions are off, in the mean of four replays."""
    survivals = []
    for seed in range(1, 5):
        policy: Any = LengthsAtRandom(is_told)
        workload = replace(matrix_cell(64, hazard, duration_s=4.0), seed=seed)
        Replay(policy, workload, COSTS, packed_ms=COSTS.packed_ms).run()
        survivals.append([1.0, *policy.acceptance.survival()[:3]])
    found = np.array(survivals)
    return float(np.abs((found[:, 1:] / found[:, :-1]).mean(axis=0) - hazard).max())


@pytest.mark.parametrize("hazard", [0.4, 0.8])
def test_what_is_learned_of_drafts_that_were_cut_off_has_no_bias(hazard: float) -> None:
    assert hazard_off(hazard, is_told=True) < 0.02
    assert hazard_off(hazard, is_told=False) > 0.05  # were they taken for drafts that failed


def test_the_same_rounds_give_the_same_lengths_on_every_rank() -> None:
    workload = matrix_cell(64, *SPREAD, duration_s=1.0)
    (one, _), (other, _) = packed_replay(workload), packed_replay(workload)
    assert one.packing is not None
    assert other.packing is not None
    assert one.packing.newest is not None
    assert one.packing.newest == other.packing.newest
