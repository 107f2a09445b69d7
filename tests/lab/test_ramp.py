"""Ramp: the same arrivals in every arm, rising and falling; figures that follow from requests."""

import asyncio
import copy
import json
import threading
import types
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from benchmarks.inject.acceptance import probability_of
from benchmarks.inject.measure_plugin import RequestLog
from benchmarks.lab.arrivals import CHANCES, arrivals, post
from benchmarks.studies.ramp.__main__ import texts_of
from benchmarks.studies.ramp.summary import ARMS, as_pass, check_ramp, figures, merged, quantile
from tests.lab.records import PROVENANCE

MS = 1_000_000


def test_arrivals_are_the_same_every_time_and_differ_by_seed() -> None:
    assert arrivals(20, 2, 40, 1) == arrivals(20, 2, 40, 1)
    assert arrivals(20, 2, 40, 1) != arrivals(20, 2, 40, 2)


def test_the_rate_rises_to_its_peak_in_the_middle_and_falls_again() -> None:
    made = arrivals(90, 2, 100, 3)
    thirds = [sum(low <= each.at_s < low + 30 for each in made) for low in (0, 30, 60)]
    # Mean rates of 34.7, 83.7 and 34.7 a second; five standard deviations.
    for found, expected in zip(thirds, (1040, 2510, 1040), strict=True):
        assert abs(found - expected) < 5 * expected**0.5
    times = [each.at_s for each in made]
    assert times == sorted(times)
    assert times[-1] < 90


def test_requests_carry_their_acceptance_and_are_told_apart() -> None:
    made = arrivals(20, 20, 20, 1)
    assert {probability_of(each.request_id) for each in made} == set(CHANCES)
    assert len({each.request_id for each in made}) == len(made)


def request(
    rid: str, num_tokens: int = 5, finished: bool = False, finished_len: int | None = None
) -> Any:
    """A request as the host keeps it."""
    return types.SimpleNamespace(
        rid=rid,
        output_ids=[0] * num_tokens,
        finished=lambda: finished,
        finished_len=finished_len,
    )


def test_a_request_s_first_token_is_its_last_chunk_s_and_it_is_logged_once() -> None:
    log = RequestLog()
    log.note([request("a")], False, 10)
    log.note([request("a"), request("b")], False, 20)
    log.note([request("a"), request("b")], True, 30)
    done = request("b", 7, finished=True)
    log.note([request("a"), done], True, 40)
    log.note([request("a"), done], True, 50)  # launched before its end was known
    assert log.finished == [("b", 20, 40, 7)]


def test_tokens_behind_the_end_of_an_answer_do_not_count() -> None:
    log = RequestLog()
    log.note([request("a")], False, 10)
    log.note([request("a", 9, finished=True, finished_len=6)], True, 40)
    assert log.finished == [("a", 10, 40, 6)]


def test_a_request_that_ends_with_its_first_token_is_logged() -> None:
    log = RequestLog()
    log.note([request("a", 1, finished=True)], False, 10)
    assert log.finished == [("a", 10, 10, 1)]


def test_a_pass_keeps_times_from_the_start_and_tokens_per_second_of_it() -> None:
    sent = arrivals(1, 3, 3, 1)[:1]
    finished = [(sent[0].request_id, 1500 * MS, 2500 * MS, sent[0].new_tokens)]
    rounds = [(1200 * MS, 4, 6, 3, False, True), (1900 * MS, 5, 4, 3, False, True),
              (2100 * MS, 2, 8, 3, True, True)]  # fmt: skip
    made = as_pass(sent, 1000 * MS, finished, rounds)
    ((arrived, first, last, number),) = made["requests"]
    assert (first, last, number) == (500.0, 1500.0, sent[0].new_tokens)
    assert arrived == pytest.approx(sent[0].at_s * 1e3, abs=1e-3)
    assert made["served"] == [10, 8]
    assert made["largest_batch"] == 5


def test_a_request_that_was_cut_short_is_an_error() -> None:
    sent = arrivals(1, 3, 3, 1)[:1]
    with pytest.raises(RuntimeError, match=r"p0\.\d+-ramp1-r0: 0 of"):
        as_pass(sent, 0, [], [])


def test_real_text_may_end_before_its_limit() -> None:
    sent = arrivals(1, 3, 3, 1)[:1]
    finished = [(sent[0].request_id, 10 * MS, 50 * MS, 5)]
    made = as_pass(sent, 0, finished, [], is_real=True)
    assert made["requests"][0][1:] == [10.0, 50.0, 5]
    with pytest.raises(RuntimeError, match=r"0 of"):
        as_pass(sent, 0, [], [], is_real=True)


def test_every_arm_has_the_same_prompts_of_all_domains(tmp_path: Path) -> None:
    path = tmp_path / "prompts.json"
    path.write_text(json.dumps({"chat": [[1]] * 3, "code": [[2]] * 3}))
    assert texts_of(path, 50) == texts_of(path, 50)
    assert {prompt[0] for prompt in texts_of(path, 50)} == {1, 2}


@pytest.fixture
def host() -> Iterator[tuple[str, list[Any]]]:
    """A server that refuses one request and remembers the others."""
    heard: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            heard.append(body)
            self.send_response(503 if body["rid"] == "refused" else 200)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_args: object) -> None:
            pass

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=listener.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{listener.server_port}", heard
    listener.shutdown()
    listener.server_close()


def test_a_request_is_sent_whole_and_a_refusal_is_an_error(host: tuple[str, list[Any]]) -> None:
    url, heard = host
    asyncio.run(post(url, {"rid": "served", "input_ids": [1, 2]}))
    assert heard == [{"rid": "served", "input_ids": [1, 2]}]
    with pytest.raises(RuntimeError, match=r"refused: the server answered b'HTTP/1\.0 503"):
        asyncio.run(post(url, {"rid": "refused"}))


def test_quantiles_are_values_that_were_seen() -> None:
    values = [float(value) for value in range(1, 101)]
    assert quantile(values, 0.50) == 50.0
    assert quantile(values, 0.99) == 99.0
    assert quantile([7.0], 0.99) == 7.0


def run_record() -> dict[str, Any]:
    """A run in which an arm's tokens take 2, 4 or 6 ms each."""
    passes = [
        {
            "arm": arm,
            "repeat": repeat,
            "requests": [
                [100.0 * row, 100.0 * row + 50, 100.0 * row + 50 + 100 * 2.0 * (1 + pace), 101]
                for row in range(20)
            ],
            "served": [100, 200],
            "largest_batch": 4,
        }
        for repeat in (1, 2, 3)
        for pace, arm in enumerate(ARMS)
    ]
    return {"purpose": "ramp", "provenance": dict(PROVENANCE), "passes": passes}


@pytest.fixture
def result() -> dict[str, Any]:
    """A whole result, as read from its file."""
    return dict(json.loads(json.dumps(merged([run_record()]))))


def test_a_complete_result_passes_with_the_figures_of_its_requests(result: Any) -> None:
    assert check_ramp(result) == []
    none = result["arms"]["none"]
    assert none["ms_per_token_p50"] == none["ms_per_token_p99"] == 2.0
    assert none["ms_to_first_token_p50"] == 50.0
    assert none["tokens_per_s"] == pytest.approx(20 * 101 / 2.15)
    assert result["arms"]["goodput"]["ms_per_token_p50"] == 6.0
    over_none, over_builtin = figures(result)
    assert over_none.ratio.value == pytest.approx(2.15 / 2.55)
    assert (over_none.verdict, over_builtin.verdict) == ("MISSED", "MISSED")


def test_a_pass_that_one_arm_lacks_is_left_out_of_the_claims(result: Any) -> None:
    whole, _ = figures(result)
    for arm in ("none", "goodput"):  # the last pass at half the pace, in both alike
        last = result["raw"][arm][-1]
        last["requests"] = [[2 * at for at in row[:3]] + row[3:] for row in last["requests"]]
    result["raw"]["none"].pop(0)
    assert figures(result)[0].ratio.value == pytest.approx(whole.ratio.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda result: result["arms"]["goodput"].update(ms_per_token_p99=1.0), "arms.goodput"),
        (lambda result: result["raw"]["none"][0]["requests"].pop(), "other requests"),
        (lambda result: result["raw"].pop("builtin"), "raw lacks"),
        (lambda result: result["raw"]["none"].pop(), "none: 2 of 3 passes"),
        (lambda result: result["provenance"].update(gpu="cpu"), "measured on cpu"),
    ],
)
def test_a_spoilt_result_is_found(result: Any, change: Any, message: str) -> None:
    spoilt = copy.deepcopy(result)
    change(spoilt)
    assert any(message in problem for problem in check_ramp(spoilt))


def test_the_plot_shows_every_arm(result: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from benchmarks.studies.ramp.plot import plot_ramp

    plot_ramp(result, tmp_path / "ramp.svg")
    drawn = (tmp_path / "ramp.svg").read_text()
    assert all(f">{arm}<" in drawn for arm in ARMS)
