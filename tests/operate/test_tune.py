"""`tune`: what it tries, how sure it is of a gain, what it writes, and what it refuses."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sglang_adaptive_spec.cli import main
from sglang_adaptive_spec.cli import tune as cli_tune
from sglang_adaptive_spec.config.schema import load_config, parse_config
from sglang_adaptive_spec.operate.tune import blocks as blocks_module
from sglang_adaptive_spec.operate.tune import changes as changes_module
from sglang_adaptive_spec.operate.tune import search as search_module
from sglang_adaptive_spec.operate.tune.blocks import Candidate, Gain, Traffic, gain
from sglang_adaptive_spec.operate.tune.changes import changes, leaner
from sglang_adaptive_spec.operate.tune.costs import ExtendedCosts
from sglang_adaptive_spec.operate.tune.minutes import LEAST_DRAFTED, MinutesError, trace_of_minutes
from sglang_adaptive_spec.operate.tune.search import Tried, Tuned, tune
from sglang_adaptive_spec.operate.tune.source import Source, of_files, of_server
from sglang_adaptive_spec.operate.tune.text import NOTHING, document, render
from sglang_adaptive_spec.policy.costs.table import CostTable
from sglang_adaptive_spec.simulate.command import goodput
from sglang_adaptive_spec.simulate.replay import Replay, RoundCosts
from sglang_adaptive_spec.simulate.synthetic import (
    Phase,
    SyntheticWorkload,
    golden_workloads,
)
from sglang_adaptive_spec.simulate.true_costs import ExampleCosts, seed_table
from sglang_adaptive_spec.tiers import CATCH_UP_ROUNDS, chain_tier
from sglang_adaptive_spec.trace.record import TraceRecorder
from tests.operate.fake_server import info, serving

DEFAULT = load_config(None)
START = Candidate(tuple((bound, slot.candidate_steps) for bound, slot in DEFAULT.slots.items()))
FRESH_SEEDS = (11, 12)  # that no search has seen
MOST_LOSS, LEAST_GAIN = 0.005, 0.02
FA3 = ExampleCosts("fa3")
SHORT = SyntheticWorkload("short", 3.2, ((0, 4),), (Phase(0, (0.6,)),), mean_tokens=80)


class LargeCatchUps(ExampleCosts):
    """Catch-ups grow with the batch, which the example's one measurement (32 requests) cannot show.

    One of 200 requests reads 3,200 tokens through a layer and the head of 8B shapes: 5 TFLOP by
    1.5 GFLOP a token, 8 ms at 600 TFLOP/s. Most write KV alone, a third of that. 5 ms lie between.
    """

    def plain_extra_ms(self, batch_size: int, context_tokens: int) -> float:
        mean_ms = max(super().plain_extra_ms(1, 0) * CATCH_UP_ROUNDS, 5.0 * batch_size / 200)
        return mean_ms / CATCH_UP_ROUNDS


NEVER_DRAFTS = SyntheticWorkload(
    "never-drafts-200", 9, ((0, 200),), (Phase(0, (0.3,)),), mean_tokens=200
)
LONG_JSON = SyntheticWorkload(
    "long-json-1", 10, ((0, 1),), (Phase(0, (0.97,)),), mean_tokens=3000, max_steps=32
)


def recorded(
    path: Path, workload: SyntheticWorkload, costs: RoundCosts, duration_s: float | None = None
) -> Path:
    """Writes what a server of the default records of a workload."""
    workload = workload if duration_s is None else replace(workload, duration_s=duration_s)
    recorder = TraceRecorder(path, name=workload.name, max_steps=10)
    Replay(goodput(costs, DEFAULT, 0.02), workload, costs, recorder=recorder).run()
    recorder.close()
    return path


def tuned_on(path: Path, costs: RoundCosts) -> Tuned:
    source = replace(of_files(path, "fa3"), costs=costs)
    return tune(Traffic(source.trace, costs, 32), source.start, is_lean=False, say=lambda _: None)


def true_gain(tuned: Tuned, workload: SyntheticWorkload, costs: RoundCosts) -> float:
    """Returns what the file gains where it is known what every draft would have given."""

    def served(candidate: Candidate) -> float:
        return sum(
            Replay(candidate.policy(costs, seed), workload, costs, seed=seed).run().tokens_per_s
            for seed in FRESH_SEEDS
        )

    return served(tuned.best) / served(tuned.default) - 1


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, one_setting: None) -> None:
    """Fewer replays, for what does not depend on how many they are."""
    monkeypatch.setattr(blocks_module, "SEEDS", (1, 2))


@pytest.fixture
def one_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """No file holds them."""
    monkeypatch.setattr(changes_module, "GRID", changes_module.GRID[:1])


@pytest.mark.full
@pytest.mark.usefixtures("one_setting")
@pytest.mark.parametrize("name", golden_workloads())
def test_a_file_tuned_on_a_golden_trace_serves_it_no_worse(tmp_path: Path, name: str) -> None:
    workload = golden_workloads()[name]
    tuned = tuned_on(recorded(tmp_path / "trace.jsonl", workload, FA3), FA3)
    if tuned.is_better:  # else there is no file
        assert true_gain(tuned, workload, FA3) >= max(0.0, tuned.gain.low) - MOST_LOSS


@pytest.mark.full
@pytest.mark.usefixtures("one_setting")
@pytest.mark.parametrize(
    ("workload", "costs", "changed"),
    [
        (NEVER_DRAFTS, LargeCatchUps("fa3"), (129, (0,))),
        (LONG_JSON, FA3, (1, (0, 1, 2, 3, 5, 7, 10, 15, 22))),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_a_file_tuned_where_the_default_does_not_fit_gains(
    tmp_path: Path, workload: SyntheticWorkload, costs: RoundCosts, changed: tuple[int, Any]
) -> None:
    tuned = tuned_on(recorded(tmp_path / "trace.jsonl", workload, costs), costs)
    assert tuned.is_better
    assert changed in tuned.best.ranges
    true = true_gain(tuned, workload, costs)
    assert true >= LEAST_GAIN
    assert tuned.gain.low <= true  # more where the first rounds, which no odd block has, draft


@pytest.mark.usefixtures("quick")
def test_zero_steps_alone_pay_where_a_large_batch_never_drafts(tmp_path: Path) -> None:
    """The same without the search, in seconds."""
    costs = LargeCatchUps("fa3")
    path = recorded(tmp_path / "trace.jsonl", NEVER_DRAFTS, costs)
    source = replace(of_files(path, "fa3"), costs=costs)
    traffic = Traffic(source.trace, costs, 32)
    (change,) = changes(source.start, traffic.serve(source.start).rounds)
    assert change.what == "zero steps alone from batch 129 on"
    assert change.candidate.ranges == (*START.ranges[:2], (129, (0,)))
    found = traffic.gain(change.candidate, source.start, slice(None))
    assert found.low > 0
    assert found.mean >= LEAST_GAIN


# -- how sure a gain is --


def test_a_gain_is_that_of_the_sums_and_nothing_differs_from_itself() -> None:
    before = np.array([[2.0, 4.0], [2.0, 4.0]])
    assert gain(before, before) == Gain(0.0, 0.0, 0.0)
    assert gain(before, before / 1.25).mean == pytest.approx(0.25)


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    luck, truth, held = np.random.default_rng(1), 0.02, 0
    for _ in range(400):
        work = luck.uniform(0.5, 2.0, 12)  # blocks differ, for both alike
        text = 1 + 0.02 * luck.standard_normal(12)  # and for one of them
        noise = 1 + 0.01 * luck.standard_normal((5, 1))  # as seeds do
        before = np.tile(work * (1 + truth), (5, 1))
        found = gain(before, work * text * noise)
        held += found.low <= truth <= found.high
    assert held / 400 >= 0.95


@pytest.mark.usefixtures("quick")
def test_blocks_of_both_candidates_hold_the_same_tokens(tmp_path: Path) -> None:
    source = of_files(recorded(tmp_path / "trace.jsonl", SHORT, FA3), "fa3")
    traffic = Traffic(source.trace, source.costs, 10)
    fixed = Candidate(((1, (3,)),))
    seconds = traffic.serve(fixed).seconds
    assert seconds.shape == (2, 24)
    assert (seconds > 0).all()
    # One tier at one batch size: every block takes about as long.
    assert seconds.max() / seconds.min() < 1.6
    assert set(traffic.serve(fixed).rounds) >= {(3, 4)}


# -- what is tried --


def offered(rounds: dict[tuple[int, int], int], now: Candidate = START) -> dict[str, Candidate]:
    return dict(changes(now, rounds))


def test_a_deeper_tier_is_tried_where_the_deepest_runs_and_one_beside_the_home() -> None:
    tried = offered({(10, 1): 900, (0, 1): 100})
    assert set(tried) == {"15 steps from batch 1 on", "8 steps from batch 1 on"}
    assert tried["15 steps from batch 1 on"].ranges[0] == (1, (0, 1, 2, 3, 5, 7, 10, 15))
    assert set(offered({(5, 48): 1000})) == {"4 steps from batch 33 on", "6 steps from batch 33 on"}


def test_zero_steps_alone_are_tried_above_every_batch_that_drafts() -> None:
    rounds = {(0, 100): 990, (1, 100): 10, (3, 20): 500, (0, 4): 500}
    tried = offered(rounds)["zero steps alone from batch 65 on"]
    assert tried.ranges == (*START.ranges[:2], (65, (0,)))
    assert "zero steps alone from batch 2 on" in offered({(0, 2): 1000})
    assert offered({(0, 1): 1000}) == {}
    assert offered({(0, 300): 1000}) == {}  # they are alone there already


def test_what_hardly_ran_is_left_to_itself() -> None:
    assert offered({(10, 1): 50}) == {}
    assert leaner(START, {(10, 1): 50}) is None


def test_leaner_leaves_out_what_hardly_ran_in_ranges_that_ran() -> None:
    change = leaner(START, {(3, 4): 600, (5, 4): 400, (1, 4): 1})
    assert change is not None
    assert change.what == "without 1, 2, 7, 10 steps from batch 1 on"
    assert change.candidate.ranges == ((1, (0, 3, 5)), *START.ranges[1:])


# -- round times of tiers that nobody measured --


def test_unmeasured_depths_lie_on_the_line_and_measured_ones_stay() -> None:
    table = seed_table(CostTable.empty(tuple(map(chain_tier, (0, 1, 3, 5)))), FA3)
    costs = ExtendedCosts(table)
    ms = {steps: costs.round_ms(chain_tier(steps), 8, 2048) for steps in (0, 3, 4, 5, 7)}
    assert ms[5] == table.round_ms(chain_tier(5), 8, 2048)
    assert ms[4] == pytest.approx((ms[3] + ms[5]) / 2)
    assert ms[7] - ms[5] == pytest.approx(ms[5] - ms[3])
    assert costs.plain_extra_ms(8, 2048) == table.plain_extra_ms(8, 2048)


# -- minutes --


def minute(start: float, rounds: dict[str, int], accepted: dict[str, dict[str, int]]) -> Any:
    return {"start": start, "seconds": 60, "rounds": rounds, "accepted": accepted}


def test_minutes_become_rounds_that_accept_as_often() -> None:
    rows = [
        minute(0, {"0": 3000, "3": 3000}, {"0": {"0": 12000}, "3": {"0": 6000, "3": 6000}}),
        minute(60, {"3": 3000}, {"3": {"1": 24000}}),
    ]
    trace = trace_of_minutes(rows, "server", context=500, most_rounds=900)
    assert len(trace.rounds) == 900
    first, second = trace.rounds[:600], trace.rounds[600:]
    assert {len(one.requests) for one in first} == {4}
    assert {len(one.requests) for one in second} == {8}
    assert {one.context_tokens for one in second} == {4000}
    drafted = [one for one in first if one.num_steps == 3]
    assert len(drafted) / 600 == pytest.approx(0.5, abs=0.06)
    counts = [count for one in drafted for count in one.num_correct_drafts]
    assert set(counts) == {0, 3}
    assert np.mean(counts) == pytest.approx(1.5, abs=0.15)
    assert {count for one in second for count in one.num_correct_drafts} == {1}
    assert trace == trace_of_minutes(rows, "server", context=500, most_rounds=900)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (minute(0, {"3-4-8": 9}, {"3-4-8": {"0": 900}}), "ran the tree 3-4-8"),
        (minute(0, {"0": 9, "3": 1}, {"0": {"0": 900}, "3": {"0": 9}}), "drafted for 9 requests"),
    ],
)
def test_minutes_that_say_too_little_are_refused(row: Any, says: str) -> None:
    assert LEAST_DRAFTED > 9
    with pytest.raises(MinutesError, match=says):
        trace_of_minutes([row], "server", 500)


# -- the file and what is printed --


def answer(best: Candidate) -> Tuned:
    found = Gain(0.1, 0.05, 0.15)
    tried = Tried("15 steps from batch 1 on", found, is_kept=True)
    return Tuned(
        START, best, found, found, [tried], [Tried("probing.share=0.003", found)], [], None
    )


def source_of(tmp_path: Path) -> Source:
    return of_files(recorded(tmp_path / "trace.jsonl", SHORT, FA3), "fa3")


def test_the_file_is_the_config_and_says_where_it_comes_from(tmp_path: Path) -> None:
    best = replace(START, ranges=((1, (0, 3, 15)), (9, (0, 3)), (129, (0,))))
    text = document(answer(best), source_of(tmp_path), datetime(2026, 11, 29, tzinfo=UTC))
    config = parse_config("tuned.json", text.encode())
    assert config.policy == "goodput"
    assert {bound: slot.candidate_steps for bound, slot in config.slots.items()} == dict(
        best.ranges
    )
    comment = json.loads(text)["comment"]
    assert comment["by"].startswith("sglang-adaptive-spec ")
    assert comment["date"] == "2026-11-29T00:00:00+00:00"
    assert comment["gain"] == {"mean": 0.1, "low": 0.05, "high": 0.15}
    assert comment["gain_over"] == "preset goodput"
    assert comment["not_measured"] == [15]
    assert str(tmp_path) in comment["rounds"]


def test_the_text_shows_the_difference_and_what_is_guessed(tmp_path: Path) -> None:
    text = render(
        answer(replace(START, ranges=((1, (0, 15)), *START.ranges[1:]))), source_of(tmp_path)
    )
    assert "Expected gain: +10.0% (+5.0% to +15.0%) tokens/s over the default" in text
    assert "  from batch 1 on: 0, 15   +15 -1 -2 -3 -5 -7 -10" in text
    assert "15 steps were never measured" in text


def run(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> tuple[str, str]:
    assert main(["tune", *arguments]) == status
    printed = capsys.readouterr()
    return printed.out, printed.err


@pytest.mark.usefixtures("quick")
def test_what_hardly_ran_is_left_out_where_asked_and_where_it_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = source_of(tmp_path)
    traffic, said = Traffic(source.trace, source.costs, 10), list[str]()

    def found(is_lean: bool) -> Tuned:
        return tune(traffic, START, is_lean=is_lean, say=said.append)

    assert found(is_lean=False).best == START
    assert said[0] == "replays the default"
    assert NOTHING in render(found(is_lean=False), source)
    monkeypatch.setattr(search_module, "MOST_LOSS", -1.0)  # whatever goes costs too much
    assert found(is_lean=True).best == START
    monkeypatch.setattr(search_module, "MOST_LOSS", 1.0)
    lean = found(is_lean=True)
    assert lean.lean is not None
    assert lean.lean.is_kept
    assert {*lean.best.ranges[0][1]} < {*START.ranges[0][1]}
    assert lean.best.ranges[1:] == START.ranges[1:]
    assert not lean.is_better


@pytest.mark.parametrize(
    ("best", "flags", "is_written"),
    [
        (replace(START, ranges=((1, (0, 15)),)), (), True),
        (replace(START, ranges=((1, (0, 15)),)), ("--dry-run",), False),
        (START, (), False),
        (START, ("--lean",), False),
    ],
)
def test_there_is_a_file_where_something_is_gained(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    best: Candidate,
    flags: tuple[str, ...],
    is_written: bool,
) -> None:
    found = answer(best) if best != START else replace(answer(best), gain=Gain(0, 0, 0))
    monkeypatch.setattr(cli_tune, "tune", lambda *_, **__: found)
    trace, out = recorded(tmp_path / "trace.jsonl", SHORT, FA3), tmp_path / "tuned.json"
    told, _ = run(capsys, "--trace", str(trace), "--out", str(out), *flags)
    assert out.exists() == is_written
    assert (NOTHING in told) == (best == START)
    if is_written:
        assert load_config(str(out)).slots[1].candidate_steps == (0, 15)


def state() -> dict[str, Any]:
    table = seed_table(CostTable.empty(DEFAULT.tiers), FA3)
    return {
        "version": "0.1.0",
        "mode": "adaptive",
        "policy": "goodput",
        "base": "EAGLE3",
        "cost_table": table.to_dict(),
        "costs": {"batch_size": 4, "context_tokens": 2000},
        "tiers": [
            {"num_steps": tier.num_steps, "build_gb": 0.1, "build_s": 2.0} for tier in DEFAULT.tiers
        ],
        "minutes": [
            json.dumps(
                minute(60 * n, {"3": 3000}, {"3": {"0": 3000, "1": 2000, "2": 2000, "3": 5000}})
            )
            for n in range(3)
        ],
    }


@pytest.mark.usefixtures("quick")
def test_a_server_is_tuned_by_its_minutes_and_its_round_times(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "tuned.json"
    with serving(info(state()), obey=lambda _: [True]) as url:
        told, _ = run(capsys, url, "--rounds", "450", "--dry-run", "--lean", "--out", str(out))
    assert f"rounds: 450 of 3 minutes of {url}" in told
    assert f"costs: measured by {url}" in told
    assert "0.10          2.0" in told  # what a tier took at start-up
    assert not out.exists()


def test_a_trace_goes_with_the_round_times_of_the_server(tmp_path: Path) -> None:
    trace = recorded(tmp_path / "trace.jsonl", SHORT, FA3)
    with serving(info(state())) as url:
        source = of_server(url, trace, (None, None), most_rounds=401)
    assert (len(source.trace.rounds), source.rounds_of) == (401, str(trace))
    assert source.costs_of == f"measured by {url}"
    assert source.start == START


def test_what_the_other_half_does_not_confirm_is_said(tmp_path: Path) -> None:
    doubtful = Gain(0.02, -0.01, 0.05)
    found = replace(answer(START), gain=Gain(0, 0, 0), searched=doubtful)
    text = render(found, source_of(tmp_path))
    assert f"{NOTHING}: what was kept served +2.0% (-1.0% to +5.0%) more on blocks" in text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "neither a server nor a trace; allowed: URL, --trace FILE, or both"),
        (["http://127.0.0.1:1", "--costs", "fa3"], "--costs goes without URL"),
        (["--trace", "gone.jsonl"], "gone.jsonl, line 1: cannot be read"),
    ],
)
def test_what_cannot_be_tuned_is_one_sentence(
    capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    told, said = run(capsys, *arguments, status=1)
    assert told == ""
    assert says in said


def test_a_short_trace_and_few_depths_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    trace = recorded(tmp_path / "trace.jsonl", SHORT, FA3, duration_s=1)
    _, said = run(capsys, "--trace", str(trace), status=1)
    assert "too few to choose on one half and to judge on the other; allowed: 400" in said
    table = seed_table(CostTable.empty((chain_tier(0), chain_tier(3))), FA3)
    few = {**state(), "cost_table": table.to_dict()}
    with serving(info(few), obey=lambda _: [True]) as url:
        _, said = run(capsys, url, status=1)
    assert "has the round times of 0, 3 steps; allowed: those of zero steps and of two" in said
    with serving(info({**state(), "cost_table": None})) as url:
        _, said = run(capsys, url, status=1)
    assert "measures no round times; allowed: policy goodput" in said
    with serving(info({**state(), "base": "NGRAM"})) as url:
        _, said = run(capsys, url, status=1)
    assert "drafts from a table, and minutes do not say what it had" in said
