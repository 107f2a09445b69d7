"""What a cost table knows, as plain data: for the cache file, telemetry and a TP broadcast.

Everything else in `CostTable` is rebuilt from this record, so two tables with equal records
predict the same to the last bit.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import msgspec
import numpy as np

from sglang_adaptive_spec.policy.cost_curves import OWN_ROUNDS, Floats
from sglang_adaptive_spec.policy.tiers import Tier

MAD_TO_SIGMA = 1.4826  # of a normal distribution
PER_TIER = (  # fields with one entry a tier
    "seeds",
    "learned",
    "off_graph_ms",
    "host_ms",
    "num_off_graph",
    "correction_log",
    "num_corrected",
    "unsettled",
    "unsettled_pairs",
    "residuals",
)


class CostState(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """All that a table knows; its curves are rebuilt from this. T tiers, K buckets."""

    tiers: list[tuple[int, int, int]]
    buckets: list[int]
    seeds: list[list[tuple[int, int, float]]]  # [T] batch size, context tokens, ms
    catch_up_seeds: list[tuple[int, int, float]]
    learned: list[dict[int, tuple[int, float]]]  # [T] bucket index -> batch size, ms: served rounds
    off_graph_ms: list[float]  # [T] at the bucket where it was learned
    num_off_graph: list[int]  # [T] rounds behind it
    correction_log: list[list[float]]  # [T][K]
    num_corrected: list[list[int]]  # [T][K] rounds behind it
    unsettled: list[list[float]]  # [T] off-graph residuals until the tier is settled
    unsettled_pairs: list[dict[int, list[float]]]  # [T] bucket index -> values until settled
    drift_ratios: list[float]  # oldest first
    rounds_since_drift: int
    catch_up_ratios: list[float]  # observed over expected extra time, oldest first
    residuals: list[list[float]]  # [T] relative, oldest first
    rounds_since_refresh: int
    host_ms: list[float] = []  # [T] graph, without context, and off_graph_ms there; 0: unknown


def new_state(tiers: Sequence[Tier], buckets: Sequence[int]) -> CostState:
    """Returns the state that knows nothing."""
    num_tiers, num_buckets = len(tiers), len(buckets)
    return CostState(
        tiers=[(tier.num_steps, tier.topk, tier.num_draft_tokens) for tier in tiers],
        buckets=list(buckets),
        seeds=[[] for _ in tiers],
        catch_up_seeds=[],
        learned=[{} for _ in tiers],
        off_graph_ms=[0.0] * num_tiers,
        num_off_graph=[0] * num_tiers,
        correction_log=[[0.0] * num_buckets for _ in tiers],
        num_corrected=[[0] * num_buckets for _ in tiers],
        unsettled=[[] for _ in tiers],
        unsettled_pairs=[{} for _ in tiers],
        drift_ratios=[],
        rounds_since_drift=0,
        catch_up_ratios=[],
        residuals=[[] for _ in tiers],
        rounds_since_refresh=0,
        host_ms=[0.0] * num_tiers,
    )


def state_from_dict(data: Mapping[str, Any]) -> CostState:
    """Returns the record that `state_to_dict` gave ``data`` for.

    Raises:
        ValueError: ``data`` is no such record.
    """
    try:
        state = msgspec.convert(data, CostState, str_keys=True)
    except msgspec.ValidationError as error:
        raise ValueError(f"the cost table cannot be read: {error}; fix: seed again.") from error
    num_tiers, num_buckets = len(state.tiers), len(state.buckets)
    state.host_ms = state.host_ms or [0.0] * num_tiers  # a file from before there were any
    is_square = num_buckets > 0 and all(len(getattr(state, name)) == num_tiers for name in PER_TIER)
    num_entries = [*map(len, state.correction_log), *map(len, state.num_corrected)]
    if not is_square or set(num_entries) - {num_buckets}:
        raise ValueError("the cost table's rows do not fit its tiers; fix: seed again.")
    return state


def state_to_dict(state: CostState) -> dict[str, Any]:
    """Returns ``state`` as builtins that JSON holds exactly."""
    builtins: dict[str, Any] = msgspec.to_builtins(state, str_keys=True)
    return builtins


def host_bound_ms(state: CostState, plain_idx: int | None) -> float:
    """Returns the round time past which the GPU hides all of the host's work.

    That work is about the same at any depth, so the shortest round of a drafting tier bounds it.
    """
    drafting = [ms for idx, ms in enumerate(state.host_ms) if idx != plain_idx and ms > 0.0]
    return min(drafting, default=math.inf)


def off_graph_table(state: CostState, base: Floats, plain_idx: int | None) -> Floats:
    """Returns the time beside the graphs, [K, T]: the host's work that the GPU does not hide.

    A tier hardly observed borrows what the one nearest in depth shows at the same bucket; from zero
    steps, which verify nothing, only if there is no other. A larger batch takes no less with it.

    Args:
        state: What is known; K buckets, T tiers.
        base: [K, T] the graphs' own time without context, in order of batch size.
        plain_idx: Zero steps, whose rounds hide nothing.
    """
    observed = [idx for idx, num_rounds in enumerate(state.num_off_graph) if num_rounds]
    if not observed:
        return np.zeros_like(base)
    shown = np.maximum(host_bound_ms(state, plain_idx) - base, 0.0)
    if plain_idx is not None:
        shown[:, plain_idx] = math.inf
    shown = np.minimum(shown, state.off_graph_ms)
    lenders = [idx for idx in observed if idx != plain_idx] or observed
    nearest = [_nearest(idx, lenders) for idx in range(len(state.tiers))]
    lent = shown[:, nearest]
    share = np.minimum(np.array(state.num_off_graph) / OWN_ROUNDS, 1.0)
    total: Floats = np.maximum.accumulate(base + lent + share * (shown - lent), axis=0)
    return total - base


def _nearest(idx: int, lenders: Sequence[int]) -> int:
    """Returns the lender nearest to a tier, itself only if it is the only one."""
    others = [other for other in lenders if other != idx] or lenders
    return min(others, key=lambda other: abs(other - idx))


def push(window: list[float], value: float, size: int) -> None:
    """Appends ``value`` and drops the oldest beyond ``size``."""
    window.append(value)
    if len(window) > size:
        del window[0]


def spread(values: Sequence[float]) -> float:
    """Returns a robust standard deviation."""
    middle = median(values)
    return MAD_TO_SIGMA * median(abs(value - middle) for value in values)


def clamp(value: float, low: float, high: float) -> float:
    """Returns ``value`` moved into [low, high]."""
    return min(max(value, low), high)
