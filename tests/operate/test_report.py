"""`report`: figures add up, what stands out is said with what to do, bad input in one sentence."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sglang_adaptive_spec.cli import main
from sglang_adaptive_spec.config.schema import load_config
from sglang_adaptive_spec.operate.report import hindsight
from sglang_adaptive_spec.operate.report.findings import findings
from sglang_adaptive_spec.operate.report.page import Story, summary
from sglang_adaptive_spec.operate.spans import num_drafts, of_minutes, of_trace, total
from sglang_adaptive_spec.simulate.command import goodput
from sglang_adaptive_spec.simulate.synthetic import golden_workloads
from sglang_adaptive_spec.simulate.true_costs import ExampleCosts
from sglang_adaptive_spec.trace.format import read_trace
from tests.operate.fake_server import info, serving
from tests.simulate.recording import Alternating, recorded
from tests.simulate.test_command import cost_cache

ROW: dict[str, Any] = {
    "start": 1_800_000_000.0,
    "seconds": 60.0,
    "rounds": {"3": 100, "0": 20},
    "accepted": {"3": {"0": 100, "1": 50, "3": 250}, "0": {"0": 80}},
    "runs": {"4": 20},
    "timed": {
        "3": {"3-4": {"rounds": 100, "ms": 1000.0, "tokens": 1200}},
        "0": {"3-4": {"rounds": 60, "ms": 300.0, "tokens": 240}},
    },
    "sums": {"tokens": 1200, "ms": 1000.0, "expected_tokens": 1250.0, "expected_ms": 1000.0},
    "most_waiting": 0,
}


def told(*rows: dict[str, Any]) -> str:
    spans = of_minutes(rows)
    return "\n".join(
        f"{each.what} {each.fix}"
        for each in findings(spans, None, [str(number) for number in range(len(spans))])
    )


def test_a_minute_adds_up() -> None:
    (span,) = of_minutes([ROW])
    assert span.tokens == 400 + 50 + 750 + 80 * 4
    assert (span.num_rounds, span.drafted, span.proposed) == (120, 400, 1200)
    assert span.accept_length == 1 + 800 / 400
    assert span.batch == pytest.approx(4.0)
    assert total([span, span]).tokens == 2 * span.tokens
    assert total([span, span]).loads["3", "3-4"] == (200, 2000.0, 2400)


def test_json_has_the_findings_and_every_stretch(capsys: pytest.CaptureFixture[str]) -> None:
    state = {"mode": "adaptive", "minutes": [json.dumps(ROW), json.dumps(ROW)]}
    with serving(info(state), obey=lambda _: [True]) as url:
        assert main(["report", url, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["source"], data["rounds"]) == (url, {"0": 40, "3": 200})
    assert data["accept_length"] == 3.0
    assert all({"what", "fix"} == set(each) for each in data["findings"])
    assert len(data["over_time"]["tokens"]) == 2
    assert 0 <= data["hindsight"]["regret"] < 1


def test_drafts_that_packed_rounds_did_not_verify_were_not_rejected() -> None:
    row = {**ROW, "packed": {"3": {"rounds": 60, "unverified": 300}}}
    (span,) = of_minutes([row])
    assert (span.packed, span.proposed) == (60, 900)
    story = Story("a", [span, span], True, hindsight.of_minutes(span))
    assert summary(story).endswith("where it drafted; 50% of the rounds packed.")
    assert "No regret is computed: rounds were packed" in story.findings()[-1].what
    alone = {**ROW, "timed": {"3": ROW["timed"]["3"]}}
    (span,) = of_minutes([alone])
    assert Story("a", [span], True, hindsight.of_minutes(span)).findings() == []


def test_a_trace_of_packed_rounds_has_no_regret(trace_file: Path) -> None:
    trace = read_trace(trace_file)
    first = trace.rounds[0]
    steps, correct = first.num_steps, first.num_correct_drafts
    packed = msgspec.structs.replace(first, kept=correct)
    rounds = (packed, *trace.rounds[1:])
    whole = total(of_trace(replace(trace, rounds=rounds)))
    assert hindsight.of_trace(replace(trace, rounds=rounds), None) is None
    assert (whole.packed, whole.unverified) == (1, steps * len(correct) - sum(correct))


def test_names_of_tiers_say_how_many_drafts() -> None:
    assert [num_drafts(label) for label in ("0", "3", "3-4-8")] == [0, 3, 7]


@pytest.fixture(scope="module")
def trace_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "phases.jsonl"
    recorded(
        path, goodput(ExampleCosts("fa3"), load_config(None)), golden_workloads()["phases-2s-16"]
    )
    return path


def test_a_trace_in_spans_loses_nothing(trace_file: Path) -> None:
    trace = read_trace(trace_file)
    spans = of_trace(trace)
    assert len(spans) > 100
    whole = total(spans)
    assert whole.num_rounds == len(trace.rounds)
    assert whole.tokens == sum(
        one.num_decodes * len(one.requests) + sum(one.num_correct_drafts) for one in trace.rounds
    )


def test_the_regret_of_a_trace_is_small_for_a_good_policy_and_large_for_a_bad_one(
    trace_file: Path, tmp_path: Path
) -> None:
    good = hindsight.of_trace(read_trace(trace_file), None)
    assert -0.02 < good.regret < 0.03
    assert good.oracle is not None
    workload = golden_workloads()["steady-low-64"]
    bad = hindsight.of_trace(recorded(tmp_path / "bad.jsonl", Alternating(7, 10), workload), None)
    assert bad.regret > 0.3
    assert bad.best_name == "1 steps throughout"


def test_of_minutes_it_is_an_estimate_and_only_where_two_tiers_ran() -> None:
    (span,) = of_minutes([ROW])
    found = hindsight.of_minutes(span)
    assert found is not None
    assert found.oracle is None
    assert found.served == pytest.approx(1e3 * 1440 / 1300)
    assert found.best == pytest.approx(1e3 * 1.2)
    told = findings([span], found, [""])[-1].what
    assert told.startswith("An estimate: it served 1,108 tokens/s")
    alone = {**ROW, "timed": {"3": ROW["timed"]["3"]}}
    assert hindsight.of_minutes(of_minutes([alone])[0]) is None


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"rounds": {"3": 10, "0": 190}}, "95% of the rounds drafted nothing"),
        ({"accepted": {"3": {"0": 300, "1": 100}}}, "92% of 1,200 drafts were rejected"),
        ({"switches": {"policy": 60}}, "changed in 50% of the rounds"),
        (
            {"sums": {"tokens": 9, "ms": 1500.0, "expected_tokens": 9.0, "expected_ms": 1000.0}},
            "Rounds took 1.50 times what the policy expected",
        ),
        (
            {"sums": {"tokens": 8, "ms": 1000.0, "expected_tokens": 10.0, "expected_ms": 1000.0}},
            "Rounds gave 0.80 times",
        ),
        ({"probes": {"rounds": 9, "ms": 90.0}}, "Probes took 9.0%"),
        ({"faults": 2}, "2 failures were survived"),
        ({"retractions": 3}, "3 requests were put back"),
        ({"waiting": 240, "most_waiting": 7}, "Requests waited: 2.0 a round, at most 7"),
        ({"prefills": {"number": 9, "ms": 30_000.0}}, "Prefill took 50% of the time"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_stands_out_is_said_and_only_then(changed: dict[str, Any], expected: str) -> None:
    assert expected not in told(ROW)
    assert expected in told({**ROW, **changed})


def test_a_table_whose_rounds_follow_what_it_has_changes_its_mind_no_more_than_others() -> None:
    assert "of the rounds" not in told({**ROW, "switches": {"found": 110, "policy": 10}})
    told_of_both = told({**ROW, "switches": {"found": 60, "policy": 60}})
    assert "The tier changed in 50% of the rounds" in told_of_both


def test_the_slowest_minute_is_explained() -> None:
    slow = {
        **ROW,
        "accepted": {"3": {"0": 400}, "0": {"0": 80}},
        "prefills": {"number": 9, "ms": 12_000.0},
    }
    text = told(*[ROW] * 3, slow, *[ROW] * 3)
    assert "At 3 a request got" in text
    assert "accept length 1.00 beside 3.00; share of prefill 0.20 beside 0.00" in text


def test_a_server_s_minutes_become_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = {"mode": "adaptive", "rounds": {}, "minutes": [json.dumps(ROW)]}
    out = tmp_path / "report.html"
    with serving(info(state, state), obey=lambda _: [True, True]) as url:
        assert main(["report", url, "--out", str(out), "--replica", "1"]) == 0
        assert main(["report", url, "--replica", "2"]) == 1
    printed = capsys.readouterr()
    assert printed.out.splitlines()[0] == f"{url} #1"
    assert summary(Story("", of_minutes([ROW]), True, None)) in printed.out
    assert "has no replica 2; allowed: 0 to 1" in printed.err
    assert "uPlot" in out.read_text()


@pytest.mark.parametrize(
    ("line", "expected"),
    [("", "there is no decode round"), ("{broken}\n", "line 3: it is no round")],
)
def test_a_truncated_trace_is_one_sentence(
    trace_file: Path,
    tmp_path: Path,
    line: str,
    expected: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    header, first = trace_file.read_text().splitlines(keepends=True)[:2]
    path = tmp_path / "short.jsonl"
    path.write_text(header + (first + line if line else first[:20]))
    assert main(["report", str(path)]) == 1
    assert expected in capsys.readouterr().err


def test_costs_of_another_model_are_refused(
    trace_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = cost_cache(tmp_path, (0, 1))
    assert main(["report", str(trace_file), "--costs", path]) == 1
    error = capsys.readouterr().err
    assert "has the round times of 0, 1 steps" in error
    assert "allowed: the costs of the server that recorded it; fix" in error
