"""The tier with the most expected tokens per millisecond for this batch, zero steps included.

    rate(t) = expected_tokens(t) / round_ms(t, batch_size, context_tokens)

Tokens come from `policy/acceptance/`, round times from `policy/costs/`, and `policy/choice.py` says
when a tier is left for another. The common prefix of two depths cancels, so their difference is as
uncertain as the survival between them and the two round times: that is the noise. Deeper than the
tier in force nothing is observed, so `policy/probing.py` looks at others now and then. Decisions
are made every few rounds or when the batch changed; no clock, no randomness.
"""

import math
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from sglang_adaptive_spec.ladder import Ladder, clip
from sglang_adaptive_spec.policy.acceptance.model import AcceptanceModel
from sglang_adaptive_spec.policy.choice import choose
from sglang_adaptive_spec.policy.costs.corrections import SETTLING_ROUNDS
from sglang_adaptive_spec.policy.costs.table import CostTable
from sglang_adaptive_spec.policy.decision import Decision
from sglang_adaptive_spec.policy.probe_choice import ProbeChoice
from sglang_adaptive_spec.policy.probing import Prober
from sglang_adaptive_spec.policy.run_length import RunLengths
from sglang_adaptive_spec.policy.settings import DEFAULTS, Settings
from sglang_adaptive_spec.tiers import (
    PLAIN_TIER,
    DecodeBatch,
    Observation,
    RoundTime,
    Tier,
)

RESULTS_AT_ONCE = 4  # learned from together: no decision comes sooner anyhow
OVERDUE_ROUNDS = RESULTS_AT_ONCE + 1  # a decision waits for a result no longer


class GoodputPolicy:
    """Chooses by expected tokens per millisecond."""

    knows_costs = True

    def __init__(
        self,
        ladder: Ladder,
        costs: CostTable,
        acceptance: AcceptanceModel,
        initial: Tier,
        learns_own_times: bool = True,
        settings: Settings = DEFAULTS,
    ) -> None:
        """Takes what a batch may choose, what rounds cost and what is accepted.

        Raises:
            ValueError: A tier that the model of acceptance does not know.
        """
        self.ladder = ladder
        _check(ladder, acceptance)
        self.costs = costs
        self.acceptance = acceptance
        self.initial = initial
        self._settings = settings
        self._cadence = settings.cadence
        self.prober = Prober(settings.probing)
        self.runs = RunLengths(settings.run_length)
        self._learns_own_times = learns_own_times  # else `learn_time` is told what all ranks learn
        self.home = initial  # the tier in force, probes aside
        self.decision: Decision | None = None
        self.results_at_once = RESULTS_AT_ONCE  # 1 until a batch of new requests is decided about
        self.num_switches: dict[str, int] = {"gain": 0, "slot": 0, "fresh": 0}
        self._last_of_range: dict[int, Tier] = {}
        self._num_timed: dict[Tier, int] = {}
        self._round = 0
        self._due = 0.0  # rounds until the next decision
        self._interval = 0  # rounds between the last two decisions about this batch
        self._batch: DecodeBatch | None = None  # the newest
        self._requests: tuple[Hashable, ...] = ()
        self._known_requests: frozenset[Hashable] = frozenset()
        self._num_batch_changes = 0  # since the back-off was last reset
        self._num_changes = acceptance.num_changes
        self._last_probed = initial
        self._last_look: Tier | None = None  # that was cut short
        self._has_first = False  # zero-step rounds tell about position 1
        self._home_ms = 0.0

    def choose(self, batch: DecodeBatch) -> Tier:
        """Returns the tier for the decode batch that is about to launch."""
        self._round += 1
        self._due -= 1
        self._batch = batch
        has_batch_changed = batch.requests != self._requests
        if has_batch_changed:
            self._note_change(batch.requests)
        # Else `observe` decides: there the GPU has a round to run, here it may wait for the next.
        if self._due <= (0 if has_batch_changed else -OVERDUE_ROUNDS):
            self._decide(batch)
        return self.prober.pick(self.home, self._home_ms)

    def run_length(self, batch: DecodeBatch) -> int:
        """Returns the decodes of the zero-step round to come."""
        if not self.costs.is_measured(PLAIN_TIER):  # nobody knows how long a run would take
            return 1
        expected_ms = self.costs.round_ms(PLAIN_TIER, batch.size, batch.context_tokens)
        return self.runs.choose(batch, expected_ms)

    def observe(self, observation: Observation) -> None:
        """Learns what a round accepted, and position 1 from zero-step rounds."""
        tier = observation.tier
        num_tokens = observation.num_decodes * observation.batch_size
        self.runs.saw(num_tokens + sum(observation.num_correct_drafts))
        if tier.num_steps:
            self.acceptance.observe(observation.requests, observation.num_correct_drafts, tier)
        elif observation.first_draft_correct is not None:
            self._has_first = True
            self.acceptance.observe_first(observation.requests, observation.first_draft_correct)
        self.prober.saw(observation.tier)
        if self._batch is not None and (self._due <= 0 or self._has_acceptance_changed()):
            self._decide(self._batch)

    def observe_time(self, round_time: RoundTime) -> None:
        """Takes what an uninterrupted round took on this rank."""
        if self._learns_own_times:
            self.learn_time(round_time)

    def learn_time(self, round_time: RoundTime) -> None:
        """Learns what a round took, unless batches of its size have nothing to choose between.

        Beyond the measured sizes its time would count for those of the largest.
        """
        if round_time.tier == PLAIN_TIER:
            self.runs.learn(round_time)
            round_time = self._of_one_decode(round_time)
        if len(self.ladder.of(round_time.batch_size)) > 1:
            self.costs.observe(round_time)
            self.prober.saw_time(round_time.tier, round_time.ms)
            self._num_timed[round_time.tier] = self._num_timed.get(round_time.tier, 0) + 1

    def _of_one_decode(self, round_time: RoundTime) -> RoundTime:
        """Returns a run's time as that of a round with one decode, its share of catch-ups apart."""
        if round_time.num_decodes == 1:
            return round_time
        _, size, context_tokens, ms, *_ = round_time
        ms = ms / round_time.num_decodes - self.costs.plain_extra_ms(size, context_tokens)
        return round_time._replace(ms=ms, is_catch_up=False, num_decodes=1)

    def is_probe(self, tier: Tier) -> bool:
        """Returns whether ``tier`` is another than the one in force."""
        return tier != self.home

    def totals(self) -> dict[str, dict[str, int]]:
        """Returns the probes, those that paid, and the moves by reason."""
        probes = {"probes": self.prober.num_probes, "paid_probes": self.prober.num_paid}
        return {**{name: {"": total} for name, total in probes.items()}, "moves": self.num_switches}

    def state(self, newest: DecodeBatch) -> dict[str, Any]:
        """Returns slots, decisions, acceptance and costs for /server_info."""
        return {
            "slots": {
                str(bound): {
                    "candidate_tiers": [tier.label for tier in tiers],
                    "current_tier": self._last_of_range.get(bound, self._start(tiers)).label,
                }
                for bound, tiers in self.ladder.ranges.items()
            },
            "num_stale": None,
            "decisions": {
                "round": self._round,
                "home": self.home.label,
                "newest": None if self.decision is None else self.decision.describe(),
                "moves": dict(self.num_switches),
                "probing": self.prober.describe(),
            },
            "runs": self.runs.describe(),
            "acceptance": self.acceptance.describe(),
            "costs": self.costs.describe(newest.size, newest.context_tokens),
            "cost_table": self.costs.snapshot(),
        }

    def _note_change(self, requests: tuple[Hashable, ...]) -> None:
        """Brings the next decision forward, the more so the more of the batch may be new."""
        settings, size = self._cadence, len(requests)
        self.runs.saw_change(self._requests, requests)
        self._due -= settings.decision_rounds * settings.redecide_batch / size
        if abs(size - len(self._requests)) > size / settings.redecide_batch:
            self._due = 0.0
        if self.ladder.bound(size) != self.ladder.bound(len(self._requests)):
            self._due = 0.0
        if self._requests and self._known_requests.isdisjoint(requests):
            self._start_afresh(size)
        self._requests, self._known_requests = requests, frozenset(requests)
        self._interval = 0
        self._num_batch_changes += 1
        if self._num_batch_changes >= self._settings.probing.reset_share * size:
            self._num_batch_changes = 0
            self.prober.reset()

    def _start_afresh(self, size: int) -> None:
        """Gives a batch of none but new requests the chance to differ from those before."""
        self.acceptance.shorten_memory()
        self.results_at_once = 1
        allowed = self.ladder.of(size)
        start = self._start(allowed)
        if self.home not in allowed:  # no decision comes before fresh_rounds
            self._move(clip(self.home, allowed), "slot")
        if size <= self._cadence.fresh_look_batch and self.home.num_steps < start.num_steps:
            self._move(start, "fresh")
        self._due = min(self._cadence.fresh_rounds, math.ceil(self._cadence.fresh_evidence / size))

    def _start(self, tiers: Sequence[Tier]) -> Tier:
        return clip(self.initial, tiers)

    def _decide(self, batch: DecodeBatch) -> None:
        self.results_at_once = RESULTS_AT_ONCE
        bound = self.ladder.bound(batch.size)
        allowed = self.ladder.ranges[bound]
        if self.home not in allowed:
            self._move(clip(self.home, allowed), "slot")
        probe = self.prober.probe
        if probe is not None and probe.tier not in allowed:
            self.prober.finish(has_paid=False)
        known = self._known(allowed)
        if known:
            self._weigh(batch, known)
        if len(known) < len(allowed):
            self._explore(allowed, known)
        self._last_of_range[bound] = self.home
        self._due = self._interval = self._next_interval(batch.size)

    def _next_interval(self, batch_size: int) -> int:
        """Returns the rounds until the next decision, if batch and acceptance stay as they are."""
        settings = self._cadence
        shortest = settings.decision_rounds
        if batch_size <= settings.small_batch:
            shortest = settings.small_batch_decision_rounds
        is_best = self.decision is not None and self.decision.best == self.home
        if not is_best or self.prober.probe is not None:
            return shortest
        return min(max(2 * self._interval, shortest), settings.max_decision_rounds)

    def _has_acceptance_changed(self) -> bool:
        return self.acceptance.num_changes != self._num_changes

    def _known(self, allowed: tuple[Tier, ...]) -> tuple[Tier, ...]:
        """Returns the tiers whose round times are known; none before those of the home tier."""
        if self.costs.is_seeded:
            return allowed
        known = tuple(
            tier
            for tier in allowed
            if self.costs.is_measured(tier)
            or self._num_timed.get(tier, 0) >= self._settings.probing.timed_rounds
        )
        return known if self.home in known else ()

    def _weigh(self, batch: DecodeBatch, tiers: tuple[Tier, ...]) -> None:
        """Decides between ``tiers``, then about probing beyond them."""
        tokens = self.acceptance.expected_tokens(self._requests, tiers)
        if self._has_acceptance_changed():
            self._num_changes = self.acceptance.num_changes
            self._interval = 0
            self.prober.reset()
        round_ms = self.costs.round_ms_all(tiers, batch.size, batch.context_tokens)
        choice = choose(tiers, tokens, round_ms, self.home, self._noise)
        if choice.tier != self.home:
            self._move(choice.tier, "gain")
        self._home_ms = float(round_ms[tiers.index(self.home)])
        self.decision = Decision(
            self._round,
            batch.size,
            tiers,
            tokens,
            round_ms,
            choice.best,
            self.home,
            choice.reason,
        )
        self._probe(self.decision)

    def _noise(self, best: Tier, other: Tier, tokens: float) -> float:
        """Returns how uncertain the best tier's lead over another is, as a share of ``tokens``."""
        costs, switch_z = self.costs, self._settings.choice.switch_z
        noise = switch_z * math.hypot(costs.relative_noise(best), costs.relative_noise(other))
        noise = min(noise, self._settings.choice.max_cost_noise)
        # What the shallower one does not observe. A deeper tier finds out by itself, so does one
        # of another kind: for the deeper the acceptance counts once it is well known.
        shallow, deep = sorted((best, other))
        if (
            best == shallow
            or self.acceptance.age(deep.num_steps) >= self._settings.acceptance.slow_memory / 2
        ):
            drafts = self.acceptance.noise_beyond(self._requests, deep, shallow.num_steps)
            noise = math.hypot(noise, switch_z * drafts / tokens)
        return noise

    def _move(self, tier: Tier, reason: str) -> None:
        if tier.num_steps < self.home.num_steps:
            self.prober.hold_off()  # what lies deeper was observed until now
        self.prober.hold_looks()
        self.home = tier
        self.num_switches[reason] += 1

    def _probe(self, decision: Decision) -> None:
        """Ends the probe under way if it is over; starts one if it may pay and is paid for."""
        prober = self.prober
        if prober.probe is not None and prober.probe.is_look:
            if prober.probe.is_over or self.home == prober.probe.tier:
                lost_share = self._probe_choice(decision).lost_share(prober.probe.tier)
                # One that was cut short lets the next tier go first.
                self._last_look = prober.probe.tier if prober.probe.results_left > 0 else None
                prober.finish(has_paid=False, lost_share=lost_share)
        elif prober.probe is not None:
            tier = prober.probe.tier
            # A chain as deep as the one probed shows the same; a tree shows its own.
            is_as_deep = self.home.num_steps >= tier.num_steps
            has_paid = self.home == tier or (tier.topk == self.home.topk == 1 and is_as_deep)
            if has_paid or prober.probe.is_over:
                choice = self._probe_choice(decision)
                is_open = choice.needs_lift(tier) and choice.may_win(tier)
                prober.finish(has_paid, choice.lost_share(tier), is_open)
        elif prober.is_ready:
            choice = self._probe_choice(decision)
            found = choice.next_tier(self._last_probed)
            if found is not None:
                self._last_probed, ms = found
                num_rounds = choice.num_rounds(self._last_probed)
                prober.start(self._last_probed, num_rounds, ms, self._num_catch_up())
        if prober.may_look:
            self._look(decision)

    def _look(self, decision: Decision) -> None:
        """Looks at the round time of the tier that it could make the best, if there is any."""
        rates = decision.tokens / decision.round_ms
        to_beat = rates[decision.tiers.index(decision.home)]
        # One that is better as far as known is not in force for what it accepts.
        in_doubt = rates <= to_beat
        if self._last_look is not None:
            in_doubt &= np.array([tier != self._last_look for tier in decision.tiers])
        rates /= self.costs.least_share_all(
            decision.tiers, decision.batch_size, self.prober.is_rich
        )
        idx = int((rates * in_doubt).argmax())
        if in_doubt[idx] and rates[idx] > to_beat * (1 + self._settings.choice.max_cost_noise):
            round_ms = float(decision.round_ms[idx])
            self.prober.look(decision.tiers[idx], round_ms, self._num_catch_up())

    def _probe_choice(self, decision: Decision) -> ProbeChoice:
        depth = self.home.num_steps or int(self._has_first)  # that rounds at home observe
        return ProbeChoice(self.acceptance, self._requests, decision, depth, self._settings.probing)

    def _num_catch_up(self) -> int:
        """Returns the rounds that pass before the first one at another tier."""
        return int(self.home == PLAIN_TIER)

    def _explore(self, allowed: tuple[Tier, ...], known: tuple[Tier, ...]) -> None:
        """Gives a tier without round times some rounds, within the budget of the probes."""
        prober = self.prober
        probe = prober.probe
        if probe is not None:
            if probe.tier in known or probe.is_over:
                prober.finish(has_paid=probe.tier in known)
        elif known and prober.is_ready:
            home = self.home.num_steps
            unknown = [tier for tier in allowed if tier not in known]
            nearest = min(unknown, key=lambda tier: (abs(tier.num_steps - home), tier))
            # The first rounds after a switch are not timed; they are booked as the home tier's.
            num_rounds = SETTLING_ROUNDS + self._settings.probing.timed_rounds
            prober.start(nearest, num_rounds, self._home_ms, self._num_catch_up())


def _check(ladder: Ladder, acceptance: AcceptanceModel) -> None:
    for tier in ladder.tiers:
        if tier.num_steps > acceptance.max_steps:
            raise ValueError(
                f"candidate {tier} is deeper than {acceptance.max_steps} steps, "
                "which is what the acceptance model predicts"
            )
        if tier.topk > 1 and tier not in acceptance.trees:
            raise ValueError(f"candidate {tier} is a tree that the acceptance model lacks")
