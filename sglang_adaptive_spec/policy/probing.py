"""When to look at another tier, and for how long: a token bucket with back-off.

Positions beyond the tier in force are censored: only a few rounds at a deeper tier tell what they
accept now; between chain and tree a look tells what the tree adds. Every round earns a share of
its time; a probe costs all the time of its rounds:

    cost_ms = rounds * round_ms(probe)    lost of it: the share 1 - rate(probe) / rate(best)

so probing takes at most that share of the time, and loses less. Probes that do not pay double the
distance to the next one, less far if they left open who wins; a changed batch or a change of the
acceptance resets it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sglang_adaptive_spec.policy.choice import Model
from sglang_adaptive_spec.policy.costs.corrections import SETTLING_ROUNDS
from sglang_adaptive_spec.policy.decision import Decision
from sglang_adaptive_spec.policy.probe_choice import MIN_PROBE_ROUNDS, ProbeChoice
from sglang_adaptive_spec.policy.settings import DEFAULTS, Settings
from sglang_adaptive_spec.tiers import PLAIN_TIER, Tier


@dataclass(slots=True)
class Probe:
    """A few rounds at another tier than the one in force."""

    tier: Tier
    rounds_left: int  # still to be asked for
    results_left: int  # still to come
    round_ms: float  # as paid for
    known_ms: float  # as the costs have it
    patience: int  # rounds to wait for results after the last one asked for
    num_asked: int = 0
    is_look: bool = False  # at its round time: the results are times
    beyond_ms: float = 0.0  # what its timed rounds took beyond ``round_ms``
    num_timed: int = 0

    @property
    def is_over(self) -> bool:
        """Whether all results are in, or will not come."""
        return self.results_left <= 0 or self.patience <= 0


class Prober:
    """Owns the bucket, the back-off and the probe under way."""

    def __init__(self, settings: Settings = DEFAULTS, initial: Tier = PLAIN_TIER) -> None:
        """Takes the tier after which the first probe is looked for, in a ladder with trees."""
        self._all_settings, self._settings = settings, settings.probing
        self._last_probed = initial
        self._last_look: Tier | None = None  # that was cut short
        self._num_batch_changes = 0  # since the back-off was last reset
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
        self._distance = self._settings.min_distance_rounds
        self._wait = self._distance  # rounds until the next probe may start
        self._look_distance = self._settings.min_look_distance_rounds
        self._look_wait = self._look_distance  # rounds until the next look may start

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
        return self._credit_ms >= self._settings.rich_ms

    @property
    def num_to_ask(self) -> int:
        """Rounds of the probe under way that are still to be asked for."""
        return 0 if self.probe is None else self.probe.rounds_left

    @property
    def tier(self) -> Tier | None:
        """The tier of the next round, unless it is the one in force."""
        probe = self.probe
        return probe.tier if probe is not None and probe.rounds_left > 0 else None

    def count_rounds(self, num_rounds: int, home_ms: float) -> None:
        """Books rounds that were launched at `tier`, or at the tier in force."""
        self._wait -= num_rounds
        self._look_wait -= num_rounds
        self._untimed_left -= num_rounds
        probe, ms = self.probe, home_ms
        if probe is not None and probe.rounds_left > 0:
            probe.rounds_left -= num_rounds
            probe.num_asked += num_rounds
            ms = probe.round_ms
            self._probing_ms += num_rounds * ms
        elif probe is not None:
            probe.patience -= num_rounds
        self._earn(num_rounds * ms)

    def step(self, decision: Decision, model: Model) -> None:
        """Ends the probe under way if it is over; starts one if it may pay and is paid for."""
        choice = ProbeChoice(decision, model, self._all_settings)
        num_extra = int(decision.home == PLAIN_TIER)  # a catch-up comes before the first round
        if self.probe is not None:
            self._end(self.probe, choice, decision.home)
        elif self.is_ready and (found := choice.next_tier(self._last_probed)):
            self._last_probed, ms = found
            self.start(self._last_probed, choice.num_rounds(self._last_probed), ms, num_extra)
        if self.may_look and (found := choice.doubtful_time(self._last_look, self.is_rich)):
            self.look(*found, num_extra)

    def keep_to(self, allowed: Sequence[Tier]) -> None:
        """Ends a probe of a tier that the batch may not choose."""
        if self.probe is not None and self.probe.tier not in allowed:
            self.finish(has_paid=False)

    def note_batch(self, size: int) -> None:
        """Counts a change of the batch; the back-off starts anew once enough may be new."""
        self._num_batch_changes += 1
        if self._num_batch_changes >= self._settings.reset_share * size:
            self._num_batch_changes = 0
            self.reset()

    def note_move(self, is_shallower: bool) -> None:
        """Puts the next look off, and the next probe if deeper positions were seen just now."""
        if is_shallower:
            self._wait = max(self._wait, self._distance)
        self._look_wait = max(self._look_wait, self._settings.settled_rounds)

    def start(self, tier: Tier, num_rounds: int, round_ms: float, num_extra: int = 0) -> None:
        """Starts a probe if the bucket can pay for it; a full one pays for the shortest in advance.

        Args:
            tier: The tier to look at.
            num_rounds: Results wanted.
            round_ms: Expected period of a round of ``tier``.
            num_extra: Rounds that pass before the first result of ``tier``.
        """
        limit_ms = self._settings.credit_limit_ms
        known_ms, round_ms = round_ms, round_ms * (1 + self._dearer.get(tier, 0.0))
        affordable = int(min(self._credit_ms, limit_ms) / round_ms) - num_extra
        if self._credit_ms >= limit_ms:  # it gets no fuller: a dear probe is short, or owed
            num_rounds = min(num_rounds, max(affordable, MIN_PROBE_ROUNDS))
        elif affordable < num_rounds:
            return
        self._credit_ms -= (num_rounds + num_extra) * round_ms
        self.num_probes += 1
        patience = self._settings.patience_rounds
        self.probe = Probe(tier, num_rounds + num_extra, num_rounds, round_ms, known_ms, patience)

    def look(self, tier: Tier, round_ms: float, num_extra: int = 0) -> None:
        """Starts a look at a tier's round time; the arguments are those of `start`."""
        # The rounds before are not timed (loop/timing.py).
        num_results, patience = self._settings.look_results, self._settings.patience_rounds
        num_rounds = SETTLING_ROUNDS + num_results + num_extra
        if self._credit_ms < num_rounds * round_ms:
            return
        self._credit_ms -= num_rounds * round_ms
        self.num_looks += 1
        self.probe = Probe(
            tier, num_rounds, num_results, round_ms, round_ms, patience, is_look=True
        )

    def observe(self, tier: Tier) -> None:
        """Counts a result towards the probe under way."""
        if self.probe is not None and tier == self.probe.tier and not self.probe.is_look:
            self.probe.results_left -= 1

    def observe_time(self, tier: Tier, ms: float) -> None:
        """Books what a round of the probe took; to a look that is a result."""
        late = self._untimed if self._untimed_left > 0 else None
        probe = self.probe or late
        if probe is None or tier != probe.tier:
            return
        beyond_ms = min(ms / probe.round_ms - 1, self._settings.most_beyond) * probe.round_ms
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
        settings, probe = self._settings, self.probe
        assert probe is not None
        self._credit_ms += probe.rounds_left * probe.round_ms  # not run after all
        if probe.num_timed:
            self._book(probe, probe.beyond_ms / probe.num_timed)
        self.probe, self._untimed = None, None if probe.num_timed else probe
        self._untimed_left = settings.late_rounds
        if probe.is_look:
            self._lost_ms += lost_share * probe.round_ms * probe.num_asked
            is_whole = probe.results_left <= 0  # else it was cut short: not again at once
            shortest = settings.min_look_distance_rounds
            self._look_distance = shortest if is_whole else 2 * self._look_distance
            self._look_wait = self._look_distance
        elif has_paid:
            self.num_paid += 1
            self.reset()
        else:
            self._lost_ms += lost_share * probe.round_ms * probe.num_asked
            furthest = settings.max_distance_rounds
            if is_open:
                furthest = settings.max_open_distance_rounds
            self._distance = min(2 * self._distance, furthest)
            self._wait = self._distance

    def reset(self) -> None:
        """Forgets the back-off: what failed before may pay now."""
        self._distance = self._settings.min_distance_rounds
        self._wait = min(self._wait, self._distance)

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

    def _end(self, probe: Probe, choice: ProbeChoice, home: Tier) -> None:
        """Ends the probe under way if it is over, or led to the tier in force."""
        tier = probe.tier
        if probe.is_look:
            if probe.is_over or home == tier:
                # One that was cut short lets the next tier go first.
                self._last_look = tier if probe.results_left > 0 else None
                self.finish(has_paid=False, lost_share=choice.lost_share(tier))
            return
        # A chain as deep as the one probed shows the same; a tree shows its own.
        is_as_deep = home.num_steps >= tier.num_steps
        has_paid = home == tier or (tier.topk == home.topk == 1 and is_as_deep)
        if has_paid or probe.is_over:
            is_open = choice.needs_lift(tier) and choice.may_win(tier)
            self.finish(has_paid, choice.lost_share(tier), is_open)

    def _book(self, probe: Probe, beyond_ms: float) -> None:
        """Books what each round of a probe took beyond what it was expected to."""
        self._credit_ms -= beyond_ms * probe.num_asked
        self._probing_ms += beyond_ms * probe.num_asked
        self._dearer[probe.tier] = max((probe.round_ms + beyond_ms) / probe.known_ms - 1, 0.0)

    def _earn(self, ms: float) -> None:
        self._total_ms += ms
        earned_ms = self._settings.share * ms
        self._credit_ms = min(self._credit_ms + earned_ms, self._settings.credit_limit_ms)
