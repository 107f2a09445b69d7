"""What the measuring plugin does inside a scheduler: force, time, and leave no trace."""

import types
from collections.abc import Sequence
from typing import Any

import pytest

from benchmarks.inject.engine import SINGLE, Call, Engine, ForcedPolicy, Stopwatch, alternation
from sglang_adaptive_spec.ladder import Ladder
from sglang_adaptive_spec.tiers import DecodeBatch, Plan, chain_tier

TIERS = tuple(chain_tier(steps) for steps in (0, 1, 3))


def batch_of(size: int) -> DecodeBatch:
    """A batch of that size."""
    return DecodeBatch(size, tuple(range(size)))


class SmallPolicy:
    """Chooses the deepest of a few tiers; below eight requests only two are reachable."""

    ladder = Ladder({1: TIERS[:2], 8: TIERS})

    def choose(self, batch: DecodeBatch) -> Plan:
        return Plan(self.ladder.of(batch.size)[-1])

    def describe(self) -> dict[str, str]:
        return {"of": "its own"}


class SmallController:
    """Stands where the worker's controller stands."""

    def __init__(self) -> None:
        self.policy: Any = SmallPolicy()
        self.draft_schedule: object | None = object()  # its draft can lag behind
        self.calls: list[str] = []

    def before_decode(self, batch: DecodeBatch) -> None:
        self.calls.append(f"choose {batch.size} {len(batch.requests)}")

    def observe(self, num_correct_drafts: Sequence[int], batch_size: int) -> None:
        self.calls.append(f"observe {batch_size}")


def test_alternation_runs_through_every_tier_that_the_batch_may_choose() -> None:
    forced = ForcedPolicy(SmallPolicy())
    assert {forced.choose(batch_of(4)).tier for _ in range(3)} == set(TIERS[:2])
    assert {forced.choose(batch_of(8)).tier for _ in range(4)} == set(TIERS)


def test_the_tier_after_zero_steps_is_asked_for_until_the_draft_has_caught_up() -> None:
    zero, one, three = TIERS
    assert alternation(TIERS) == [zero, one, one, three]
    assert alternation(TIERS[1:]) == [one, three]
    assert alternation(TIERS[:1]) == [zero]


def test_a_table_drafts_right_after_zero_steps(host_switch: types.SimpleNamespace) -> None:
    controller = SmallController()
    controller.draft_schedule = None
    engine = Engine(types.SimpleNamespace(draft_worker=worker_of(controller)))
    engine.obey(command(policy="alternate"))
    chosen = [controller.policy.choose(batch_of(8)).tier for _ in range(4)]
    assert chosen == [*TIERS, TIERS[0]]


def test_everything_else_is_the_policy_s_own() -> None:
    assert ForcedPolicy(SmallPolicy()).describe() == {"of": "its own"}


def test_the_stopwatch_times_calls_and_uncovers_the_methods_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads = iter([0, 3, 13, 20, 24, 40, 50, 51, 58])  # before, start, end of three calls
    clock = types.SimpleNamespace(perf_counter_ns=lambda: next(reads))
    monkeypatch.setattr("benchmarks.inject.engine.time", clock)
    controller = SmallController()
    stages = {"choose": Call(controller, "before_decode"), "observe": Call(controller, "observe")}
    watch = Stopwatch(stages)
    controller.before_decode(batch_of(2))
    controller.before_decode(batch_of(2))
    controller.observe([1, 0], 2)
    watch.remove()
    controller.observe([1, 0], 2)
    assert watch.clock_ns == [3, 4, 1]
    assert watch.took_ns == {"choose": [10 - 3, 16 - 4], "observe": [7 - 1]}
    assert controller.calls == ["choose 2 2", "choose 2 2", "observe 2", "observe 2"]
    assert not {"before_decode", "observe"} & set(vars(controller))


def command(**changed: Any) -> dict[str, Any]:
    """A command that changes nothing but what it names."""
    return {"accept_length": None, "policy": "own", "seed": 0, "timing": False, **changed}


def worker_of(controller: "SmallController") -> types.SimpleNamespace:
    """A worker of ours, as far as it is timed."""
    batches = types.SimpleNamespace(of=batch_of)
    return types.SimpleNamespace(controller=controller, decode_batches=batches)


@pytest.fixture
def host_switch(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """The host's module that holds SIMULATE_ACC_LEN, without the host."""
    spec_utils = types.SimpleNamespace(SIMULATE_ACC_LEN=3.5)
    package = types.ModuleType("sglang.srt.speculative")
    package.spec_utils = spec_utils  # type: ignore[attr-defined]
    monkeypatch.setitem(__import__("sys").modules, "sglang.srt.speculative", package)
    return spec_utils


def test_a_command_sets_acceptance_and_policy_and_the_next_takes_them_back(
    host_switch: types.SimpleNamespace,
) -> None:
    controller = SmallController()
    own = controller.policy
    engine = Engine(types.SimpleNamespace(draft_worker=worker_of(controller)))
    engine.obey(command(policy="alternate"))
    assert host_switch.SIMULATE_ACC_LEN == -1.0
    assert isinstance(controller.policy, ForcedPolicy)
    engine.obey(command(accept_length=3.5))
    assert host_switch.SIMULATE_ACC_LEN == 3.5
    assert controller.policy is own


def test_one_decode_a_round_can_be_asked_for_also_of_who_knows_no_runs(
    host_switch: types.SimpleNamespace,
) -> None:
    controller = SmallController()
    engine = Engine(types.SimpleNamespace(draft_worker=worker_of(controller)))
    engine.obey(command(policy=SINGLE))
    assert controller.policy.choose(batch_of(8)).tier == TIERS[0]
    assert controller.policy.run_length(batch_of(8)) == 1


def test_timing_is_reported_by_the_command_that_ends_it(
    host_switch: types.SimpleNamespace,
) -> None:
    controller = SmallController()
    worker = worker_of(controller)
    engine = Engine(types.SimpleNamespace(draft_worker=worker))
    assert engine.obey(command(timing=True)) == {}
    controller.before_decode(worker.decode_batches.of(1))
    took = engine.obey(command())["took_ns"]
    assert {stage: len(each) for stage, each in took.items()} == {
        "describe": 1,
        "choose": 1,
        "observe": 0,
    }

    assert engine.obey(command()) == {}


def test_a_server_without_speculation_takes_commands_and_measures_nothing() -> None:
    engine = Engine(types.SimpleNamespace(draft_worker=None))
    assert engine.obey(command(accept_length=3.5, policy="alternate", timing=True)) == {}
