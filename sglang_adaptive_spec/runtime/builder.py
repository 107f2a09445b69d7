"""Builds every tier at start-up: the start-up tier is there already, the others follow.

What does not fit in memory is left out with a warning, and alike on every rank: the free memory
is the smallest of all ranks and the verdict is rank 0's.
"""

import logging
import math
import time
from collections.abc import Sequence
from operator import le
from typing import NamedTuple, Protocol

from sglang_adaptive_spec.ladder import Ladder
from sglang_adaptive_spec.runtime.memory import MemoryModel
from sglang_adaptive_spec.runtime.pool import RuntimePool, TierState
from sglang_adaptive_spec.tiers import PLAIN_TIER, Tier

logger = logging.getLogger(__name__)

# What serving allocates beside the graphs. The largest of it is sampling: three fp32 copies of the
# verify logits, 1.5 GB for 128 requests x 8 tokens x 128k vocabulary and 4.4 GB for 24 tokens.
SAMPLING_BYTES_PER_LOGIT = 3 * 4
# Penalties and biases are tensors of requests x vocabulary in fp32, there as long as one request of
# the batch has any: four penalizers, a bias, both sums of them for the newest round and for the one
# in flight, and one that a joining request is merged into (sglang 0.5.23 sampling/penaltylib,
# sampling_batch_info.py).
PENALTY_BYTES_PER_LOGIT = 10 * 4
CAP_STEP = 256  # requests from one cap that is tried to the next
# A choice, not a measurement: it was enough in every start on an H200 with 8 tokens a request.
MIN_RESERVED_GB = 2.0

WHAT_TO_CHANGE = (
    "Lower --mem-fraction-static, --cuda-graph-max-bs-decode or --max-running-requests, or raise "
    "memory_budget_gb if the config has one"
)


class TierHost(Protocol):
    """What building a tier needs from the host."""

    @property
    def ladder(self) -> Ladder:
        """What a batch may choose, given the tiers left out so far."""

    @property
    def max_batch_size(self) -> int:
        """Largest batch the scheduler can form."""

    def graph_batch_sizes(self, tier: Tier) -> tuple[int, ...]:
        """Returns the batch sizes to capture for ``tier``, given the tiers left out so far."""

    def vocab_size(self) -> int:
        """Returns how many logits the target has per token."""

    def free_gb(self) -> float:
        """Returns this rank's free device memory plus what all tiers share."""

    def min_free_gb(self) -> float:
        """Returns the least free device memory of all ranks."""

    def num_penalized(self) -> int:
        """Returns how many requests' penalties must find room; 0 if a user named the cap."""

    def lower_cap_size(self) -> int | None:
        """Returns how far the cap may come down, if nobody named it; else None."""

    def lower_cap(self, largest: int) -> None:
        """Lets no more than ``largest`` requests run."""

    def agree(self, verdict: bool) -> bool:
        """Returns rank 0's verdict on every rank."""

    def build(self, tier: Tier) -> tuple[object, ...]:
        """Builds backends and graphs of ``tier``; returns the values for the pool's places."""

    def leave_out(self, tier: Tier) -> None:
        """Makes sure that ``tier`` is never chosen."""


class Misfit(NamedTuple):
    """A tier without room beside those before it."""

    tier: Tier
    lack: str  # what there is not enough of
    cap: int | None  # requests to which a lower cap would leave it more room


def build_tiers(
    pool: RuntimePool, host: TierHost, memory: MemoryModel, budget_gb: float = math.inf
) -> None:
    """Plans the tiers that some batch may choose, then builds those that fit into ``budget_gb``."""
    left = _reachable(host) - _built(pool)
    # A start-up tier that no batch may choose has no graphs, and says nothing about theirs.
    if left and not host.agree(memory.has_learned):
        first = min(left, key=lambda tier: (tier == PLAIN_TIER, _chains_first(tier)))
        state = _build(pool, host, first)
        memory.learn(first, state.graph_batch_sizes, state.build_gb)
        _warn_of_overrun(pool, host, state, budget_gb)
    for tier in plan_tiers(pool, host, memory, budget_gb):
        _build(pool, host, tier)
    _warn_of_missing_graphs(pool, host)


def plan_tiers(
    pool: RuntimePool, host: TierHost, memory: MemoryModel, budget_gb: float = math.inf
) -> list[Tier]:
    """Returns the tiers to build beside the pool's, in order; leaves the others out.

    Chains go before trees, so that a wide verify costs no chain its place, and shallow tiers before
    deep ones: every slot can fall back to one. A slot that does so adds to the graphs of the tier
    it falls back to, so each refusal starts the plan anew. Requests beyond those that graphs hold
    cost no tier: where sampling for them takes its memory, fewer may run, and the plan starts anew.

    Raises:
        RuntimeError: A tier that does not fit is all that some batches may choose, and without it
            they would run deeper or wider than asked at a tier built for other sizes.
    """
    built, left_gb = _built(pool), _left_gb(pool, budget_gb)
    while True:
        wanted = sorted(_reachable(host) - built, key=_chains_first)
        misfit = _first_misfit(host, memory, wanted, built, left_gb)
        if misfit is None:
            return wanted
        if misfit.cap is not None:
            host.lower_cap(misfit.cap)
            continue
        tier, lack, _ = misfit
        if not _can_leave_out(host, tier, built):
            raise RuntimeError(
                f"ADAPTIVE_EAGLE has no room for tier {tier.label}, and without it some batches "
                f"would draft deeper or wider than the config allows: {lack}. {WHAT_TO_CHANGE}."
            )
        host.leave_out(tier)
        logger.warning(
            "ADAPTIVE_EAGLE leaves out tier %s: %s. %s, or remove the step from the config.",
            tier.label,
            lack,
            WHAT_TO_CHANGE,
        )


def reserved_gb(rows: int, num_penalized: int, vocab_size: int) -> float:
    """Returns the GB that stay free for serving.

    Args:
        rows: of logits that the largest verify makes.
        num_penalized: requests of the largest batch whose penalties must find room.
        vocab_size: logits per row.
    """
    sampling_gb = SAMPLING_BYTES_PER_LOGIT * rows * vocab_size / 2**30
    penalties_gb = PENALTY_BYTES_PER_LOGIT * num_penalized * vocab_size / 2**30
    return max(MIN_RESERVED_GB, sampling_gb) + penalties_gb


def room_gb(pool: RuntimePool, host: TierHost, budget_gb: float) -> float:
    """Returns the GB beside all that was built and what stays free for serving."""
    reserve_gb = _reserve_gb(host, _reachable(host) & _built(pool))
    return min(host.min_free_gb() - reserve_gb, _left_gb(pool, budget_gb))


def _chains_first(tier: Tier) -> tuple[bool, Tier]:
    return tier.topk > 1, tier


def _first_misfit(
    host: TierHost, memory: MemoryModel, wanted: Sequence[Tier], built: set[Tier], left_gb: float
) -> Misfit | None:
    """Returns the first tier without room beside those before it."""
    admitted, free_gb = _reachable(host) & built, host.min_free_gb()
    planned_gb = 0.0
    for tier in wanted:
        admitted.add(tier)  # a wide tier is refused for the room that its own verify takes
        reserve_gb = _reserve_gb(host, admitted)
        sizes = host.graph_batch_sizes(tier)
        estimate_gb = memory.estimate_gb(tier, sizes)
        budget_gb = left_gb - planned_gb
        available_gb = min(free_gb - reserve_gb - planned_gb, budget_gb)
        if not host.agree(estimate_gb <= available_gb):
            lack = (
                f"its {len(sizes)} graph sizes need about {estimate_gb:.2f} GB and "
                f"{max(available_gb, 0.0):.2f} GB are left for them ({reserve_gb:.2f} GB stay free "
                "for serving)"
            )
            is_in_budget = estimate_gb <= budget_gb
            rest_gb = free_gb - planned_gb - estimate_gb if is_in_budget else -math.inf
            return Misfit(tier, lack, _cap_that_leaves(host, admitted, rest_gb))
        planned_gb += estimate_gb
    return None


def _cap_that_leaves(host: TierHost, tiers: set[Tier], rest_gb: float) -> int | None:
    """Returns the most running requests, of fewer than now, for which ``rest_gb`` is enough."""
    least = host.lower_cap_size()
    if least is None:
        return None
    most = host.max_batch_size
    caps: list[int] = [*range(most - CAP_STEP, least, -CAP_STEP), least]
    for cap in caps:
        if host.agree(_reserve_gb(host, tiers, cap) <= rest_gb):
            return cap
    return None


def _reserve_gb(host: TierHost, tiers: set[Tier], cap: int | None = None) -> float:
    """Counts the largest batch of each tier: an eager verify is larger than any graph's."""
    largest_batch = host.max_batch_size if cap is None else cap
    largest = host.ladder.largest_batches(largest_batch)
    rows = (largest[tier] * tier.num_draft_tokens for tier in tiers & largest.keys())
    num_penalized = min(host.num_penalized(), largest_batch)
    return reserved_gb(max(rows, default=0), num_penalized, host.vocab_size())


def _left_gb(pool: RuntimePool, budget_gb: float) -> float:
    """Returns what is left of the budget."""
    return budget_gb - sum(state.build_gb for state in pool.states)


def _can_leave_out(host: TierHost, tier: Tier, built: set[Tier]) -> bool:
    """Whether no batch falls back to a deeper or wider tier without graphs of its size.

    A tier that is not built yet gets them.
    """
    before, after = host.ladder, host.ladder.without([tier])
    sizes = range(1, host.max_batch_size + 1)
    fallbacks = {other for size in sizes for other in set(after.of(size)) - set(before.of(size))}
    return all(other not in built or all(map(le, other, tier)) for other in fallbacks)


def _reachable(host: TierHost) -> set[Tier]:
    return set(host.ladder.largest_batches(host.max_batch_size))


def _built(pool: RuntimePool) -> set[Tier]:
    return {state.tier for state in pool.states}


def _build(pool: RuntimePool, host: TierHost, tier: Tier) -> TierState:
    sizes = host.graph_batch_sizes(tier)
    free_before_gb, start_s = host.free_gb(), time.perf_counter()
    values = host.build(tier)
    used_gb = free_before_gb - host.free_gb()
    state = TierState(tier, values, sizes, time.perf_counter() - start_s, used_gb)
    pool.add(state)
    return state


def _warn_of_overrun(pool: RuntimePool, host: TierHost, first: TierState, budget_gb: float) -> None:
    """Tells that a tier, built without an estimate, took more than there was for it."""
    over_gb = -room_gb(pool, host, budget_gb)
    if over_gb > 0:
        logger.warning(
            "ADAPTIVE_EAGLE built tier %s, which tells what the others take, and overran: it took "
            "%.2f GB, %.2f GB more than there is beside %.2f GB that stay free for serving, or "
            "than memory_budget_gb allows. %s.",
            first.tier.label,
            first.build_gb,
            over_gb,
            _reserve_gb(host, _reachable(host) & _built(pool)),
            WHAT_TO_CHANGE,
        )


def _warn_of_missing_graphs(pool: RuntimePool, host: TierHost) -> None:
    """Tells which batches fell back to a tier that was built before the plan."""
    for state in pool.states:
        missing = set(host.graph_batch_sizes(state.tier)) - set(state.graph_batch_sizes)
        if missing:
            logger.warning(
                "ADAPTIVE_EAGLE has no graphs of sizes %s for tier %s, to which batches fell back "
                "that lost theirs: they run slower. %s.",
                ", ".join(map(str, sorted(missing))),
                state.tier.label,
                WHAT_TO_CHANGE,
            )
