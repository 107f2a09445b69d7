"""When to look deeper than the tier in force, and what that may cost: a token bucket with back-off.

Positions beyond the tier in force are censored: only a few rounds at a deeper tier tell what they
accept now. A probe costs the throughput it loses, in milliseconds of the best known tier:

    loss_ms = rounds * round_ms(probe) * (1 - rate(probe) / rate(best))

Every round earns PROBE_SHARE of its time up to CREDIT_LIMIT_MS. A probe starts when the bucket
holds its expected loss and pays the loss as estimated once it is over. Probes that do not pay
double the distance to the next one; a changed batch or a change of the acceptance resets it.
"""

import math
from dataclasses import dataclass
from typing import Any

from sglang_adaptive_spec.policy.tiers import Tier

PROBE_SHARE = 0.01  # of all time: the bound in issue 3
# Credit that quiet time may gather: what 10 s earn. It bounds the loss of a burst of probes.
CREDIT_LIMIT_MS = 100.0
MIN_DISTANCE_ROUNDS = 32  # after a reset; one memory of the fast rate (policy/hazards.py)
MAX_DISTANCE_ROUNDS = 8192  # about a minute of 8 ms rounds: what no event announces is still found
# Request-rounds that should reach the first censored position in one probe: 16 tell a hazard of
# 0.3 from one of 0.7 with less than 3 % error.
PROBE_EVIDENCE = 16
MIN_PROBE_ROUNDS = 2  # one more than the overlap schedule is late
MAX_PROBE_ROUNDS = 16
# Rounds that a probe may be asked for beyond those it needs: results come one round late, and
# leaving zero steps first takes a catch-up round. After that it is over, seen or not.
PROBE_PATIENCE_ROUNDS = 8


@dataclass(slots=True)
class Probe:
    """A few rounds at a tier deeper than the one in force."""

    tier: Tier
    rounds_left: int  # results still wanted
    calls_left: int  # choices after which it ends in any case
    reserved_ms: float  # taken from the bucket at its start
    num_rounds: int = 0  # results seen


def probe_rounds(reaching: float) -> int:
    """Returns how many rounds a probe needs if ``reaching`` requests a round get to its depth."""
    wanted = math.ceil(PROBE_EVIDENCE / max(reaching, 1e-3))
    return min(max(wanted, MIN_PROBE_ROUNDS), MAX_PROBE_ROUNDS)


class Prober:
    """Owns the bucket, the back-off and the probe under way."""

    def __init__(self) -> None:
        self.probe: Probe | None = None
        self.num_probes = 0
        self.num_paid = 0
        self._credit_ms = 0.0
        self._total_ms = 0.0
        self._lost_ms = 0.0
        self._distance = MIN_DISTANCE_ROUNDS
        self._wait = MIN_DISTANCE_ROUNDS  # rounds until the next probe may start

    @property
    def is_ready(self) -> bool:
        """Whether a probe may start if the bucket can pay for it."""
        return self.probe is None and self._wait <= 0 and self._credit_ms > 0.0

    def earn(self, round_ms: float) -> None:
        """Books a round that is about to launch."""
        self._wait -= 1
        self._total_ms += round_ms
        self._credit_ms = min(self._credit_ms + PROBE_SHARE * round_ms, CREDIT_LIMIT_MS)

    def start(self, tier: Tier, num_rounds: int, loss_ms: float) -> bool:
        """Starts a probe if the bucket can pay ``loss_ms``; returns whether it did."""
        if loss_ms > self._credit_ms:
            return False
        self._credit_ms -= loss_ms
        self.num_probes += 1
        self.probe = Probe(tier, num_rounds, num_rounds + PROBE_PATIENCE_ROUNDS, loss_ms)
        return True

    def saw(self, tier: Tier) -> None:
        """Counts a result towards the probe under way."""
        if self.probe is not None and tier == self.probe.tier:
            self.probe.rounds_left -= 1
            self.probe.num_rounds += 1

    def finish(self, loss_ms: float, has_paid: bool) -> None:
        """Ends the probe under way; ``loss_ms`` is what it cost, as far as is known now."""
        assert self.probe is not None
        self._credit_ms += self.probe.reserved_ms - loss_ms
        self._lost_ms += loss_ms
        self.probe = None
        if has_paid:
            self.num_paid += 1
            self.reset()
        else:
            self._distance = min(2 * self._distance, MAX_DISTANCE_ROUNDS)
            self._wait = self._distance

    def reset(self) -> None:
        """Forgets the back-off: what failed before may pay now."""
        self._distance = MIN_DISTANCE_ROUNDS
        self._wait = min(self._wait, MIN_DISTANCE_ROUNDS)

    def hold_off(self) -> None:
        """Puts the next probe a full distance away: deeper positions were seen just now."""
        self._wait = max(self._wait, self._distance)

    def describe(self) -> dict[str, Any]:
        """Returns the share of time lost to probes, credit and back-off for /server_info."""
        return {
            "tier": None if self.probe is None else self.probe.tier.num_steps,
            "num_probes": self.num_probes,
            "num_paid": self.num_paid,
            "share_of_time": round(self._lost_ms / self._total_ms, 5) if self._total_ms else 0.0,
            "lost_ms": round(self._lost_ms, 2),
            "credit_ms": round(self._credit_ms, 2),
            "rounds_to_next": max(0, self._wait),
        }
