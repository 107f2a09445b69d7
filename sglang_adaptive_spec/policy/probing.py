"""When to look at another tier, and for how long: a token bucket with back-off.

Positions beyond the tier in force are censored: only a few rounds at a deeper tier tell what they
accept now; between chain and tree a look tells what the tree adds. Every round earns PROBE_SHARE of
its time; a probe costs all the time of its rounds:

    cost_ms = rounds * round_ms(probe)    lost of it: the share 1 - rate(probe) / rate(best)

so probing takes at most PROBE_SHARE of the time, and loses less. Probes that do not pay double the
distance to the next one, less far if they left open who wins; a changed batch or a change of the
acceptance resets it.
"""

import math
from dataclasses import dataclass
from typing import Any

from sglang_adaptive_spec.policy.costs.visits import SETTLING_ROUNDS
from sglang_adaptive_spec.tiers import Tier

PROBE_SHARE = 0.01  # of all time: a choice; tests and benchmarks hold it
# Credit that quiet time may gather: what 30 s earn, enough for the longest probe at most batches.
# A dearer probe waits for a full bucket and is as short as that, or as the shortest.
CREDIT_LIMIT_MS = 300.0
MIN_DISTANCE_ROUNDS = 32  # after a reset; one memory of the fast rate (hazards.py)
MAX_DISTANCE_ROUNDS = 8192  # about a minute of 8 ms rounds: what no event announces is still found
MAX_OPEN_DISTANCE_ROUNDS = 512  # where more of the same would settle what a probe left open
# Request-rounds that should reach the first censored position in one probe: 16 tell a hazard of
# 0.3 from one of 0.7 with less than 3 % error.
PROBE_EVIDENCE = 16
MIN_PROBE_ROUNDS = SETTLING_ROUNDS + 1  # the last one's time tells own from drift
MAX_PROBE_ROUNDS = 16
# A look at a round time wants two: one may be a stall. The rounds before are not timed
# (loop/timing.py).
LOOK_RESULTS = 2
LOOK_ROUNDS = SETTLING_ROUNDS + LOOK_RESULTS
MIN_LOOK_DISTANCE_ROUNDS = 8  # doubled while looks tell nothing, since no round was timed
# After the tier in force changed: the rates that a look goes by may still be moving. On phases of
# 0.5 s, 70 rounds, looks cost 0.001 of the oracle, and 0.003 without (mean of eight noise seeds).
SETTLED_ROUNDS = 64
# A round of a probe is booked at so much beyond its expected time at most, as a share: no seed is
# as wrong, so the rest is a stall (policy/costs/table.py:WRONG_SEED_LOG).
MOST_BEYOND = 1.0
RICH_MS = CREDIT_LIMIT_MS / 4  # left over: what 7.5 s earn
# Rounds until a probe's results must have come: one for the overlap schedule, one for a prefill.
PATIENCE_ROUNDS = 2
# Rounds in which a probe's time may still come: ranks share theirs every 32 (loop/sharing.py).
LATE_ROUNDS = 64


@dataclass(slots=True)
class Probe:
    """A few rounds at another tier than the one in force."""

    tier: Tier
    rounds_left: int  # still to be asked for
    results_left: int  # still to come
    round_ms: float  # as paid for
    known_ms: float  # as the costs have it
    num_asked: int = 0
    patience: int = PATIENCE_ROUNDS  # rounds to wait for results after the last one asked for
    is_look: bool = False  # at its round time: the results are times
    beyond_ms: float = 0.0  # what its timed rounds took beyond ``round_ms``
    num_timed: int = 0

    @property
    def is_over(self) -> bool:
        """Whether all results are in, or will not come."""
        return self.results_left <= 0 or self.patience <= 0


def probe_rounds(reaching: float) -> int:
    """Returns how many rounds a probe needs if ``reaching`` requests a round get to its depth."""
    wanted = math.ceil(PROBE_EVIDENCE / max(reaching, 1e-3))
    return min(max(wanted, MIN_PROBE_ROUNDS), MAX_PROBE_ROUNDS)


class Prober:
    """Owns the bucket, the back-off and the probe under way."""

    def __init__(self) -> None:
        self.probe: Probe | None = None
        self._dearer: dict[Tier, float] = {}  # share by which rounds of its last probe were
        self._untimed: Probe | None = None  # the last one, over before any of its times came
        self._untimed_left = 0  # rounds in which they may
        self.num_probes = 0
        self.num_paid = 0
        self.num_looks = 0
        self._credit_ms = 0.0
        self._total_ms = 0.0
        self._probing_ms = 0.0
        self._lost_ms = 0.0
        self._distance = MIN_DISTANCE_ROUNDS
        self._wait = MIN_DISTANCE_ROUNDS  # rounds until the next probe may start
        self._look_distance = MIN_LOOK_DISTANCE_ROUNDS
        self._look_wait = MIN_LOOK_DISTANCE_ROUNDS  # rounds until the next look may start

    @property
    def is_ready(self) -> bool:
        """Whether a probe may start if the bucket can pay for it."""
        return self.probe is None and self._wait <= 0 and self._credit_ms > 0.0

    @property
    def may_look(self) -> bool:
        """Whether a look at a round time may start if the bucket can pay for it."""
        return self.probe is None and self._look_wait <= 0 and self._credit_ms > 0.0

    @property
    def is_rich(self) -> bool:
        """Whether so much credit is left over that even an unlikely look is worth it."""
        return self._credit_ms >= RICH_MS

    def pick(self, home: Tier, home_ms: float) -> Tier:
        """Returns the tier of the round that is about to launch, and books its time."""
        self._wait -= 1
        self._look_wait -= 1
        self._untimed_left -= 1
        probe = self.probe
        if probe is None or probe.rounds_left <= 0:
            if probe is not None:
                probe.patience -= 1
            self._earn(home_ms)
            return home
        probe.rounds_left -= 1
        probe.num_asked += 1
        self._probing_ms += probe.round_ms
        self._earn(probe.round_ms)
        return probe.tier

    def start(self, tier: Tier, num_rounds: int, round_ms: float, num_extra: int = 0) -> None:
        """Starts a probe if the bucket can pay for it; a full one pays for the shortest in advance.

        Args:
            tier: The tier to look at.
            num_rounds: Results wanted.
            round_ms: Expected period of a round of ``tier``.
            num_extra: Rounds that pass before the first result of ``tier``.
        """
        known_ms, round_ms = round_ms, round_ms * (1 + self._dearer.get(tier, 0.0))
        affordable = int(min(self._credit_ms, CREDIT_LIMIT_MS) / round_ms) - num_extra
        if self._credit_ms >= CREDIT_LIMIT_MS:  # it gets no fuller: a dear probe is short, or owed
            num_rounds = min(num_rounds, max(affordable, MIN_PROBE_ROUNDS))
        elif affordable < num_rounds:
            return
        self._credit_ms -= (num_rounds + num_extra) * round_ms
        self.num_probes += 1
        self.probe = Probe(tier, num_rounds + num_extra, num_rounds, round_ms, known_ms)

    def look(self, tier: Tier, round_ms: float, num_extra: int = 0) -> None:
        """Starts a look at a tier's round time; the arguments are those of `start`."""
        num_rounds = LOOK_ROUNDS + num_extra
        if self._credit_ms < num_rounds * round_ms:
            return
        self._credit_ms -= num_rounds * round_ms
        self.num_looks += 1
        self.probe = Probe(tier, num_rounds, LOOK_RESULTS, round_ms, round_ms, is_look=True)

    def saw(self, tier: Tier) -> None:
        """Counts a result towards the probe under way."""
        if self.probe is not None and tier == self.probe.tier and not self.probe.is_look:
            self.probe.results_left -= 1

    def saw_time(self, tier: Tier, ms: float) -> None:
        """Books what a round of the probe took; to a look that is a result."""
        late = self._untimed if self._untimed_left > 0 else None
        probe = self.probe or late
        if probe is None or tier != probe.tier:
            return
        beyond_ms = min(ms / probe.round_ms - 1, MOST_BEYOND) * probe.round_ms
        if probe is late:  # over by its results, which come before the last time
            self._book(probe, beyond_ms)
            self._untimed = None
            return
        probe.beyond_ms += beyond_ms
        probe.num_timed += 1
        if probe.is_look:
            probe.results_left -= 1

    def finish(self, has_paid: bool, lost_share: float = 0.0, is_open: bool = False) -> None:
        """Ends the probe under way.

        Args:
            has_paid: whether it led to another tier.
            lost_share: of its tokens, what the tier in force would have added.
            is_open: whether it was too short to tell: the next one does not wait as long.
        """
        probe = self.probe
        assert probe is not None
        self._credit_ms += probe.rounds_left * probe.round_ms  # not run after all
        if probe.num_timed:
            self._book(probe, probe.beyond_ms / probe.num_timed)
        self.probe, self._untimed = None, None if probe.num_timed else probe
        self._untimed_left = LATE_ROUNDS
        if probe.is_look:
            self._lost_ms += lost_share * probe.round_ms * probe.num_asked
            has_told = probe.results_left <= 0  # else it was cut short: not again at once
            self._look_distance = MIN_LOOK_DISTANCE_ROUNDS if has_told else 2 * self._look_distance
            self._look_wait = self._look_distance
        elif has_paid:
            self.num_paid += 1
            self.reset()
        else:
            self._lost_ms += lost_share * probe.round_ms * probe.num_asked
            furthest = MAX_OPEN_DISTANCE_ROUNDS if is_open else MAX_DISTANCE_ROUNDS
            self._distance = min(2 * self._distance, furthest)
            self._wait = self._distance

    def reset(self) -> None:
        """Forgets the back-off: what failed before may pay now."""
        self._distance = MIN_DISTANCE_ROUNDS
        self._wait = min(self._wait, MIN_DISTANCE_ROUNDS)

    def hold_looks(self) -> None:
        """Puts the next look off: another tier is in force from now on."""
        self._look_wait = max(self._look_wait, SETTLED_ROUNDS)

    def hold_off(self) -> None:
        """Puts the next probe a full distance away: deeper positions were seen just now."""
        self._wait = max(self._wait, self._distance)

    def describe(self) -> dict[str, Any]:
        """Returns the share of time spent and lost, credit and back-off for /server_info."""
        total_ms = self._total_ms or 1.0
        return {
            "num_steps": None if self.probe is None else self.probe.tier.num_steps,
            "num_probes": self.num_probes,
            "num_paid": self.num_paid,
            "num_looks": self.num_looks,
            "share_of_time": round(self._probing_ms / total_ms, 5),
            "share_lost": round(self._lost_ms / total_ms, 5),
            "credit_ms": round(self._credit_ms, 2),
            "rounds_to_next": max(0, self._wait),
        }

    def _book(self, probe: Probe, beyond_ms: float) -> None:
        """Books what each round of a probe took beyond what it was expected to."""
        self._credit_ms -= beyond_ms * probe.num_asked
        self._probing_ms += beyond_ms * probe.num_asked
        self._dearer[probe.tier] = max((probe.round_ms + beyond_ms) / probe.known_ms - 1, 0.0)

    def _earn(self, round_ms: float) -> None:
        self._total_ms += round_ms
        self._credit_ms = min(self._credit_ms + PROBE_SHARE * round_ms, CREDIT_LIMIT_MS)
