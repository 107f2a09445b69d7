"""A trace of a server whose table drafts: a replay meets what the table had, and plans by it."""

from pathlib import Path

import numpy as np
import pytest

from sglang_adaptive_spec.config.schema import load_config
from sglang_adaptive_spec.operate.spans import of_trace, total
from sglang_adaptive_spec.simulate.command import goodput
from sglang_adaptive_spec.simulate.recorded import RecordedWorkload
from sglang_adaptive_spec.simulate.regret import StaticPolicy, replay_oracle
from sglang_adaptive_spec.simulate.replay import Replay
from sglang_adaptive_spec.simulate.true_costs import ExampleCosts
from sglang_adaptive_spec.simulate.workload import Live, Request
from sglang_adaptive_spec.tiers import Observation, Tier, chain_tier
from sglang_adaptive_spec.trace.format import Trace, TraceHeader, TraceRound, read_trace
from sglang_adaptive_spec.trace.record import TraceRecorder

SEVEN = 7
HAZARD = 0.9  # of a draft that is there
TIERS = tuple(map(chain_tier, (0, 1, 2, 3, 5, 7)))
COSTS = ExampleCosts("flashinfer")


def trace_of(*rounds: TraceRound) -> Trace:
    return Trace(TraceHeader(kind="recorded", name="table", max_steps=SEVEN), rounds)


def one_round(
    num_steps: int, correct: list[int], found: list[int] | None, **more: list[int]
) -> TraceRound:
    more.setdefault("requests", list(range(len(correct))))
    return TraceRound(
        time_s=0.0,
        context_tokens=100,
        num_steps=num_steps,
        num_correct_drafts=correct,
        found=found,
        **more,  # type: ignore[arg-type]
    )


def by_turns(num_rounds: int, stretch: int = 3) -> Trace:
    """Every other stretch of a text is in the table."""
    rng, rounds = np.random.default_rng(1), []
    for number in range(num_rounds):
        found = SEVEN * (number // stretch % 2)
        held = 0
        while held < found and rng.random() < HAZARD:
            held += 1
        rounds.append(one_round(SEVEN, [held], [found]))
    return trace_of(*rounds)


class Kept:
    """A recorder that keeps what it is told."""

    def __init__(self) -> None:
        self.rounds: list[Observation] = []

    def record(self, observation: Observation, context_tokens: int, now_s: float) -> None:
        self.rounds.append(observation)


def test_replayed_at_its_own_tier_a_trace_has_the_same_drafts() -> None:
    trace, again = by_turns(400), Kept()
    Replay(
        StaticPolicy(chain_tier(SEVEN)), RecordedWorkload(trace, 10), COSTS, recorder=again
    ).run()
    assert len(again.rounds) >= 0.9 * len(trace.rounds)
    for now, before in zip(again.rounds, trace.rounds, strict=False):
        assert (now.num_correct_drafts, now.found) == (before.num_correct_drafts, before.found)
        assert now.kept == before.found


def test_goodput_plans_by_what_the_table_has_as_a_server_does(tmp_path: Path) -> None:
    workload, path = RecordedWorkload(by_turns(3000), 10), tmp_path / "trace.jsonl"
    recorder = TraceRecorder(path, name="table", max_steps=10)
    config = load_config(None)
    ours = Replay(goodput(COSTS, config), workload, COSTS, recorder=recorder).run()
    recorder.close()
    trace = read_trace(path)
    asked = [one for one in trace.rounds if one.found is not None]
    assert len(asked) > 0.9 * len(trace.rounds)
    with_drafts = [one.num_steps for one in asked if one.found == [SEVEN]]
    assert np.mean(with_drafts) > 4
    without = [one.num_steps for one in asked if one.found == [0]]
    assert np.mean([not steps for steps in without]) > 0.9
    statics = [Replay(StaticPolicy(tier), workload, COSTS).run().tokens_per_s for tier in TIERS]
    assert ours.tokens_per_s > 1.1 * max(statics)
    assert ours.tokens_per_s > 0.95 * replay_oracle(workload, COSTS, TIERS).tokens_per_s
    # What it recorded replays alike.
    again = Replay(goodput(COSTS, config), RecordedWorkload(trace, 10), COSTS).run()
    assert again.tokens_per_s == pytest.approx(ours.tokens_per_s, rel=0.03)
    # And `report` calls no tier a round many switches.
    assert total(of_trace(trace)).switches < 0.2 * ours.num_switches


@pytest.mark.parametrize("stretch", [8, 20, 60, 200])
def test_a_text_that_repeats_itself_now_and_then_leaves_no_stay_at_zero_steps(stretch: int) -> None:
    """Without look-ups from there: 0.56 of the oracle at 60 and 200, 0.86 at 8 and 20."""
    workload = RecordedWorkload(by_turns(4000, stretch), 10)
    rate = Replay(goodput(COSTS, load_config(None)), workload, COSTS).run().tokens_per_s
    assert rate > 0.9 * replay_oracle(workload, COSTS, TIERS).tokens_per_s


class OfSmallTarget(ExampleCosts):
    """Rounds of a 1.5B target whose CPU bounds them, as an H200's host ran them."""

    MS = {0: 2.05, 1: 3.2, 2: 3.3, 3: 3.4, 5: 3.5, 7: 3.6, 10: 3.7}  # noqa: RUF012

    def round_ms(self, tier: Tier, batch_size: int, context_tokens: int) -> float:
        return self.MS[tier.num_steps]

    def plain_extra_ms(self, batch_size: int, context_tokens: int) -> float:
        return 0.0


def hardly_paying() -> Trace:
    """Answers of which some repeat what was written, and all of which the table has two drafts."""
    rng, rounds = np.random.default_rng(1), []
    for request in range(40):
        begins = int(rng.integers(5, 60)) if request % 3 else 1000
        for number in range(int(rng.integers(60, 200))):
            repeats = number > begins and rng.random() < 0.5
            found, hazard, held = (SEVEN, 0.6, 0) if repeats else (2, 0.45, 0)
            while held < found and rng.random() < hazard:
                held += 1
            rounds.append(one_round(SEVEN, [held], [found], requests=[request]))
    return trace_of(*rounds)


def test_a_table_whose_drafts_do_not_pay_is_not_asked_before_each_round() -> None:
    """Drafting stayed in force by its doubt for 2077 such rounds; nothing was learned."""
    kept, costs = Kept(), OfSmallTarget()
    Replay(
        goodput(costs, load_config(None)),
        RecordedWorkload(hardly_paying(), 10),
        costs,
        recorder=kept,
    ).run()
    longest = length = 0
    for one in kept.rounds:
        length = length + 1 if one.found is not None and not one.tier.num_steps else 0
        longest = max(longest, length)
    assert longest < 40


def test_a_trace_without_what_a_table_had_replays_as_a_head_s() -> None:
    trace = by_turns(100)
    old = trace_of(*(one_round(SEVEN, one.num_correct_drafts, None) for one in trace.rounds))
    assert not RecordedWorkload(old, 10).has_table
    assert RecordedWorkload(trace, 10).has_table


def live(size: int) -> Live:
    rows = Live()
    for idx in range(size):
        rows.join(idx, Request(0, 100))
    return rows


def test_drafts_that_were_there_and_not_verified_may_hold_and_no_others() -> None:
    """Five were found and two verified, which held; of the other request there was no third."""
    trace = trace_of(*[one_round(3, [2, 2], [5, 2], kept=[2, 2])] * 1000)
    workload = RecordedWorkload(trace, 10)
    assert workload.found(live(2)).tolist() == [5, 2]
    assert workload.num_correct_drafts(0, live(2), 10).tolist() == [5, 2]
    assert workload.expected_tokens(0, live(2))[[0, 2, 3, 5, 10]].tolist() == [2, 6, 7, 9, 9]


def test_a_stay_at_zero_steps_has_what_the_nearest_look_up_of_its_request_found() -> None:
    looks = {2: 0, 9: 7}
    rounds = [
        one_round(0, [0, 0], [looks[number], 3] if number in looks else None)
        for number in range(14)
    ]
    workload = RecordedWorkload(trace_of(*rounds), 10)
    rows = live(1)
    found = []
    for position in range(14):
        rows.positions[0] = position
        found.append(workload.found(rows).item())
    assert found == [0] * 6 + [7] * 8


def test_a_request_that_no_look_up_knew_of_has_no_drafts() -> None:
    first, second = one_round(0, [0], [7]), one_round(0, [0, 0], None)
    workload = RecordedWorkload(trace_of(first, second), 10)
    assert workload.found(live(2)).tolist() == [7, 0]
