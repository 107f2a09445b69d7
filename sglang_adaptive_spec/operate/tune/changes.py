"""What is tried: other tiers for a range of batch sizes, and other settings. One change at a time.

Which ones, the rounds that a candidate ran on the trace say:
- a range where it hardly drafted may have zero steps alone: nothing is caught up and nothing is
  looked at there;
- where its deepest tier ran often, a deeper one may pay;
- beside the tier that ran most, one between it and its neighbours may;
- tiers that hardly ran may go.
Settings are tried from a grid, the same for every trace.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from sglang_adaptive_spec.operate.tune.blocks import Candidate
from sglang_adaptive_spec.size_classes import size_class

Rounds = Mapping[tuple[int, int], int]  # by steps and batch size

# Choices, as shares of the rounds of a range. Probes take 1 % of the time at most.
HARDLY = 0.03  # drafted
OFTEN = 0.1
RARELY = 0.005
LEAST_ROUNDS = 100  # of all seeds, of a range that is judged at all
DEEPER = 1.5  # times the deepest
DEEPEST = 32  # a choice
GRID = (
    *("probing.share=0.003", "probing.share=0.03"),
    *("acceptance.slow_memory=300", "acceptance.slow_memory=3000"),
    *("acceptance.change_threshold=5", "acceptance.change_threshold=12"),
    *("cadence.decision_rounds=2", "cadence.decision_rounds=8"),
    *("choice.switch_z=0.5", "choice.switch_z=2"),
)


class Change(NamedTuple):
    """Another candidate, and what is different."""

    what: str
    candidate: Candidate


def changes(now: Candidate, rounds: Rounds) -> Iterator[Change]:
    """Yields what may serve more than ``now``, which ran ``rounds``."""
    yield from _without_drafts(now, rounds)
    for place, (bound, steps) in enumerate(now.ranges):
        ran = _ran(now, place, rounds)
        if ran.total() < LEAST_ROUNDS:
            continue
        for more in (*_deeper(steps, ran), *_between(steps, ran)):
            allowed = tuple(sorted({*steps, more}))
            what = f"{more} steps from batch {bound} on"
            yield Change(what, _with(now, place, allowed))


def leaner(now: Candidate, rounds: Rounds) -> Change | None:
    """Returns the candidate without tiers that hardly ran, of ranges that ran; None if all did."""
    lean, left_out = now, list[str]()
    for place, (bound, steps) in enumerate(now.ranges):
        ran = _ran(now, place, rounds)
        if ran.total() < LEAST_ROUNDS:
            continue
        kept = tuple(each for each in steps if each == 0 or ran[each] > RARELY * ran.total())
        if kept != steps and any(kept):
            gone = ", ".join(str(each) for each in steps if each not in kept)
            left_out.append(f"without {gone} steps from batch {bound} on")
            lean = _with(lean, place, kept)
    return Change("; ".join(left_out), lean) if left_out else None


def other_settings(now: Candidate) -> Iterator[Change]:
    """Yields ``now`` with one other setting each."""
    for setting in GRID:
        yield Change(setting, replace(now, settings=(*now.settings, setting)))


def _without_drafts(now: Candidate, rounds: Rounds) -> Iterator[Change]:
    """Yields zero steps alone from the smallest batch on from which drafts hardly ever ran.

    Ranges are those of the minutes: 1, 2, 3 to 4, 5 to 8. Batches of one always may draft.
    """
    by_class: dict[int, Counter[bool]] = {}
    for (steps, size), number in rounds.items():
        by_class.setdefault(size_class(size), Counter())[steps > 0] += number
    first: int | None = None
    for each in sorted(by_class, reverse=True):
        ran = by_class[each]
        if ran[True] > HARDLY * ran.total() or each == 0:
            break
        if ran.total() >= LEAST_ROUNDS:
            first = (1 << each - 1) + 1
    if first is None or all(steps == (0,) for bound, steps in _from(now, first)):
        return
    below = [(bound, steps) for bound, steps in now.ranges if bound < first]
    yield Change(
        f"zero steps alone from batch {first} on", replace(now, ranges=(*below, (first, (0,))))
    )


def _from(now: Candidate, size: int) -> list[tuple[int, tuple[int, ...]]]:
    """Returns the ranges that hold ``size`` or more."""
    ends = [following for _, (following, _) in pairwise(now.ranges)] + [None]
    pairs = zip(now.ranges, ends, strict=True)
    return [each for each, end in pairs if end is None or end > size]


def _deeper(steps: tuple[int, ...], ran: Counter[int]) -> Iterator[int]:
    if steps[-1] and ran[steps[-1]] > OFTEN * ran.total():
        more = max(round(DEEPER * steps[-1]), steps[-1] + 1)
        if more <= DEEPEST:
            yield more


def _between(steps: tuple[int, ...], ran: Counter[int]) -> Iterator[int]:
    (home, _), *_ = ran.most_common(1)
    for left, right in pairwise(steps):
        if home in (left, right) and left and right - left > 1:
            yield (left + right) // 2


def _ran(now: Candidate, place: int, rounds: Rounds) -> Counter[int]:
    """Returns the rounds of a range by their steps."""
    bounds = [bound for bound, _ in now.ranges]
    ran: Counter[int] = Counter()
    for (steps, size), number in rounds.items():
        if max(sum(bound <= size for bound in bounds) - 1, 0) == place:
            ran[steps] += number
    return ran


def _with(now: Candidate, place: int, steps: tuple[int, ...]) -> Candidate:
    ranges = list(now.ranges)
    ranges[place] = (ranges[place][0], steps)
    return replace(now, ranges=tuple(ranges))
