"""The loop: choose -> activate -> observe. Start reading here.

Once per decode round the worker calls `before_decode`: the policy's plan stands or it chooses
another, the pool swaps its tier in by reference, and the round joins the queue. One round later
(the overlap schedule processes results late) the worker calls `observe` with the accepted drafts;
the oldest round of that size is the one that they belong to. Plans stand for up to 16 rounds, whose
results are worked through together, or before a batch changes: CPU caches are cold after a GPU
round. Extend and mixed batches run on the start-up tier, once the draft is caught up.

Zero-step rounds let the draft fall behind (host/drafters/backlog.py); the last of them catches it
up, so leaving zero steps takes one round more. Where a batch is too large to draft at all, no round
does.

Nothing here touches a GPU, allocates device memory or logs per round.
"""

import logging
from collections.abc import Hashable, Sequence
from typing import NamedTuple, Protocol

from sglang_adaptive_spec.loop.catch_up import Lag
from sglang_adaptive_spec.loop.counters import RoundCounters
from sglang_adaptive_spec.loop.meter import RoundMeter
from sglang_adaptive_spec.loop.minutes import Minutes
from sglang_adaptive_spec.loop.round import MAX_ROUNDS, Round, RoundQueue
from sglang_adaptive_spec.loop.sharing import SharedTimes
from sglang_adaptive_spec.policy.decision import Decision
from sglang_adaptive_spec.policy.protocol import Choices
from sglang_adaptive_spec.tiers import PLAIN_TIER, CatchUp, DecodeBatch, Plan, Tier
from sglang_adaptive_spec.trace.record import TraceRecorder

logger = logging.getLogger(__name__)


class TierPool(Protocol):
    """Holds the runtime state of every tier and knows the one in force."""

    current: Tier

    def activate(self, tier: Tier) -> None:
        """Swaps ``tier`` in, all or nothing."""


class DraftSchedule(Protocol):
    """Knows how far the draft is behind (catch_up.py:CatchUpSchedule)."""

    def lag(self, batch: DecodeBatch) -> Lag:
        """Returns how far the draft is behind ``batch`` before its round."""

    def book(
        self,
        batch: DecodeBatch,
        lag: Lag,
        is_last: bool,
        num_decodes: int,
        may_catch_up: bool = True,
    ) -> tuple[CatchUp, Sequence[int]]:
        """Takes a zero-step round; returns how it catches up, and what rows lack."""

    def take_back(self, num_decodes: int, is_caught_up: bool) -> None:
        """Takes note that the newest zero-step round ran so many decodes less than booked."""

    def end_stay(self) -> None:
        """Takes note that drafting is what the policy is on, not a look."""

    def before_extend(
        self, prefilled: Sequence[Hashable], decoding: Sequence[Hashable], may_catch_up: bool
    ) -> Sequence[int]:
        """Takes rows before an extend; returns what those that decode must be caught up on."""


class RoundClock(Protocol):
    """Times decode rounds without waiting for the device (loop/timing.py:RoundTimer)."""

    def start(self, launched: Round, num_in_flight: int) -> None:
        """Marks the head of a decode round; others are in flight if their results are not there."""

    def interrupt(self, is_mixed: bool = False) -> None:
        """Tells that an extend comes before the next round, a mixed one if others decode in it."""

    def poll(self, done: Round) -> Round | None:
        """Returns the round before ``done``, whose result is there, if its period is known now."""


class Chosen(NamedTuple):
    """What a round shall run, and the rounds after it as long as nothing changes."""

    tier: Tier
    is_probe: bool = False  # a look at a tier, not what the policy is on
    decision: Decision | None = None  # the policy's newest
    num_rounds: int = 1
    of_all: DecodeBatch | None = None  # where several ranks' rounds run together
    is_by_found: bool = False  # for one round, by the drafts that a table has for it
    verify_lens: tuple[int, ...] | None = None  # as a plan has these two
    by_confidence: tuple[float, ...] | None = None

    def at(self, num_decodes: int = 1) -> Plan:
        """Returns the plan of a round of a draft that lags behind nothing."""
        lens, weights = self.verify_lens, self.by_confidence
        return Plan(self.tier, num_decodes, verify_lens=lens, by_confidence=weights)


class AdaptiveController:
    """Plans every decode round and gives every result to the round that produced it."""

    def __init__(
        self,
        policy: Choices,
        pool: TierPool,
        startup_tier: Tier,
        clock: RoundClock | None = None,
        draft_schedule: DraftSchedule | None = None,
        meter: RoundMeter | None = None,
        recorder: TraceRecorder | None = None,
    ) -> None:
        self.policy = policy
        self.pool = pool
        self.startup_tier = startup_tier
        self.clock = clock
        # None: nothing is put off. SGLang's own zero-step rounds extend the draft each time.
        self.draft_schedule = draft_schedule
        self.meter = meter
        self.recorder = recorder
        self.shared_times: SharedTimes | None = None  # of a rank among several
        self.minutes: Minutes | None = None  # of a server
        self.pinned: Tier | None = None  # chosen by an operator instead of the policy
        self.counters = RoundCounters()
        self.rounds = RoundQueue(self.counters)
        self.decode_tier = startup_tier  # the tier of the newest decode round
        self.newest = DecodeBatch(0, ())  # of the newest decode round
        # Accepted drafts per request and batch size of the oldest rounds, in launch order.
        self._results: list[tuple[Sequence[int], int]] = []
        self._rounds_at_once = policy.rounds_at_once
        self._standing: Chosen | None = None  # while it stands, the policy is not asked
        self._num_stood = 0  # rounds launched with it
        self._asked_run = (0, 0)  # since: the most decodes allowed, and the policy's answer
        self._policy_error_logged = False

    def before_extend(
        self,
        prefilled: Sequence[Hashable] = (),
        decoding: Sequence[Hashable] = (),
        can_catch_up: bool = True,
    ) -> Sequence[int]:
        """Puts the start-up tier in force for an extend or mixed batch.

        Args:
            prefilled: Its rows.
            decoding: Rows that decode beside them, after those.
            can_catch_up: Whether the host can run a round of the latter alone now.

        Returns:
            What the draft lacks per row of ``decoding``, if it must be caught up before.
        """
        self.learn()
        if self.clock is not None:
            self.clock.interrupt(is_mixed=len(decoding) > 0)
        if self.minutes is not None:
            self.minutes.extend()
        if self.pool.current != self.startup_tier:
            self.pool.activate(self.startup_tier)
            self.counters.num_prefill_activations += 1
        if self.draft_schedule is None:
            return ()
        can_catch_up = can_catch_up and self.may_draft(len(prefilled) + len(decoding))
        return self.draft_schedule.before_extend(prefilled, decoding, can_catch_up)

    def before_idle(self) -> None:
        """Counts a forward without requests, which teaches nothing; a prefill ends before it."""
        self.counters.num_idle_rounds += 1
        if self.minutes is not None:
            self.minutes.idle()

    def before_decode(self, batch: DecodeBatch) -> Round:
        """Plans the decode round that is about to launch and activates its tier."""
        if self.shared_times is not None:  # before all that a policy has a part in
            self._learn_shared(self.shared_times)
        if self.minutes is not None:
            self.minutes.decode(batch.now_s, batch.num_waiting)
        has_changed = batch.requests != self.newest.requests
        if has_changed:
            self.learn()
            self._end_standing()
        chosen = self._choose(batch)
        if has_changed:
            self._rounds_at_once = self.policy.rounds_at_once
        plan, debts = self._with_draft_caught_up(chosen, batch)
        if plan.tier != self.decode_tier:
            self._count_switch(plan.tier, batch, chosen.is_by_found)
        self.newest = batch
        if plan.tier != self.pool.current:
            self.pool.activate(plan.tier)
        num_in_flight = len(self.rounds) - len(self._results)
        launched = self.rounds.launch(batch, plan, chosen.is_probe, chosen.decision, debts)
        launched.of_all = chosen.of_all
        if self.clock is not None:
            self.clock.start(launched, num_in_flight)
        if len(self.rounds) > MAX_ROUNDS:
            self.learn()
            if len(self.rounds) > MAX_ROUNDS:
                self.rounds.keep_newest()
        return launched

    def cut_short(self, num_decodes: int) -> None:
        """Takes note that the newest round, of zero steps, ran fewer decodes than planned."""
        newest = self.rounds.newest
        if self.draft_schedule is not None:
            num_missing = newest.plan.num_decodes - num_decodes
            is_caught_up = newest.plan.catch_up is not CatchUp.NONE
            self.draft_schedule.take_back(num_missing, is_caught_up)
        newest.plan = newest.plan._replace(num_decodes=num_decodes)
        self.counters.num_cut_runs += 1

    def pin(self, tier: Tier | None) -> None:
        """Keeps decode rounds at ``tier`` from now on; None lets the policy choose again.

        The policy goes on learning from what the rounds give.
        """
        self.pinned = tier
        self.counters.num_pins += 1
        logger.info("ADAPTIVE_EAGLE is pinned to %s", "no tier" if tier is None else tier.label)

    def wants_found(self, batch: DecodeBatch) -> bool:
        """Returns whether a table shall be asked for drafts before a batch's round is planned."""
        may_choose = self.pinned is None and batch.exact is None and not batch.is_near_end
        return may_choose and self.may_draft(batch.size) and self.policy.wants_found

    def may_draft(self, batch_size: int) -> bool:
        """Returns whether a batch may run another tier than zero steps."""
        return self.policy.ladder.of(batch_size) != (PLAIN_TIER,)

    def observe(self, num_correct_drafts: Sequence[int], batch_size: int) -> None:
        """Takes the result of the oldest round in flight: accepted drafts per request."""
        self._results.append((num_correct_drafts, batch_size))
        if len(self._results) >= self._rounds_at_once:
            self.learn()

    def learn(self) -> None:
        """Works through the results taken so far; whoever reads counters or policy calls it."""
        if not self._results:
            return
        self._end_standing()
        results, self._results = self._results, []
        for num_correct_drafts, batch_size in results:
            self._learn(num_correct_drafts, batch_size)
        try:
            self.policy.after_results()
        except Exception:  # noqa: BLE001 - any policy must leave serving alive
            self._count_policy_error("after_results")
        self._rounds_at_once = self.policy.rounds_at_once

    def _learn(self, num_correct_drafts: Sequence[int], batch_size: int) -> None:
        done = self.rounds.take(batch_size)
        if done is None:
            return
        before = self.clock.poll(done) if self.clock is not None else None
        period = before.period if before is not None else None
        if before is not None and not has_own_look_ups(before, done):
            period = None
        if period is not None and self.shared_times is not None:
            self.shared_times.add(period)
        try:
            self.counters.count_round(done.plan, num_correct_drafts)
            observation = done.finish(num_correct_drafts)
            if self.recorder is not None and done.batch.size:
                self.recorder.record(observation, done.batch.context_tokens, done.batch.now_s)
            self.policy.observe(observation)
            if period is not None:
                assert before is not None
                if self.meter is not None:
                    self.meter.add(before)
                self.policy.observe_time(period)
        except Exception:  # noqa: BLE001 - any policy must leave serving alive
            self._count_policy_error("observe")

    def _learn_shared(self, times: SharedTimes) -> None:
        for round_time in times.tick():  # a message among the ranks: its failure ends the server
            try:
                times.learn(round_time)
            except Exception:  # noqa: BLE001 - any policy must leave serving alive
                self._count_policy_error("learn_time")

    def _with_draft_caught_up(
        self, chosen: Chosen, batch: DecodeBatch
    ) -> tuple[Plan, Sequence[int]]:
        """Returns what to run, and what the draft lacks per row of a zero-step round."""
        schedule, tier = self.draft_schedule, chosen.tier
        if schedule is None:
            is_free = tier == PLAIN_TIER and batch.found is None  # else the table is asked again
            most = batch.most_decodes if is_free else 1
            num_decodes = self._run_length(batch, most) if most > 1 else 1
            return chosen.at(num_decodes), ()
        lag = self._lag_of_all(schedule.lag(batch))
        if tier != PLAIN_TIER:
            if not chosen.is_probe:
                schedule.end_stay()
            if not lag.is_behind:
                return chosen.at(), ()
            catch_up, debts = schedule.book(batch, lag, True, 1)
            return Plan(PLAIN_TIER, 1, catch_up), debts
        may_draft, most = self.may_draft(batch.size), lag.most_decodes
        if may_draft:  # else nothing of what is kept is read
            most = max(1, min(most, lag.room))
        num_decodes = self._run_length(batch, most) if most > 1 else 1
        catch_up, debts = schedule.book(batch, lag, False, num_decodes, may_draft)
        return Plan(PLAIN_TIER, num_decodes, catch_up), debts

    def _lag_of_all(self, lag: Lag) -> Lag:
        """Returns how far drafts are behind, where several ranks' rounds run together."""
        return lag

    def _run_length(self, batch: DecodeBatch, most: int) -> int:
        """Returns the decodes of a zero-step round, at most ``most``."""
        most_asked, length = self._asked_run
        if most_asked >= most >= length:  # the room shrinks with every round until a catch-up
            return length
        try:
            length = self.policy.run_length(batch._replace(most_decodes=most))
        except Exception:  # noqa: BLE001 - any policy must leave serving alive
            self._count_policy_error("run_length")
            length = 1
        self._asked_run = (most, length)
        return length

    def _choose(self, batch: DecodeBatch) -> Chosen:
        if batch.exact is not None:
            self.counters.num_exact_rounds[batch.exact] += 1
            return Chosen(PLAIN_TIER)
        if batch.is_near_end:  # no draft may stand past the end of the context
            return Chosen(self.policy.ladder.of(batch.size)[0])
        return self._given_found(batch, self._ask(batch))

    def _given_found(self, batch: DecodeBatch, chosen: Chosen) -> Chosen:
        """Returns what pays given the drafts that a table has for this round."""
        if batch.found is None or chosen.is_probe or self.pinned is not None:
            return chosen
        try:  # the decision was about rounds as they are on the whole: it expects nothing of this
            tier = self.policy.given_found(batch)
            return chosen._replace(tier=tier, decision=None, is_by_found=True)
        except Exception:  # noqa: BLE001 - any policy must leave serving alive
            self._count_policy_error("given_found")
            return chosen

    def _ask(self, batch: DecodeBatch) -> Chosen:
        """Returns what the operator or the policy wants; its plan stands for some rounds."""
        policy, standing = self.policy, self._standing
        if self.pinned is not None:
            return Chosen(nearest(self.pinned, policy.ladder.of(batch.size)))
        if standing is not None and self._num_stood < standing.num_rounds:
            self._num_stood += 1
            return standing
        self._end_standing()
        try:
            plan = policy.choose(batch)
            is_probe, num_rounds = policy.is_probe(plan), policy.rounds_at_once
            self._standing = Chosen(
                *(plan.tier, is_probe, policy.decision, num_rounds),
                verify_lens=plan.verify_lens,
                by_confidence=plan.by_confidence,
            )
        except Exception:  # noqa: BLE001 - any policy must leave serving alive
            self._count_policy_error("choose")
            return Chosen(self.decode_tier)
        self._num_stood = 1
        return self._standing

    def _end_standing(self) -> None:
        """Has the policy asked before the next round, and told how many ran since it was."""
        self._asked_run = (0, 0)
        if self._standing is None:
            return
        num_rounds, self._standing = self._num_stood, None
        try:
            self.policy.count_rounds(num_rounds)
        except Exception:  # noqa: BLE001 - any policy must leave serving alive
            self._count_policy_error("count_rounds")

    def _count_switch(self, tier: Tier, batch: DecodeBatch, is_by_found: bool) -> None:
        if self.newest.size:  # else it is the first choice, which switches from nothing
            bound, reason = self.policy.ladder.bound, "found" if is_by_found else "policy"
            if bound(self.newest.size) != bound(batch.size):
                reason = "batch_size"
            if self.pinned is not None:
                reason = "pin"
            if batch.exact is not None or batch.is_near_end:
                reason = "exact" if batch.exact is not None else "context_end"
            self.counters.num_switches[reason] += 1
            logger.debug("tier %s -> %s (%s)", self.decode_tier, tier, reason)
        self.decode_tier = tier

    def _count_policy_error(self, call: str) -> None:
        self.counters.num_policy_errors += 1
        if not self._policy_error_logged:
            self._policy_error_logged = True
            logger.exception(
                "ADAPTIVE_EAGLE policy failed in %s(); the last tier stays in force. "
                "Further failures are counted in /server_info (fallbacks.policy_error).",
                call,
            )


def has_own_look_ups(one: Round, following: Round) -> bool:
    """Returns whether the period of a round has the look-ups that rounds of its tier have.

    A table that is asked before a round is planned is asked before its head, in the period of the
    round before. One that is asked later falls into the round's own. So a stay at zero steps has
    none, and drafting has one a round.
    """
    is_next_in_it = following.batch.found is not None
    if one.tier == PLAIN_TIER:
        return not is_next_in_it
    return is_next_in_it == (one.batch.found is not None)


def nearest(wanted: Tier, tiers: Sequence[Tier]) -> Tier:
    """Returns ``wanted`` where a batch may run it, else the largest below it, else the smallest."""
    if wanted in tiers:
        return wanted
    by_size = sorted(tiers, key=lambda tier: tier.num_draft_tokens)
    below = [tier for tier in by_size if tier.num_draft_tokens <= wanted.num_draft_tokens]
    return below[-1] if below else by_size[0]
