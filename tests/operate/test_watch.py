"""`watch`: what counters say happened in between, a line a second, and what it refuses."""

import copy
import io
import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from sglang_adaptive_spec.cli import main
from sglang_adaptive_spec.operate.watch.sample import between
from sglang_adaptive_spec.operate.watch.screen import HEAD, TIMELINE, Watched, cells, tables
from tests.operate.fake_server import info, serving

TIERS = ("0", "1", "3")


def state() -> dict[str, Any]:
    zeros = dict.fromkeys(TIERS, 0)
    timed = {"tokens": 0, "ms": 0.0, "expected_tokens": 0.0, "expected_ms": 0.0}
    return {
        "mode": "adaptive",
        "current_tier": "3",
        "rounds": dict(zeros),
        "packed_rounds": dict(zeros),
        "num_request_rounds": dict(zeros),
        "num_correct_drafts": dict(zeros),
        "zero_step_decodes": {},
        "timed_rounds": {tier: dict(timed) for tier in TIERS},
        "fallbacks": {"policy_error": 0, "feedback_mismatch": 0},
        "decisions": {"newest": {"reason": "gain beyond noise"}},
        "costs": {"drift": 1.2},
    }


def later(before: dict[str, Any]) -> dict[str, Any]:
    """30 rounds of three steps for 4 requests, 10 zero-step rounds of 8 decodes for 4."""
    after = copy.deepcopy(before)
    for tier, rounds, correct in (("3", 30, 150), ("0", 10, 0)):
        after["rounds"][tier] += rounds
        after["num_request_rounds"][tier] += 4 * rounds
        after["num_correct_drafts"][tier] += correct
    after["packed_rounds"]["3"] += 10
    runs = after["zero_step_decodes"]
    runs["8"] = runs.get("8", 0) + 10
    timed = after["timed_rounds"]["3"]
    timed["tokens"] += 270
    timed["ms"] += 300.0
    timed["expected_tokens"] += 300.0
    timed["expected_ms"] += 300.0
    plain = after["timed_rounds"]["0"]  # timed, and nobody had weighed it
    plain["ms"] += 100.0
    return after


def test_rates_are_differences_of_counters() -> None:
    sample = between(state(), later(state()), seconds=2.0)
    assert sample.tokens_per_s == (4 * 30 + 150 + 4 * 10 * 8) / 2
    assert sample.accept_length == 1 + 150 / 120
    assert sample.batch == 4.0
    assert sample.packed == 0.25
    assert sample.shares == {"0": 0.25, "3": 0.75}
    assert sample.measured_over_expected == pytest.approx(0.9 * 300 / 400)
    assert (sample.tier, sample.newest_choice, sample.drift) == ("3", "gain beyond noise", 1.2)
    assert between(later(state()), later(later(state())), 2.0) == sample


def test_an_idle_second_says_nothing_of_rates() -> None:
    sample = between(later(state()), later(state()), seconds=1.0)
    assert sample.tokens_per_s == 0
    assert (sample.accept_length, sample.batch, sample.measured_over_expected) == (None,) * 3
    assert cells("a", sample)[3:7] == ("-", "-", "-", "-")


def test_an_older_server_packs_nothing() -> None:
    older = {key: value for key, value in state().items() if key != "packed_rounds"}
    newer = {key: value for key, value in later(state()).items() if key != "packed_rounds"}
    assert between(older, newer, 1.0).packed == 0.0


def test_other_policies_have_no_drift_and_no_choice() -> None:
    ema = {**state(), "decisions": None, "costs": None}
    sample = between(ema, later(ema), 1.0)
    assert (sample.newest_choice, sample.drift) == (None, None)


def growing(*others: dict[str, Any]) -> Callable[[], Any]:
    """Answers that grow from look to look; ``others`` are replicas that stand still."""
    looks = itertools.accumulate(itertools.repeat(None), lambda one, _: later(one), initial=state())
    return lambda: info(next(looks), *others)


def test_a_pipe_gets_a_line_a_look_and_server(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(growing()) as one, serving(growing(state())) as two:
        assert main(["watch", one, two, "--interval", "0.1", "--lines", "6"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines] == [one, two, two] * 2
    assert "#0" in lines[1]
    assert "#1" in lines[2]
    assert "accept length 2.25" in lines[0]
    assert "packed 0.25  time by steps 0:0.25 3:0.75" in lines[0]
    assert "faults 0" in lines[0]


def test_json_is_a_line_a_look_and_replica(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(growing(state())) as url:
        assert main(["watch", url, "--interval", "0.1", "--lines", "2", "--json"]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["server"], second["server"]) == (f"{url} #0", f"{url} #1")
    assert first["accept_length"] == 2.25
    assert first["shares"] == {"0": 0.25, "3": 0.75}
    assert second["accept_length"] is None
    assert second["time_s"] == first["time_s"]


def test_a_terminal_gets_a_table_with_the_last_minute() -> None:
    with serving(growing()) as url:
        watched = Watched(url)
        shown = list(itertools.islice(tables([watched], 0.01), 3))
    console = Console(file=io.StringIO(), width=250)
    console.print(shown[-1])
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "███" in text
    assert watched.bars(["0", "1", "3"]) == "▁▄█"
    assert all(word in text for word in HEAD)
    assert watched.timelines[0].maxlen == TIMELINE


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (info(None), "serves without ADAPTIVE_EAGLE"),
        (
            info({"mode": "static", "base": "EAGLE", "reason": "pp_size is 2"}),
            "static EAGLE (pp_size is 2)",
        ),
        ([], "did not answer as an SGLang server"),
    ],
)
def test_other_servers_get_a_sentence(
    answer: Any, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(answer) as url:
        assert main(["watch", url, "--lines", "1"]) == 1
    error = capsys.readouterr().err
    assert said in error
    assert "allowed: " in error


@pytest.mark.parametrize("flag", [("--interval", "0"), ("--lines", "none")])
def test_a_number_that_is_none_is_refused(
    flag: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["watch", "http://127.0.0.1:9", *flag])
    assert flag[1] in capsys.readouterr().err
