"""A recorded trace replays as what it was recorded from: exactly where it can, else on average."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sglang_adaptive_spec.simulate.recorded import RecordedWorkload
from sglang_adaptive_spec.simulate.regret import StaticPolicy, replay_oracle
from sglang_adaptive_spec.simulate.replay import Replay
from sglang_adaptive_spec.simulate.synthetic import Phase, SyntheticWorkload
from sglang_adaptive_spec.simulate.true_costs import ExampleCosts
from sglang_adaptive_spec.simulate.workload import Live, Request
from sglang_adaptive_spec.tiers import Observation, chain_tier
from sglang_adaptive_spec.trace.format import Trace, TraceHeader, TraceRound
from tests.simulate.recording import Alternating, recorded

TRAFFIC = SyntheticWorkload("traffic", 12.0, ((0, 8),), (Phase(0, (0.75,)),), mean_tokens=150)
TIERS = tuple(map(chain_tier, (0, 1, 2, 3, 5, 7, 10)))


class Kept:
    """A recorder that keeps what it is told."""

    def __init__(self) -> None:
        self.rounds: list[tuple[Observation, int]] = []

    def record(self, observation: Observation, context_tokens: int, now_s: float) -> None:
        self.rounds.append((observation, context_tokens))


def test_replayed_at_its_own_tier_a_trace_gives_the_same_rounds(tmp_path: Path) -> None:
    trace = recorded(tmp_path / "trace.jsonl", StaticPolicy(chain_tier(3)), TRAFFIC)
    again = Kept()
    workload = RecordedWorkload(trace, 10)
    Replay(StaticPolicy(chain_tier(3)), workload, ExampleCosts("flashinfer"), recorder=again).run()
    assert len(again.rounds) >= 0.97 * len(trace.rounds)
    for (observation, context_tokens), one in zip(again.rounds, trace.rounds, strict=False):
        before = dict(zip(one.requests, one.num_correct_drafts, strict=True))
        now = dict(zip(observation.requests, observation.num_correct_drafts, strict=True))
        assert now == before
        assert context_tokens == one.context_tokens


@pytest.mark.parametrize("recorded_at", [(3,), (10,), (1, 5), (0, 0, 0, 2, 7)])
def test_other_tiers_gain_what_they_gain_on_the_traffic_itself(
    tmp_path: Path, recorded_at: tuple[int, ...]
) -> None:
    costs = ExampleCosts("flashinfer")
    trace = recorded(tmp_path / "trace.jsonl", Alternating(*recorded_at), TRAFFIC)
    workload = RecordedWorkload(trace, 10)
    for steps in (1, 3, 7):
        policy = StaticPolicy(chain_tier(steps))
        of_trace = Replay(policy, workload, costs).run()
        of_traffic = Replay(policy, TRAFFIC, costs).run()
        per_round = of_trace.num_tokens / of_trace.num_rounds
        assert per_round == pytest.approx(of_traffic.num_tokens / of_traffic.num_rounds, rel=0.04)


def test_a_trace_keeps_its_phases(tmp_path: Path) -> None:
    phases = (Phase(0, (0.3,)), Phase(6.0, (0.9,)))
    trace = recorded(
        tmp_path / "trace.jsonl", StaticPolicy(chain_tier(5)), replace(TRAFFIC, phases=phases)
    )
    workload = RecordedWorkload(trace, 10)
    oracle = replay_oracle(workload, ExampleCosts("flashinfer"), TIERS)
    assert oracle.num_switches >= 1
    assert oracle.ms_by_steps[2] > 3000
    assert max(oracle.ms_by_steps) >= 7
    expected = workload.expected_tokens(0, _live(1))
    assert expected[1] == pytest.approx(1.3, abs=0.03)


def _live(size: int) -> Live:
    live = Live()
    for idx in range(size):
        live.join(idx, Request(0, 100))
    return live


def censored_trace(counts: list[int], num_steps: int, **last: Any) -> Trace:
    rounds = tuple(
        TraceRound(
            time_s=float(idx),
            context_tokens=100,
            num_steps=num_steps,
            requests=[7],
            num_correct_drafts=[count],
            **last,
        )
        for idx, count in enumerate(counts)
    )
    return Trace(TraceHeader(kind="recorded", name="one", max_steps=num_steps or 1), rounds)


def test_a_censored_round_goes_on_with_the_last_known_hazard() -> None:
    # 4 of 5 rounds accept all of three drafts, one fails at the third: h = 1, 1, 0.8, then 0.8.
    trace = censored_trace([3, 3, 2, 3, 3] * 400, 3)
    workload = RecordedWorkload(trace, 6)
    expected = workload.expected_tokens(0, _live(1))
    gains = np.diff(expected)
    assert gains.tolist() == pytest.approx([1, 1, 0.8, 0.64, 0.512, 0.4096])
    result = Replay(StaticPolicy(chain_tier(6)), workload, ExampleCosts("flashinfer")).run()
    assert result.num_tokens / result.num_rounds == pytest.approx(expected[6], rel=0.05)


def test_zero_step_rounds_tell_of_the_first_draft_only() -> None:
    trace = censored_trace([0] * 1000, 0, first_draft_correct=[True])
    hazards = np.diff(RecordedWorkload(trace, 3).expected_tokens(0, _live(1)))
    assert hazards[0] == pytest.approx(1.0)
    trace = censored_trace([0] * 1000, 0, first_draft_correct=[False])
    assert RecordedWorkload(trace, 3).expected_tokens(0, _live(1))[3] == pytest.approx(1.0)
    trace = censored_trace([0] * 1000, 0, first_draft_correct=[None])
    assert RecordedWorkload(trace, 3).expected_tokens(0, _live(1))[1] == pytest.approx(1.5)


def test_rounds_tell_of_the_drafts_that_they_verified_and_of_one_more() -> None:
    rounds = ({"kept": [1], "first_draft_correct": [True]}, {"kept": [2]})
    held, open_end = (censored_trace([1] * 1000, 3, **more) for more in rounds)
    gains = np.diff(RecordedWorkload(held, 3).expected_tokens(0, _live(1)))
    assert gains[:2] == pytest.approx([1.0, 1.0])  # the second draft held, too
    gains = np.diff(RecordedWorkload(open_end, 3).expected_tokens(0, _live(1)))
    assert gains[:2] == pytest.approx([1.0, 0.0])  # it was verified, and did not hold
    failed = censored_trace([1] * 1000, 3, kept=[1], first_draft_correct=[False])
    gains = np.diff(RecordedWorkload(failed, 3).expected_tokens(0, _live(1)))
    assert gains[:2] == pytest.approx([1.0, 0.0])


def test_the_load_of_a_trace_is_kept(tmp_path: Path) -> None:
    load = ((0.0, 1), (4.0, 12), (8.0, 3))
    trace = recorded(
        tmp_path / "trace.jsonl", StaticPolicy(chain_tier(3)), replace(TRAFFIC, load=load)
    )
    again = Kept()
    Replay(
        StaticPolicy(chain_tier(7)),
        RecordedWorkload(trace, 10),
        ExampleCosts("flashinfer"),
        recorder=again,
    ).run()
    sizes = [observation.batch_size for observation, _ in again.rounds]
    assert sizes[0] == 1
    assert max(sizes) == 12
    assert sizes[-1] <= 4
