"""Real text: who is asked what, how a pass is timed, what follows from planted passes."""

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.lab.load import Round
from benchmarks.stats.differences import Gap
from benchmarks.studies.real_text import __main__ as real_text
from benchmarks.studies.real_text import summary
from benchmarks.studies.real_text.__main__ import (
    Answer,
    Cell,
    Request,
    answers_of,
    as_pass,
    every_pass,
    parser,
    prompts_of,
    requests_of,
)
from benchmarks.studies.real_text.pace import paces, trail
from benchmarks.studies.real_text.summary import DOMAINS, build_result, figure_table, figures
from tests.lab.records import PROVENANCE

PROMPTS = {domain: [[number, idx] for idx in range(5)] for number, domain in enumerate(DOMAINS)}
SECOND = 1_000_000_000


def domains_of(sent: list[Request], is_measured: bool = True) -> list[int]:
    return [each.prompt[0] for each in sent if each.is_measured == is_measured]


def test_requests_that_are_not_measured_come_before_and_after_those_that_are() -> None:
    for concurrency, number in ((1, 8), (8, 23), (64, 128), (256, 512)):
        sent = requests_of(Cell("json", concurrency, 0.0), PROMPTS, 1)
        is_measured = [each.is_measured for each in sent]
        num_before = max(concurrency, 8)
        after = [False] * concurrency
        assert is_measured == [*[False] * num_before, *[True] * number, *after]
        assert set(domains_of(sent)) == {DOMAINS.index("json")}
        ends = [each.most_tokens for each in sent]
        assert None not in ends[:num_before]
        assert set(ends[num_before:]) == {None}
    assert len({each.most_tokens for each in sent}) > 100
    mixed = requests_of(Cell("mixed", 32, 0.0), PROMPTS, 1)
    assert set(domains_of(mixed)) == set(range(len(DOMAINS)))


def test_phases_follow_each_other_and_hold_a_request_for_every_client() -> None:
    sent = requests_of(Cell("phases", 8, 0.0), PROMPTS, 1)
    assert domains_of(sent) == [n for n in range(len(DOMAINS)) for _ in range(8)]
    assert domains_of(sent, is_measured=False) == [*[0] * 8, *[len(DOMAINS) - 1] * 8]


def test_a_repeat_has_prompts_of_its_own_and_arms_have_the_same() -> None:
    cell = Cell("mixed", 8, 0.0)
    assert requests_of(cell, PROMPTS, 1) == requests_of(cell, PROMPTS, 1)
    assert requests_of(cell, PROMPTS, 1) != requests_of(cell, PROMPTS, 2)


def test_each_repeat_begins_with_another_kind_of_traffic() -> None:
    args = parser().parse_args(["run", "--prompts", "P", "--out", "out", "--repeats", "3"])
    order = list(every_pass(args))
    assert len(order) == 3 * len(summary.CELLS)
    firsts = [next(cell.traffic for at, cell in order if at == repeat) for repeat in (1, 2, 3)]
    assert len(set(firsts)) == 3
    named = {f"{cell.traffic} {cell.concurrency}" for at, cell in order if at == 2}
    assert named == summary.CELLS


def test_clients_are_busy_until_the_last_measured_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers of the last prompts end by the abort alone."""
    is_over = threading.Event()
    busy: list[int] = []
    num_busy = [0]

    def post(_url: str, prompts: list[list[int]], _sampling: Any) -> list[dict[str, Any]]:
        num_busy[0] += 1
        time.sleep(0.01)
        if prompts[0][0] == 9 and is_over.wait(10):
            raise OSError("aborted")
        busy.append(num_busy[0])
        num_busy[0] -= 1
        return [{"output_ids": prompts[0]}]

    monkeypatch.setattr(real_text, "post_generate", post)
    monkeypatch.setattr(real_text, "abort_all", lambda _url: is_over.set())
    measured = [Request([1, idx], is_measured=True) for idx in range(6)]
    sent = [Request([0], False), Request([0], False), *measured]
    sent += [Request([9], False), Request([9], False)]
    answers = answers_of("url", sent, 2, {})
    assert [each.text for each in answers] == [each.prompt for each in measured]
    assert is_over.is_set()
    assert min(busy) >= 1


def test_a_client_that_fails_ends_the_pass_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def post(_url: str, prompts: list[list[int]], _sampling: Any) -> list[dict[str, Any]]:
        time.sleep(0.01)
        if prompts[0] == [1]:
            raise OSError("connection reset")
        return [{"output_ids": prompts[0]}]

    monkeypatch.setattr(real_text, "post_generate", post)
    sent = [Request([2], True), Request([1], True), Request([0], False), Request([0], False)]
    with pytest.raises(OSError, match="connection reset"):
        answers_of("url", sent, 2, {})


def test_a_pass_takes_what_its_requests_took_over_the_clients() -> None:
    answers = [
        Answer(2, [1] * 40, 2 * SECOND, 6 * SECOND),
        Answer(3, [1] * 20, 3 * SECOND, 5 * SECOND),
    ]
    rounds = [
        (SECOND, 2, 2, None, False, True),  # before it
        (3 * SECOND, 2, 8, 4, False, True),
        (4 * SECOND, 0, 0, None, False, False),  # prefill
        (5 * SECOND, 2, 6, 1, False, True),  # three decodes in one round
        (9 * SECOND, 2, 2, None, False, True),  # behind it
    ]
    assert as_pass(answers, 2, rounds) == {
        "num_tokens": 60,
        "seconds": 3.0,
        "rounds": {"0": 3, "3": 1},
        "paces": {"0": {"prefill": [1, 3, 1000.0, 333.333]}},
    }


def test_rounds_stand_by_depth_and_by_what_came_before() -> None:
    ms = 1_000_000
    kinds = [(0, None), *[(2, 4)] * 4, *[(2, 1)] * 3, *[(2, 4)] * 2]  # batch size, drafted tokens
    took = [0, 30, 10, 4, 4, 9, 2, 2, 12, 5]
    times = [sum(took[: idx + 1]) * ms for idx in range(len(took))]
    rounds = [
        Round(time_ns, size, size, drafted, False, True)
        for time_ns, (size, drafted) in zip(times, kinds, strict=True)
    ]
    assert paces(rounds) == {
        "0": {"move": [2, 2, 11.0, 5.5], "settled": [1, 1, 2.0, 2.0]},
        "3": {
            "move": [2, 2, 17.0, 8.5],
            "prefill": [2, 2, 40.0, 20.0],
            "settled": [2, 2, 8.0, 4.0],
        },
    }


def test_a_trail_has_every_round_with_what_it_took() -> None:
    kinds = [(2, 4), (0, None), (2, 4), (1, 1)]  # batch size, drafted tokens
    rounds = [
        Round(number * number * 1_000_000, size, size, drafted, False, True)
        for number, (size, drafted) in enumerate(kinds)
    ]
    assert trail(rounds) == [[-1, 0, 1000, 0], [3, 2, 3000, 1], [0, 1, 5000, 1]]


def passes(rates: dict[str, float], where: Cell, as_none: dict[str, str]) -> list[dict[str, Any]]:
    """Three repeats that drift alike in all arms."""
    return [
        {
            **where._asdict(),
            "arm": arm,
            "repeat": repeat,
            "num_tokens": rate * (1 + 0.01 * repeat),
            "seconds": 1.0,
            "rounds": {},
            "as_none": as_none.get(arm, "1111"),
        }
        for arm, rate in rates.items()
        for repeat in (1, 2, 3)
    ]


@pytest.fixture
def result() -> Any:
    slow = {"none": 100.0, "static-3": 90.0, "static-7": 60.0, "builtin": 80.0, "goodput": 99.0}
    fast = {"none": 100.0, "static-3": 150.0, "static-7": 200.0, "builtin": 120.0, "goodput": 190.0}
    texts = {"static-3": "1101", "goodput": "1110"}
    planted = passes(slow, Cell("chat", 32, 0.0), texts) + passes(
        fast, Cell("mixed", 1, 0.0), texts
    )
    return build_result(PROVENANCE, planted)


def test_ours_is_compared_with_the_depth_that_it_is_least_ahead_of(result: Any) -> None:
    by_claim = {each.claim: each for each in figures(result)}
    assert (
        by_claim["worst cell over its best static setting (mixed 1, static-7)"].verdict == "MISSED"
    )
    assert by_claim["mixed 1: ours / static-7"].ratio.value == pytest.approx(0.95)
    assert by_claim["worst cell over none (chat 32)"].ratio.value == pytest.approx(0.99)
    single = by_claim["ours / static-3, all 2 cells"].ratio.value
    assert single == pytest.approx((99 / 90 * 190 / 150) ** 0.5)
    assert by_claim["texts as under none, ours / static-3, 6 passes"].ratio.value == 1.0
    assert "MISSED" in figure_table(result)


def test_luck_is_not_what_ours_is_compared_with() -> None:
    """Two depths are as good; each is lucky once, and of one pass the lucky one is the best."""
    cell = Cell("chat", 1, 0.0)
    planted = passes({"static-3": 100.0, "static-7": 100.0, "goodput": 100.0}, cell, {})
    for each in planted:
        lucky = {1: "static-3", 3: "static-7"}.get(each["repeat"])
        each["num_tokens"] *= 1.2 if each["arm"] == lucky else 1.0
    by_arm = build_result(PROVENANCE, planted)["cells"][0]["raw"]
    found = summary.over_best_elsewhere(by_arm)
    assert found is not None
    assert found.value == pytest.approx(1.0)
    one_pass = {arm: mine[:1] for arm, mine in by_arm.items()}
    assert summary.over_best_elsewhere(one_pass) is None


def test_a_stated_figure_follows_from_its_passes(result: Any) -> None:
    found = summary.check_real_text(result)
    assert all(isinstance(problem, Gap) for problem in found)
    assert "chat 32 lacks ['static-1', 'static-5']" in found
    result["cells"][0]["tokens_per_s"]["none"] += 1
    result["provenance"]["gpu"] = "cpu"
    faults = [each for each in summary.check_real_text(result) if not isinstance(each, Gap)]
    assert ["measured on cpu" in faults[0], "chat 32.tokens_per_s.none" in faults[1]] == [True] * 2


def test_a_depth_far_behind_the_best_is_left_out_once_that_is_known() -> None:
    cell = Cell("chat", 32, 0.0)
    rates = {"none": 500.0, "static-1": 100.0, "static-3": 91.0, "static-7": 80.0, "goodput": 10.0}
    every = passes(rates, cell, {})
    assert summary.left_behind(every, cell) == {"static-7"}
    assert summary.left_behind([each for each in every if each["repeat"] == 1], cell) == set()
    assert summary.left_behind(every, Cell("chat", 8, 0.0)) == set()


def test_every_arm_and_kind_of_traffic_is_measured_by_default() -> None:
    args = parser().parse_args(["run", "--prompts", "P", "--out", "out"])
    assert args.arms == summary.ARMS
    assert args.traffic == ("phases", "mixed", *DOMAINS)
    assert args.concurrency == (1, 8, 32, 128, 256)


def test_prompts_that_lack_a_domain_are_refused_before_a_server_starts(tmp_path: Path) -> None:
    path = tmp_path / "prompts.json"
    path.write_text(json.dumps({name: PROMPTS[name] for name in DOMAINS[1:]}))
    args = parser().parse_args(["run", "--prompts", str(path), "--out", "out"])
    with pytest.raises(SystemExit, match="lacks chat; allowed is what"):
        prompts_of(args)


def test_nodes_of_a_table_are_depths_too() -> None:
    rates = {"none": 100.0, "static-ngram-3": 90.0, "static-ngram-7": 110.0, "goodput-ngram": 120.0}
    result = build_result(PROVENANCE, passes(rates, Cell("edits", 8, 0.0), {}))
    by_claim = {each.claim: each for each in figures(result)}
    best = by_claim["worst cell over its best static setting (edits 8, static-ngram-7)"]
    assert best.ratio.value == pytest.approx(12 / 11)
    assert by_claim["ours / none, all 1 cells"].ratio.value == pytest.approx(1.2)
    assert "goodput-ngram" in summary.cell_table(result)
    found = summary.check_table(result)
    assert "edits 8 lacks ['static-ngram-1', 'static-ngram-15']" in found


def test_an_earlier_commit_is_no_setting_to_beat() -> None:
    rates = {"none": 100.0, "at-1234567": 125.0, "goodput": 120.0}
    result = build_result(PROVENANCE, passes(rates, Cell("chat", 1, 0.0), {}))
    by_claim = {each.claim: each for each in figures(result)}
    assert by_claim["ours / at-1234567, all 1 cells"].ratio.value == pytest.approx(0.96)
    assert "worst cell over its best static setting (chat 1, none)" in by_claim


def test_packed_rounds_are_ours_beside_the_others() -> None:
    rates = {"none": 100.0, "static-5": 110.0, "goodput-tiers": 120.0, "goodput-packed": 132.0}
    result = build_result(PROVENANCE, passes(rates, Cell("mixed", 64, 0.0), {}))
    by_claim = {each.claim: each for each in figures(result)}
    assert by_claim["ours / goodput-tiers, all 1 cells"].ratio.value == pytest.approx(1.1)
    assert by_claim["mixed 64: ours / static-5"].ratio.value == pytest.approx(1.2)
    assert "mixed 64 lacks" in str(summary.check_kinds(result))


def test_traffic_of_one_kind_needs_its_own_prompts_alone(tmp_path: Path) -> None:
    path = tmp_path / "prompts.json"
    path.write_text(json.dumps({"edits": [[1]]}))
    args = ["run", "--prompts", str(path), "--out", "out", "--traffic", "edits"]
    assert set(prompts_of(parser().parse_args(args))) == {"edits"}
