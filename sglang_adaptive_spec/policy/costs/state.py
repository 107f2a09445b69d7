"""What a cost table knows, as plain data: for the cache file, telemetry and a TP broadcast.

Everything else in `CostTable` is rebuilt from this record, so two tables with equal records
predict the same to the last bit.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import msgspec

from sglang_adaptive_spec.tiers import Tier

MAD_TO_SIGMA = 1.4826  # of a normal distribution
PER_TIER = (  # fields with one entry a tier
    "seeds",
    "seed_spreads",
    "correction_log",
    "num_corrected",
    "unsettled_pairs",
    "residuals",
)


class CostState(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """All that a table knows; its curves are rebuilt from this. T tiers, K buckets."""

    tiers: list[tuple[int, int, int]]
    buckets: list[int]
    seeds: list[list[tuple[int, int, float]]]  # [T] batch size, context tokens, ms
    catch_up_seeds: list[tuple[int, int, float]]
    correction_log: list[list[float]]  # [T][K]
    num_corrected: list[list[int]]  # [T][K] rounds behind it
    unsettled_pairs: list[dict[int, list[float]]]  # [T] bucket index -> values until settled
    drift_ratios: list[float]  # oldest first
    rounds_since_drift: int
    catch_up_ratios: list[float]  # observed over expected extra time, oldest first
    residuals: list[list[float]]  # [T] relative, oldest first
    learned: list[dict[int, tuple[int, float]]] = []  # in files of older servers; nobody reads it
    # Fields with defaults are younger than the oldest files that must be readable.
    seed_spreads: list[
        list[float]
    ] = []  # [T] relative standard error of every seed; 0 if not known
    drift_shown: dict[int, dict[int, float]] = {}  # tier -> bucket: log of the drift it showed
    visit: list[
        float
    ] = []  # the first rounds of the tier and bucket seen last: logs, as corrections
    visited: tuple[int, int] = (-1, -1)  # tier, bucket


def new_state(tiers: Sequence[Tier], buckets: Sequence[int]) -> CostState:
    """Returns the state that knows nothing."""
    num_buckets = len(buckets)
    return CostState(
        tiers=[(tier.num_steps, tier.topk, tier.num_draft_tokens) for tier in tiers],
        buckets=list(buckets),
        seeds=[[] for _ in tiers],
        catch_up_seeds=[],
        correction_log=[[0.0] * num_buckets for _ in tiers],
        num_corrected=[[0] * num_buckets for _ in tiers],
        unsettled_pairs=[{} for _ in tiers],
        drift_ratios=[],
        rounds_since_drift=0,
        catch_up_ratios=[],
        residuals=[[] for _ in tiers],
        seed_spreads=[[] for _ in tiers],
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
    if not state.seed_spreads:
        state.seed_spreads = [[0.0] * len(points) for points in state.seeds]
    num_tiers, num_buckets = len(state.tiers), len(state.buckets)
    is_square = num_buckets > 0 and all(len(getattr(state, name)) == num_tiers for name in PER_TIER)
    num_entries = [*map(len, state.correction_log), *map(len, state.num_corrected)]
    if not is_square or set(num_entries) - {num_buckets}:
        raise ValueError("the cost table's rows do not fit its tiers; fix: seed again.")
    return state


def state_to_dict(state: CostState) -> dict[str, Any]:
    """Returns ``state`` as builtins that JSON holds exactly."""
    builtins: dict[str, Any] = msgspec.to_builtins(state, str_keys=True)
    return builtins


def push(window: list[float], value: float, size: int) -> None:
    """Appends ``value`` and drops the oldest beyond ``size``."""
    window.append(value)
    if len(window) > size:
        del window[0]


def location(values: Sequence[float], num_smaller: int) -> float:
    """Returns what values tend to, of which some are far too large and none too small.

    It is their median with ``num_smaller`` added below: with 4, the smallest of up to six.
    """
    return sorted(values)[max(len(values) - 1 - num_smaller, 0) // 2]


def spread(values: Sequence[float]) -> float:
    """Returns a robust standard deviation."""
    middle = median(values)
    return MAD_TO_SIGMA * median(abs(value - middle) for value in values)


def standard_error(values: Sequence[float]) -> float:
    """Returns a robust standard error of their location, 0 of a single one."""
    return spread(values) / math.sqrt(len(values)) if values else 0.0


def clamp(value: float, low: float, high: float) -> float:
    """Returns ``value`` moved into [low, high]."""
    return min(max(value, low), high)
