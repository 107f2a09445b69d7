"""Builds every tier at start-up: the start-up tier is there already, the others follow.

What does not fit in memory is left out with a warning, and alike on every rank: the free memory
is the smallest of all ranks and the verdict is rank 0's.
"""

import logging
import math
import time
from collections.abc import Iterable
from typing import Protocol

from sglang_adaptive_spec.policy.tiers import PLAIN_TIER, Tier
from sglang_adaptive_spec.runtime.memory import MemoryModel
from sglang_adaptive_spec.runtime.pool import RuntimePool, TierState

logger = logging.getLogger(__name__)

# GB that stay free for what serving allocates beside the graphs. The largest of it is sampling:
# three fp32 copies of the verify logits of 128 requests x 8 tokens x 128k vocabulary are 1.6 GB.
RESERVED_GB = 2.0


class TierHost(Protocol):
    """What building a tier needs from the host."""

    def graph_batch_sizes(self, tier: Tier) -> tuple[int, ...]:
        """Returns the batch sizes to capture for ``tier``, given the tiers left out so far."""

    def free_gb(self) -> float:
        """Returns this rank's free device memory."""

    def min_free_gb(self) -> float:
        """Returns the least free device memory of all ranks."""

    def agree(self, verdict: bool) -> bool:
        """Returns rank 0's verdict on every rank."""

    def build(self, tier: Tier) -> tuple[object, ...]:
        """Builds backends and graphs of ``tier``; returns the values for the pool's slots."""

    def leave_out(self, tier: Tier) -> None:
        """Makes sure that ``tier`` is never chosen."""


def build_tiers(
    pool: RuntimePool,
    host: TierHost,
    tiers: Iterable[Tier],
    memory: MemoryModel,
    budget_gb: float = math.inf,
) -> None:
    """Plans the ``tiers`` that the pool lacks, then builds those that fit into ``budget_gb``."""
    left = set(tiers) - {state.tier for state in pool.states}
    # A start-up tier that no batch may choose has no graphs, and says nothing about theirs.
    if left and not host.agree(memory.has_learned):
        first = min(left, key=lambda tier: (tier == PLAIN_TIER, tier))
        state = _build(pool, host, first)
        memory.learn(first, len(state.graph_batch_sizes), state.build_gb)
        left.remove(first)
    left_gb = budget_gb - sum(state.build_gb for state in pool.states)
    for tier in plan_tiers(host, left, memory, left_gb):
        _build(pool, host, tier)


def _build(pool: RuntimePool, host: TierHost, tier: Tier) -> TierState:
    sizes = host.graph_batch_sizes(tier)
    free_before_gb, start_s = host.free_gb(), time.perf_counter()
    values = host.build(tier)
    used_gb = free_before_gb - host.free_gb()
    state = TierState(tier, values, sizes, time.perf_counter() - start_s, used_gb)
    pool.add(state)
    return state


def plan_tiers(
    host: TierHost, tiers: Iterable[Tier], memory: MemoryModel, budget_gb: float = math.inf
) -> list[Tier]:
    """Returns the ``tiers`` that fit together, shallowest first; leaves the others out.

    Shallow tiers go first: every slot can fall back to one. A slot that does so adds to the
    graphs of the tier it falls back to, so each refusal starts the plan anew.

    Raises:
        RuntimeError: Not one of the ``tiers`` fits; slots would run at a depth nobody asked for.
    """
    wanted = sorted(tiers)
    while True:
        available_gb = min(host.min_free_gb() - RESERVED_GB, budget_gb)
        for tier in wanted:
            num_graphs = len(host.graph_batch_sizes(tier))
            estimate_gb = memory.estimate_gb(tier, num_graphs)
            if not host.agree(estimate_gb <= available_gb):
                break
            available_gb -= estimate_gb
        else:
            return wanted
        if len(wanted) == 1:
            raise RuntimeError(
                "ADAPTIVE_EAGLE has no room for any tier beside the start-up tier: tier "
                f"{tier.label} needs about {estimate_gb:.2f} GB and {max(available_gb, 0):.2f} "
                "GB are left; lower --mem-fraction-static or --cuda-graph-max-bs-decode."
            )
        wanted.remove(tier)
        host.leave_out(tier)
        logger.warning(
            "ADAPTIVE_EAGLE leaves out tier %s: its %d graph sizes need about %.2f GB and "
            "%.2f GB are left for them. Lower --mem-fraction-static or "
            "--cuda-graph-max-bs-decode, raise memory_budget_gb if the config has one, or remove "
            "the step from the config.",
            tier.label,
            num_graphs,
            estimate_gb,
            max(available_gb, 0.0),
        )
