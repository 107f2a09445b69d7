"""Fakes around a controller: pool, policies, clock, first drafts; and a round of theirs."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from sglang_adaptive_spec.ladder import Ladder
from sglang_adaptive_spec.loop.catch_up import CatchUpSchedule
from sglang_adaptive_spec.loop.controller import AdaptiveController
from sglang_adaptive_spec.loop.round import MAX_ROUNDS, Round
from sglang_adaptive_spec.policy.decision import Decision
from sglang_adaptive_spec.tiers import (
    PLAIN_TIER,
    DecodeBatch,
    Observation,
    Plan,
    RoundTime,
    Tier,
    chain_tier,
)

STARTUP = chain_tier(7)
INTERVAL = 4  # rounds from one catch-up to the next


class FakePool:
    """Remembers every activation."""

    def __init__(self) -> None:
        self.current = STARTUP
        self.activated: list[Tier] = []

    def activate(self, tier: Tier) -> None:
        self.current = tier
        self.activated.append(tier)


class ScriptedPolicy:
    """Chooses the tiers of a script, in order; the last one stays."""

    def __init__(self, *steps: int) -> None:
        self.script = [chain_tier(step) for step in steps]
        self.most_drafting: int | None = None  # requests; larger batches run zero steps alone
        self.observed: list[Observation] = []
        self.times: list[RoundTime] = []
        self.failing = ""
        self.counted: list[int] = []  # rounds that ran a plan
        self.num_learned_from = 0  # times that results were worked through
        self.rounds_at_once = 1
        self.wants_found = False
        self.length = 1  # of zero-step rounds, where there is room
        self.rooms: list[int] = []  # what there was

    def run_length(self, batch: DecodeBatch) -> int:
        self._fail_in("run_length")
        self.rooms.append(batch.most_decodes)
        return min(self.length, batch.most_decodes)

    def choose(self, batch: DecodeBatch) -> Plan:
        self._fail_in("choose")
        return Plan(self.script.pop(0) if len(self.script) > 1 else self.script[0])

    def count_rounds(self, num_rounds: int) -> None:
        self._fail_in("count_rounds")
        self.counted.append(num_rounds)

    def after_results(self) -> None:
        self._fail_in("after_results")
        self.num_learned_from += 1

    def observe(self, observation: Observation) -> None:
        self._fail_in("observe")
        self.observed.append(observation)

    def observe_time(self, round_time: RoundTime) -> None:
        self._fail_in("observe_time")
        self.times.append(round_time)

    def is_probe(self, plan: Plan) -> bool:
        return False

    @property
    def decision(self) -> Decision | None:
        self._fail_in("decision")
        return None

    @property
    def ladder(self) -> Ladder:
        drafting = (*self.script, STARTUP)
        if self.most_drafting is None:
            return Ladder({1: drafting, 8: drafting})
        return Ladder({1: drafting, self.most_drafting + 1: [PLAIN_TIER]})

    def describe(self) -> dict[str, Any]:
        return {}

    def _fail_in(self, call: str) -> None:
        if self.failing == call:
            raise ZeroDivisionError("scripted")


class KnownPeriods:
    """Knows a round's period as soon as the next one starts."""

    def __init__(self, ms: Callable[[Round], float]) -> None:
        self._ms = ms
        self._rounds: dict[int, Round] = {}

    def start(self, launched: Round, num_in_flight: int) -> None:
        del num_in_flight
        batch, ms = launched.batch, self._ms(launched)
        launched.period = RoundTime(launched.plan, batch.size, batch.context_tokens, ms)
        self._rounds[launched.number] = launched
        self._rounds.pop(launched.number - MAX_ROUNDS - 1, None)

    def interrupt(self, is_mixed: bool = False) -> None:
        """Takes no notice: the periods are known."""

    def poll(self, done: Round) -> Round | None:
        return self._rounds.get(done.number - 1)


class FakeClock(KnownPeriods):
    """Remembers every call; the period of a round is the number of the calls in ms."""

    def __init__(self) -> None:
        super().__init__(lambda _: float(len(self.calls)))
        self.calls: list[tuple[Any, ...]] = []
        self.num_in_flight: list[int] = []
        self.num_polls = 0

    def start(self, launched: Round, num_in_flight: int) -> None:
        batch, plan = launched.batch, launched.plan
        shape = (plan.tier.num_steps, batch.size, batch.context_tokens, plan.is_catch_up)
        self.calls.append(shape)
        self.num_in_flight.append(num_in_flight)
        super().start(launched, num_in_flight)

    def interrupt(self, is_mixed: bool = False) -> None:
        self.calls.append(("interrupt",))

    def poll(self, done: Round) -> Round | None:
        self.num_polls += 1
        return super().poll(done)


class PatientPolicy(ScriptedPolicy):
    """Plans three rounds and takes three results together."""

    def __init__(self, *steps: int) -> None:
        super().__init__(*steps)
        self.rounds_at_once = 3


class KnownFirstDrafts:
    """First drafts of one round; must not be read before its result is there."""

    def __init__(self, *correct: bool | None) -> None:
        self.correct = correct
        self.num_reads = 0

    def read(self) -> Sequence[bool | None]:
        self.num_reads += 1
        return self.correct


def make(*steps: int) -> tuple[AdaptiveController, ScriptedPolicy, FakePool]:
    policy, pool = ScriptedPolicy(*steps), FakePool()
    return AdaptiveController(policy, pool, STARTUP), policy, pool


def decode(
    controller: AdaptiveController,
    requests: Sequence[Hashable] = ("a",),
    context_tokens: int = 0,
    most_decodes: int = 1,
    is_near_end: bool = False,
) -> Round:
    """Launches a round."""
    batch = DecodeBatch(
        len(requests), tuple(requests), context_tokens, 0.0, most_decodes, is_near_end=is_near_end
    )
    return controller.before_decode(batch)


def lagging(*steps: int) -> tuple[AdaptiveController, ScriptedPolicy, FakePool]:
    """A controller whose zero-step rounds let the draft fall behind."""
    controller, policy, pool = make(*steps)
    controller.draft_schedule = CatchUpSchedule(INTERVAL)
    return controller, policy, pool
