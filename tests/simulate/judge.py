"""What runs, round by round, on every golden trace, on recorded ones and on one with faults.

Moves of code must leave these files as they are, byte for byte. A change that means to decide
otherwise writes them anew, in a commit of its own that says why:

    python -m tests.simulate.judge
"""

import itertools
import json
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from sglang_adaptive_spec.config.schema import load_config
from sglang_adaptive_spec.loop.catch_up import CatchUpSchedule
from sglang_adaptive_spec.loop.controller import AdaptiveController
from sglang_adaptive_spec.loop.round import Round
from sglang_adaptive_spec.policy.goodput import GoodputPolicy
from sglang_adaptive_spec.simulate.command import goodput
from sglang_adaptive_spec.simulate.recorded import RecordedWorkload
from sglang_adaptive_spec.simulate.replay import Replay
from sglang_adaptive_spec.simulate.synthetic import golden_workloads
from sglang_adaptive_spec.simulate.true_costs import ExampleCosts
from sglang_adaptive_spec.simulate.workload import Workload
from sglang_adaptive_spec.tiers import (
    DecodeBatch,
    Observation,
    RoundTime,
    Tier,
    chain_tier,
)
from tests.controller_fakes import FakePool, KnownFirstDrafts
from tests.simulate.recording import Alternating, recorded

ROUNDS = Path(__file__).parent / "rounds"
COSTS = ExampleCosts()
COST_NOISE = 0.02
MAX_STEPS = 10
# Recorded at these depths in turn.
RECORDED = MappingProxyType(
    {"phases-2s-16": (3,), "ramp-1-128-1": (5, 1), "mixed-32": (7, 0, 0, 0, 2)}
)

Row = tuple[int, str, bool]  # batch size, tier as it ran, whether another than the best was asked


class Asked:
    """The default policy, and whether its newest choice is a probe."""

    def __init__(self) -> None:
        self.policy: GoodputPolicy = goodput(COSTS, load_config(None), COST_NOISE)
        self.probes = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.policy, name)

    def choose(self, batch: DecodeBatch) -> Tier:
        tier = self.policy.choose(batch)
        self.probes = tier != self.policy.home
        return tier


class Rows:
    """Keeps every round of a replay."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self.rows: list[Row] = []

    def record(self, observation: Observation, context_tokens: int, now_s: float) -> None:
        del context_tokens, now_s
        size, label = observation.batch_size, observation.tier.label
        self.rows.append((size, label, self._asked.probes))


def replayed(workload: Workload) -> list[Row]:
    """Returns the rounds of the default policy on a trace."""
    asked = Asked()
    kept = Rows(asked)
    Replay(asked, workload, COSTS, recorder=kept).run()
    return kept.rows


def on_record(name: str, steps: Sequence[int]) -> list[Row]:
    """Returns the rounds on what was recorded of a golden trace at other depths."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.jsonl"
        trace = recorded(path, Alternating(*steps), golden_workloads()[name])
    return replayed(RecordedWorkload(trace, MAX_STEPS))


# -- the controller itself, with results that are lost, do not fit, or that the policy fails on --

NUM_FAULTY_ROUNDS = 3000
SIZES = (8, 16, 3, 40)  # requests, for `ROUNDS_A_SIZE` rounds each
ROUNDS_A_SIZE = 300
ROUNDS_A_REQUEST = 40  # then the oldest leaves and another joins
LEVELS, ROUNDS_A_LEVEL = (0.9, 0.2, 0.6), 220  # of acceptance
LOST_EVERY, MISFIT_EVERY, FAILS_EVERY = 97, 131, 61
ALL_LOST = range(1500, 1530)  # more than are waited for


class FailingAsked(Asked):
    """Fails now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.num_observed = 0

    def observe(self, observation: Observation) -> None:
        self.num_observed += 1
        if self.num_observed % FAILS_EVERY == 0:
            raise ZeroDivisionError("planted")
        self.policy.observe(observation)


class TrueClock:
    """Knows every period when the round starts; a prefill in between takes the last one away."""

    def __init__(self) -> None:
        self._noise = np.random.default_rng(2)
        self._newest: Round | None = None
        self.ms = 0.0  # of the newest round

    def start(self, launched: Round, num_in_flight: int) -> None:
        del num_in_flight
        shape = (launched.tier, launched.batch.size, launched.batch.context_tokens)
        self.ms = COSTS.round_ms(*shape)
        measured = self.ms * (1 + COST_NOISE * float(self._noise.standard_normal()))
        launched.period = RoundTime(*shape, measured, launched.is_catch_up)
        self._newest = launched

    def interrupt(self) -> None:
        if self._newest is not None:
            self._newest.period = None

    def poll(self, done: Round) -> Round | None:
        return done if done.period is not None else None


def with_faults() -> list[Row]:
    """Returns the rounds of the controller where results go wrong."""
    asked, clock, schedule = FailingAsked(), TrueClock(), CatchUpSchedule()
    controller = AdaptiveController(asked, FakePool(), chain_tier(MAX_STEPS), clock, schedule)
    draws = np.random.default_rng(3)
    names = itertools.count()
    requests: list[int] = []
    rows: list[Row] = []
    in_flight: list[tuple[int, Round]] = []
    now_s = 0.0
    for number in range(NUM_FAULTY_ROUNDS):
        if has_joined := _come_and_go(requests, names, number):
            controller.before_extend()
            schedule.forget(tuple(has_joined))
        batch = DecodeBatch(len(requests), tuple(requests), 300 * len(requests), now_s)
        launched = controller.before_decode(batch)
        if launched.is_catch_up:
            schedule.settle()
            launched.first_drafts = KnownFirstDrafts(*(draws.random(len(requests)) < 0.7))
        rows.append((launched.batch.size, launched.tier.label, launched.is_probe))
        now_s += clock.ms / 1e3
        in_flight.append((number, launched))
        if len(in_flight) > 1:
            _report(controller, *in_flight.pop(0), draws)
    controller.learn()
    return rows


def _come_and_go(requests: list[int], names: Iterable[int], number: int) -> list[int]:
    """Lets requests leave and join before a round; returns who joined."""
    if number % ROUNDS_A_REQUEST == 0:
        del requests[:1]
    size = SIZES[number // ROUNDS_A_SIZE % len(SIZES)]
    del requests[: max(len(requests) - size, 0)]
    has_joined = list(itertools.islice(names, size - len(requests)))
    requests += has_joined
    return has_joined


def _report(
    controller: AdaptiveController, number: int, launched: Round, draws: np.random.Generator
) -> None:
    """Hands the controller the result of a round, or what came of it."""
    level = LEVELS[number // ROUNDS_A_LEVEL % len(LEVELS)]
    hazards = np.where(np.array(launched.batch.requests, dtype=int) % 2 == 0, level, 0.8 * level)
    held = draws.random((launched.batch.size, MAX_STEPS)) < hazards[:, None]
    correct = held.cumprod(axis=1).sum(axis=1).clip(max=launched.tier.num_steps)
    if number % LOST_EVERY == 0 or number in ALL_LOST:
        return
    if number % MISFIT_EVERY == 0:
        controller.observe([0] * 99, 99)
    controller.observe(correct.tolist(), launched.batch.size)


def traces() -> Mapping[str, Callable[[], list[Row]]]:
    """Returns how the rounds of every trace are made."""
    return {
        **{name: partial(replayed, trace) for name, trace in golden_workloads().items()},
        **{f"recorded-{name}": partial(on_record, name, steps) for name, steps in RECORDED.items()},
        "faults": with_faults,
    }


def as_json(rows: Iterable[Row]) -> str:
    """Returns equal rounds in a row as one line with their number."""
    lines = [json.dumps([*row, len(list(same))]) for row, same in itertools.groupby(rows)]
    return "[\n" + ",\n".join(lines) + "\n]\n"


def main() -> None:
    """Writes all files anew."""
    ROUNDS.mkdir(exist_ok=True)
    for name, make in traces().items():
        (ROUNDS / f"{name}.json").write_text(as_json(make()))


if __name__ == "__main__":
    main()
