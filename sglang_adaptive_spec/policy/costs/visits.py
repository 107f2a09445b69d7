"""What the first rounds of a tier after another one ran say: has it changed, or have all?

While one tier runs, a change of its round time may be its own or drift, which all share. Rounds of
another tier tell: either they show the drift, too, or they do not, and then the change belongs to
the tiers that did show it. A tier that disagrees with what it took when seen last is learned anew.
"""

import math
from collections.abc import Iterable
from statistics import median

from sglang_adaptive_spec.policy.costs.state import CostState

# Rounds after another tier ran that are not timed: CPU and GPU find their pace again. On an H200
# (FA3, 8B shapes, 128 requests) probes of 3 steps took 1.09, 1.05 and 1.13, 1.03 times a static
# server's round.
SETTLING_ROUNDS = 2
VISIT_ROUNDS = 3  # of a tier then: their median leaves a stall out


def moved_since(visit: list[float], known: float, change: float) -> float:
    """Returns by how much a visit's logs differ from what was known, 0 if they cannot tell yet.

    Nothing but its tier makes a round faster; the slower one of two may be a stall.
    """
    moves = [log - known for log in visit]
    if len(moves) == 1 and moves[0] > -change:
        return 0.0
    return median(moves) if len(moves) > 2 else min(moves, key=abs)


def recent_log(drift_ratios: list[float], drift: float, num_rounds: int) -> float:
    """Returns the log of what the last rounds took beyond their prediction."""
    recent = drift_ratios[-num_rounds:]
    return math.log(median(recent) / drift) if recent else 0.0


def shown_drift(state: CostState, idx: int, bucket: int) -> float:
    """Returns the log of the drift that a tier has shown at a bucket."""
    return state.drift_shown.get(idx, {}).get(bucket, 0.0)


def show_drift(state: CostState, idx: int, bucket: int, drift_log: float) -> None:
    """Notes that a tier has shown this drift."""
    state.drift_shown.setdefault(idx, {})[bucket] = drift_log


def confirm_drift(
    state: CostState, idx: int, bucket: int, drift_log: float, alike: Iterable[int]
) -> None:
    """Notes that a tier has shown drift, and that tiers ``alike`` are half as doubtful now."""
    for other in alike:
        show_drift(state, other, bucket, (shown_drift(state, other, bucket) + drift_log) / 2)
    show_drift(state, idx, bucket, drift_log)


def showed_drift(state: CostState, drift_log: float) -> list[tuple[int, int]]:
    """Returns tiers and buckets that showed most of this drift."""
    return [
        (idx, bucket)
        for idx, by_bucket in state.drift_shown.items()
        for bucket, shown in by_bucket.items()
        if shown >= drift_log / 2
    ]


def learn_anew(state: CostState, idx: int, bucket: int) -> None:
    """Lets a visit's rounds replace all that was known of a tier at a bucket.

    The newest of them is yet to be learned.
    """
    state.unsettled_pairs[idx][bucket] = state.visit[:-1]
    state.num_corrected[idx][bucket] = len(state.visit) - 1
