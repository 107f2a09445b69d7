"""The tier with the most expected tokens per millisecond for this batch, zero steps included.

    rate(t) = expected_tokens(t) / round_ms(t, batch_size, context_tokens)

Tokens come from `policy/acceptance/`, round times from `policy/costs/`. `policy/cadence.py` says
when to decide, `policy/choice.py` when a tier is left for another. Deeper than the tier in force
nothing is observed, so `policy/probing.py` looks at others now and then. No clock, no randomness.
"""

from collections import deque
from collections.abc import Hashable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from sglang_adaptive_spec.ladder import Ladder, clip, no_deeper
from sglang_adaptive_spec.policy.acceptance.confidence import ConfidenceModel
from sglang_adaptive_spec.policy.acceptance.hazards import Floats
from sglang_adaptive_spec.policy.acceptance.model import AcceptanceModel
from sglang_adaptive_spec.policy.cadence import Cadence
from sglang_adaptive_spec.policy.choice import Model, choose, lead_noise
from sglang_adaptive_spec.policy.costs.table import CostTable
from sglang_adaptive_spec.policy.decision import Decision
from sglang_adaptive_spec.policy.fresh_looks import FreshLooks
from sglang_adaptive_spec.policy.interruptions import Interruptions
from sglang_adaptive_spec.policy.packing import Confident, Packing
from sglang_adaptive_spec.policy.probing import Prober
from sglang_adaptive_spec.policy.run_length import LENGTHS, RunLengths, of_one_decode
from sglang_adaptive_spec.policy.settings import DEFAULTS, Settings
from sglang_adaptive_spec.policy.table_asks import TableAsks
from sglang_adaptive_spec.tiers import PLAIN_TIER, DecodeBatch, Observation, Plan, RoundTime, Tier

RUN_LENGTHS = np.array(LENGTHS, np.float64)
# A choice: as many decodes of a stay an asked round of zero steps takes at least. The CPU waits for
# the tokens before it, so the GPU waits for the CPU.
LEAST_ASKED = 1.25


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
        packing: Packing | None = None,
        are_runs_cut: bool = False,
    ) -> None:
        """Takes what a batch may choose, what rounds cost and what is accepted.

        Packed rounds are planned where it is known what those cost. Runs of decodes may be cut
        short by whoever launches them.

        Raises:
            ValueError: A tier that the model of acceptance does not know.
        """
        acceptance.check(ladder.tiers)
        self.ladder = ladder
        self.costs = costs
        self.acceptance = acceptance
        self.initial = initial
        self.cadence = Cadence(settings.cadence)
        self.prober = Prober(settings, initial)
        self.fresh_looks = FreshLooks(settings.cadence)
        self.asks = TableAsks(settings.cadence)
        self.runs = RunLengths(settings.run_length, are_runs_cut)
        self.interruptions = Interruptions(settings.interruptions)
        self.packing = packing
        self.confidence = ConfidenceModel(self.acceptance.max_steps, settings.confidence)
        self._survivals: deque[Floats] = deque(maxlen=settings.confidence.samples)  # by it
        self._settings = settings
        self._learns_own_times = learns_own_times  # else `learn_time` is told what all ranks learn
        self.home = initial  # the tier in force, probes aside
        self.decision: Decision | None = None
        self.num_switches: dict[str, int] = {"gain": 0, "slot": 0, "fresh": 0, "found": 0}
        self._last_of_range: dict[int, Tier] = {}
        self._round = 0
        self._batch: DecodeBatch | None = None  # the newest
        self._requests: tuple[Hashable, ...] = ()
        self._known_requests: frozenset[Hashable] = frozenset()
        self._has_first = False  # zero-step rounds tell about position 1
        self._home_ms = 0.0

    @property
    def rounds_at_once(self) -> int:
        """How many rounds to plan, and results to take, together next."""
        until_decision = self.cadence.rounds_at_once
        return min(self.prober.num_to_ask or until_decision, until_decision)

    def choose(self, batch: DecodeBatch) -> Plan:
        """Returns the plan for the decode batch that is about to launch."""
        self._batch = batch
        has_batch_changed = batch.requests != self._requests
        if has_batch_changed:
            self._note_batch(batch)
        if self.cadence.is_due_at_launch(has_batch_changed):
            self._decide(batch)
        elif has_batch_changed and self.packing is not None and self.packing.newest is not None:
            self.packing.keep(self.acceptance.survival_of(batch.requests), not batch.limits)
        if self.prober.tier is not None:
            return Plan(self.prober.tier)
        packed = None if self.packing is None else self.packing.newest
        return Plan(self.home) if packed is None else packed.plan

    @property
    def wants_found(self) -> bool:
        """Whether drafting is what pays on the whole, or the table was not asked for long."""
        return self.home != PLAIN_TIER or self.asks.is_due

    def given_found(self, batch: DecodeBatch) -> Tier:
        """Returns the tier with the most tokens per ms for the drafts that were found."""
        assert batch.found is not None
        tiers = self._allowed(batch)
        tokens = self.acceptance.tokens_given(batch.requests, tiers, batch.found)
        round_ms = self.costs.round_ms_all(tiers, batch.size, batch.context_tokens)
        round_ms += self.interruptions.between_ms(batch.size, tokens, np.ones(len(tiers)))
        best = tiers[int((tokens / round_ms).argmax())]
        self.asks.answered(best != PLAIN_TIER)
        return best

    def count_rounds(self, num_rounds: int) -> None:
        """Counts rounds that were launched with the newest plan."""
        self._round += num_rounds
        self.cadence.count_rounds(num_rounds)
        if self.packing is not None and self.prober.tier is None:
            self.packing.count_rounds(num_rounds)
        self.prober.count_rounds(num_rounds, self._home_ms)

    def run_length(self, batch: DecodeBatch) -> int:
        """Returns the decodes of the zero-step round to come."""
        is_look = self.prober.tier == PLAIN_TIER
        between_ms = self._between_runs_ms(batch.size)
        return self.runs.choose(batch, *self._plain_ms(batch), is_look, between_ms)

    def observe(self, observation: Observation) -> None:
        """Learns what a round accepted, and position 1 from zero-step rounds."""
        tier = observation.tier
        num_tokens = observation.plan.num_decodes * observation.batch_size
        self.count_tokens(num_tokens + sum(observation.num_correct_drafts))
        if observation.found is not None:
            self.acceptance.count_found(observation.found)
        if tier.num_steps:
            self._observe_drafts(observation)
            if self.fresh_looks.is_under_way:
                self._book_look(observation)
        elif observation.first_draft_correct is not None:
            self._has_first = True
            self.acceptance.observe_first(observation.requests, observation.first_draft_correct)
        if observation.plan.verify_lens is None:
            self.prober.observe(tier)
        if tier == PLAIN_TIER:
            self.asks.count_decodes(observation.plan.num_decodes)
        if observation.found is not None:
            self._book_ask(observation)
        self.runs.observe(observation.plan, observation.batch_size)

    def _book_ask(self, observation: Observation) -> None:
        """Books what a round gave that was planned by what a table had."""
        decision, tier, size = self.decision, observation.tier, observation.batch_size
        probe = self.prober.probe
        if probe is not None and probe.tier == tier:  # nobody asked whether it pays
            return
        in_decodes = None if decision is None else decision.in_decodes(tier, decision.round_ms)
        if in_decodes is None:
            return
        if tier == PLAIN_TIER:
            in_decodes = max(self.runs.alone(size), LEAST_ASKED)
        gain = 1 + sum(observation.num_correct_drafts) / size - in_decodes
        if self.asks.book(gain) and self.home != PLAIN_TIER:
            self._move(PLAIN_TIER, "found")

    def _observe_drafts(self, observation: Observation) -> None:
        requests, tier = observation.requests, observation.tier
        num_correct, num_seen = observation.seen()
        confidence = observation.confidence
        if confidence is not None:
            seen = num_seen if num_seen is not None else (tier.num_steps,) * len(requests)
            hazards = self.confidence.hazards(confidence)
            self._survivals.append(np.multiply.accumulate(hazards, 0))
            plan = observation.plan
            if plan.by_confidence is not None or plan.verify_lens is None:
                self.confidence.learn(confidence, hazards, num_correct, seen)
            if plan.by_confidence is not None:
                held = self.confidence.held(hazards, num_correct, seen)
                self.acceptance.observe_held(requests, held, tier)
                return
        self.acceptance.observe(requests, num_correct, tier, num_seen)

    def count_tokens(self, num_tokens: int) -> None:
        """Counts the tokens of a finished round."""
        self.runs.count_tokens(num_tokens)
        self.interruptions.count_tokens(num_tokens)

    def after_results(self) -> None:
        """Decides if that is due now that more is known."""
        num_changes = self.acceptance.num_changes
        if self._batch is not None and self.cadence.is_due_at_result(num_changes):
            self._decide(self._batch)

    def observe_time(self, round_time: RoundTime) -> None:
        """Takes what a round took on this rank."""
        if self._learns_own_times:
            self.learn_time(round_time)

    def learn_time(self, round_time: RoundTime) -> None:
        """Learns what a round took, unless batches of its size have nothing to choose between.

        Beyond the measured sizes its time would count for those of the largest.
        """
        size, context_tokens = round_time.batch_size, round_time.context_tokens
        tier, has_choice = round_time.tier, len(self.ladder.of(size)) > 1
        if round_time.plan.verify_lens is not None:
            self._learn_packed_time(round_time)
            return
        if round_time.num_joined:
            if has_choice:
                expected_ms = self.costs.round_ms(tier, size, context_tokens)
                self.interruptions.learn(round_time, round_time.plan.num_decodes * expected_ms)
            return
        if tier == PLAIN_TIER:
            self.runs.learn(round_time, self.costs.seeded_ms(tier, size, context_tokens))
            round_time = of_one_decode(round_time, self.costs.plain_extra_ms)
        if has_choice:
            self.costs.observe(round_time)
            self.prober.observe_time(tier, round_time.ms)

    def _learn_packed_time(self, round_time: RoundTime) -> None:
        """Learns what a packed round took, which says nothing of its tier's own rounds."""
        if self.packing is None:
            return
        costs = self.packing.costs
        if round_time.num_joined:
            self.interruptions.learn(round_time, costs.of_round(round_time))
        else:
            costs.learn(round_time)

    def is_probe(self, plan: Plan) -> bool:
        """Returns whether ``plan`` has another tier than the one in force."""
        return plan.verify_lens is None and plan.tier != self.home

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
                    "current_tier": self._last_of_range.get(bound, clip(self.initial, tiers)).label,
                }
                for bound, tiers in self.ladder.ranges.items()
            },
            "num_stale": None,
            "decisions": {
                "round": self._round,
                "home": self.home.label,
                "newest": None if self.decision is None else self.decision.describe(),
                "moves": dict(self.num_switches),
                "fresh_looks": self.fresh_looks.describe(),
                "probing": self.prober.describe(),
            },
            "runs": self.runs.describe(),
            "interruptions": self.interruptions.describe(),
            "packing": None if self.packing is None else self.packing.describe(),
            "confidence": self.confidence.describe() if self.confidence.is_told else None,
            "acceptance": self.acceptance.describe(),
            "costs": self.costs.describe(newest.size, newest.context_tokens),
            "cost_table": self.costs.snapshot(),
        }

    def _note_batch(self, batch: DecodeBatch) -> None:
        """Notes who is in the batch now, and whether it is one of none but new requests."""
        requests = batch.requests
        size = len(requests)
        self.acceptance.limit(batch.limits)
        self.prober.note_batch(size)
        self._keep_to(self._allowed(batch))  # the next decision may come some rounds later
        self.runs.count_ends(self._requests, requests)
        self.cadence.note_batch(size)
        if self._requests and self._known_requests.isdisjoint(requests):
            self._start_afresh(batch)
        else:
            num_joined = len(set(requests).difference(self._known_requests))
            self.interruptions.count_joined(num_joined)
        self.fresh_looks.note_batch(requests)
        self._requests, self._known_requests = requests, frozenset(requests)

    def _start_afresh(self, batch: DecodeBatch) -> None:
        """Gives a batch of none but new requests the chance to differ from those before."""
        self.acceptance.shorten_memory()
        self._survivals.clear()
        self.cadence.start_afresh(len(batch.requests))
        start = clip(self.initial, self._allowed(batch))
        if self.fresh_looks.begin(self.home.num_steps < start.num_steps, batch.requests):
            self._move(start, "fresh")

    def _book_look(self, observation: Observation) -> None:
        tier, size, decision = observation.tier, observation.batch_size, self.decision
        if decision is None or decision.batch_size != size:
            return  # it knows other round times
        in_decodes = decision.in_decodes(tier, decision.period_ms)
        if in_decodes is not None:
            num_tokens = 1 + sum(observation.num_correct_drafts) / size
            self.fresh_looks.book(num_tokens, in_decodes)

    def _decide(self, batch: DecodeBatch) -> None:
        """Settles on a tier for the batch, then on a look at another."""
        bound, allowed = self.ladder.bound(batch.size), self._allowed(batch)
        model = Model(self.acceptance, self.costs, self._requests, self._has_first)
        self.decision = self._weigh(batch, allowed, model)
        self._pack(batch, allowed, max(self.decision.rates()))
        self.prober.step(self.decision, model)
        self._last_of_range[bound] = self.home
        is_best = self.decision.best == self.home
        is_packed_anew = self.packing is not None and self.packing.has_changed
        is_steady = is_best and not is_packed_anew and self.prober.probe is None
        num_decodes = self.runs.mean_length(batch.size) if self.home == PLAIN_TIER else 1.0
        self.cadence.decided(is_steady, num_decodes * self._home_ms)

    def _weigh(self, batch: DecodeBatch, tiers: tuple[Tier, ...], model: Model) -> Decision:
        """Decides between ``tiers``."""
        tokens = self.acceptance.expected_tokens(self._requests, tiers)
        if self.cadence.has_acceptance_changed(self.acceptance.num_changes):
            self.prober.reset()
            self._survivals.clear()
        round_ms = self.costs.round_ms_all(tiers, batch.size, batch.context_tokens)
        if batch.most_in_stay and PLAIN_TIER in tiers and self.home != PLAIN_TIER:
            self.runs.expect(batch, *self._plain_ms(batch), self._between_runs_ms(batch.size))
        between_ms = self._between_ms(tiers, batch.size, tokens, round_ms)
        noise = partial(lead_noise, model, self._settings)
        choice = choose(tiers, tokens, round_ms + between_ms, self.home, noise)
        if choice.tier != self.home:
            self._move(choice.tier, "gain")
        self._home_ms = float(round_ms[tiers.index(self.home)])
        size, best, reason = batch.size, choice.best, choice.reason
        values = tokens, round_ms, best, self.home, reason, between_ms
        least = min(batch.limits.values(), default=None)
        return Decision(self._round, size, tiers, *values, counted_steps=least)

    def _pack(self, batch: DecodeBatch, tiers: tuple[Tier, ...], rate: float) -> None:
        """Settles on a packed round, if one gives more than ``rate``."""
        packing = self.packing
        if packing is None:
            return
        survival = self.acceptance.survival_of(batch.requests)
        between_ms = partial(self._between_packed_ms, batch.size)
        # The device knows no limits.
        confident = None if batch.limits else self._confident(survival)
        packing.choose(batch, tiers, survival, between_ms, rate, confident)
        if packing.newest is not None and self.decision is not None:
            self._home_ms = packing.newest.round_ms
            expected = packing.newest.tokens, packing.newest.round_ms
            self.decision = replace(self.decision, packed=expected)

    def _confident(self, survival: Floats) -> Confident | None:
        """Returns what confidence says of the newest rounds of about as many requests, if told.

        Deeper than they drafted the hazards of ``survival`` are taken: [steps, requests].
        """
        size, settings = survival.shape[1], self._settings.confidence
        near = size / self._settings.cadence.redecide_share
        newest = [known for known in self._survivals if abs(known.shape[1] - size) <= near]
        if not newest:
            return None
        whole = []
        for of_round in newest[-max(settings.sampled_requests // size, 1) :]:
            steps, known = len(of_round), np.resize(of_round.T, (size, len(of_round))).T
            beyond = survival[steps:] / survival[steps - 1] * known[-1]
            whole.append(np.concatenate((known, beyond)))
        return Confident(self.confidence.weights, whole)

    def _between_packed_ms(self, size: int, tokens: Floats) -> Floats:
        return self.interruptions.between_ms(size, tokens, np.ones_like(tokens))

    def _plain_ms(self, batch: DecodeBatch) -> tuple[float, float]:
        """Returns what a zero-step round with one decode took at start-up, and takes now."""
        size, context_tokens = batch.size, batch.context_tokens
        seeded_ms = self.costs.seeded_ms(PLAIN_TIER, size, context_tokens)
        return seeded_ms, self.costs.round_ms(PLAIN_TIER, size, context_tokens)

    def _between_runs_ms(self, size: int) -> list[float]:
        """Returns what prefills take before the next decode, by lengths of zero-step rounds."""
        between_ms: list[float] = self.interruptions.between_ms(size, size, RUN_LENGTHS).tolist()
        return between_ms

    def _between_ms(
        self, tiers: tuple[Tier, ...], size: int, tokens: Floats, round_ms: Floats
    ) -> Floats:
        """Returns what is expected before the next decode, by tier: prefills, and lost decodes."""
        of_run = self.runs.mean_length(size)
        decodes = np.array([of_run if tier == PLAIN_TIER else 1.0 for tier in tiers])
        between_ms = self.interruptions.between_ms(size, tokens, decodes)
        if of_run > 1 and PLAIN_TIER in tiers:
            idx = tiers.index(PLAIN_TIER)
            decode_ms = round_ms[idx] + between_ms[idx]
            between_ms[idx] += decode_ms * (1 / self.runs.kept(size, of_run) - 1)
        return between_ms

    def _allowed(self, batch: DecodeBatch) -> tuple[Tier, ...]:
        """Returns what a batch may choose, and may gain from."""
        return no_deeper(self.ladder.of(batch.size), batch.most_steps)

    def _keep_to(self, allowed: tuple[Tier, ...]) -> None:
        if self.home not in allowed:
            self._move(clip(self.home, allowed), "slot")
        self.prober.keep_to(allowed)

    def _move(self, tier: Tier, reason: str) -> None:
        self.prober.note_move(is_shallower=tier.num_steps < self.home.num_steps)
        self.asks.follow(is_drafting=tier != PLAIN_TIER)
        self.home = tier
        self.num_switches[reason] += 1
