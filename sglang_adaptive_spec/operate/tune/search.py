"""The search: changes are chosen on one half of a trace, and their gain is stated for the other.

From the default on, the change that gains most is kept, until none gains beyond its interval. That
sees the even blocks only, what is said of the result sees the odd ones (blocks.py).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from sglang_adaptive_spec.operate.tune.blocks import (
    CHOSEN_ON,
    STATED_ON,
    Candidate,
    Gain,
    Traffic,
)
from sglang_adaptive_spec.operate.tune.changes import (
    RARELY,
    Change,
    changes,
    leaner,
    other_settings,
)

# Choices. A step of the search must gain so much, the whole so much: less is not worth a file that
# tomorrow's traffic may contradict.
LEAST_STEP, LEAST_GAIN = 0.003, 0.01
MOST_STEPS = 5
MOST_LOSS = 0.005  # that leaving tiers out may cost, at the end of the interval

Say = Callable[[str], None]


@dataclass(frozen=True)
class Tried:
    """A change, and what it gained over what was there before it."""

    what: str
    gain: Gain
    is_kept: bool = False


@dataclass(frozen=True)
class TierUse:
    """A tier of the default on this traffic."""

    steps: int
    share: float  # of the rounds
    without: Gain | None  # what leaving it out gains; None where it hardly ran, and of zero steps


@dataclass(frozen=True)
class Tuned:
    """What the search found."""

    default: Candidate
    best: Candidate
    gain: Gain  # of the best over the default, on blocks that did not choose it
    searched: Gain | None  # of what the search kept, there; None if it kept nothing
    tried: Sequence[Tried]
    settings: Sequence[Tried]  # of the policy, over the best of the search; no key of a file
    uses: Sequence[TierUse]
    lean: Tried | None  # what leaving out tiers that hardly ran gains over the best

    @property
    def is_confirmed(self) -> bool:
        """Whether what the search kept gains enough on the other half, too."""
        return self.searched is not None and _is_worth_it(self.searched)

    @property
    def is_better(self) -> bool:
        """Whether the best gains enough, beyond doubt."""
        return _is_worth_it(self.gain)


def tune(traffic: Traffic, default: Candidate, *, is_lean: bool, say: Say) -> Tuned:
    """Returns what serves this traffic better than ``default``.

    Args:
        traffic: What is replayed.
        default: What a server is started with otherwise.
        is_lean: Leave out tiers that hardly ran, where that costs nothing.
        say: Told what takes a while.
    """
    say("replays the default")
    rounds = traffic.serve(default).rounds
    best, tried = _climbed(traffic, default, say)
    say("tries settings")
    settings = _tried(traffic, best, other_settings(best))
    searched = None if best == default else traffic.gain(best, default, STATED_ON)
    if searched is None or not _is_worth_it(searched):
        best = default
    say("asks which tiers earn their place")
    uses = [_use(traffic, default, steps, rounds) for steps in default.steps]
    lean = _lean(traffic, best, is_lean)
    if lean is not None and lean[0].is_kept:
        best = lean[1].candidate
    gain = traffic.gain(best, default, STATED_ON)
    return Tuned(default, best, gain, searched, tried, settings, uses, lean and lean[0])


def _climbed(traffic: Traffic, default: Candidate, say: Say) -> tuple[Candidate, list[Tried]]:
    now, tried, hopeless = default, list[Tried](), set[str]()
    for _ in range(MOST_STEPS):
        offers = {
            change.what: change
            for change in changes(now, traffic.serve(now).rounds)
            if change.what not in hopeless
        }
        if not offers:
            break
        say(f"tries {'; '.join(offers)}")
        found = _tried(traffic, now, offers.values())
        most = max(found, key=lambda each: each.gain.mean)
        is_kept = _is_step(most.gain)
        tried += [replace(each, is_kept=is_kept and each is most) for each in found]
        hopeless |= {each.what for each in found if each.gain.high < LEAST_STEP}
        if not is_kept:
            break
        now = offers[most.what].candidate
    return now, tried


def _tried(traffic: Traffic, now: Candidate, offers: Iterable[Change]) -> list[Tried]:
    return [Tried(what, traffic.gain(candidate, now, CHOSEN_ON)) for what, candidate in offers]


def _is_worth_it(gain: Gain) -> bool:
    return gain.mean >= LEAST_GAIN and gain.low > 0


def _is_step(gain: Gain) -> bool:
    return gain.mean >= LEAST_STEP and gain.low > 0


def _use(
    traffic: Traffic, default: Candidate, steps: int, rounds: dict[tuple[int, int], int]
) -> TierUse:
    share = sum(n for (each, _), n in rounds.items() if each == steps) / sum(rounds.values())
    if steps == 0 or share < RARELY:
        return TierUse(steps, share, None)
    ranges = [
        (bound, tuple(each for each in allowed if each != steps) or allowed)
        for bound, allowed in default.ranges
    ]
    without = traffic.gain(replace(default, ranges=tuple(ranges)), default, slice(None))
    return TierUse(steps, share, without)


def _lean(traffic: Traffic, best: Candidate, is_lean: bool) -> tuple[Tried, Change] | None:
    change = leaner(best, traffic.serve(best).rounds)
    if change is None:
        return None
    gain = traffic.gain(change.candidate, best, slice(None))
    return Tried(change.what, gain, is_lean and gain.low > -MOST_LOSS), change
