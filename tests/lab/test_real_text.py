"""Real text: who is asked what, which tokens a window holds, what follows from planted passes."""

from typing import Any

import pytest

from benchmarks.studies.real_text import summary
from benchmarks.studies.real_text.__main__ import Cell, parser, requests_of, window_of
from benchmarks.studies.real_text.summary import DOMAINS, build_result, figure_table, figures
from tests.lab.records import PROVENANCE

PROMPTS = {domain: [[number, idx] for idx in range(5)] for number, domain in enumerate(DOMAINS)}
SECOND = 1_000_000_000


def test_every_client_answers_once_before_the_last_request_is_sent() -> None:
    for concurrency, number in ((1, 9), (8, 16), (64, 128)):
        sent = requests_of(Cell("json", concurrency, 0.0), PROMPTS, 1)
        assert len(sent) == number
        assert {prompt[0] for prompt in sent} == {DOMAINS.index("json")}
    mixed = requests_of(Cell("mixed", 32, 0.0), PROMPTS, 1)
    assert {prompt[0] for prompt in mixed} == set(range(len(DOMAINS)))


def test_phases_follow_each_other_and_hold_a_request_of_every_client() -> None:
    sent = requests_of(Cell("phases", 8, 0.0), PROMPTS, 1)
    assert [prompt[0] for prompt in sent] == [n for n in range(len(DOMAINS)) for _ in range(8)]


def test_a_repeat_has_prompts_of_its_own_and_arms_have_the_same() -> None:
    cell = Cell("mixed", 8, 0.0)
    assert requests_of(cell, PROMPTS, 1) == requests_of(cell, PROMPTS, 1)
    assert requests_of(cell, PROMPTS, 1) != requests_of(cell, PROMPTS, 2)


def test_a_window_begins_when_all_are_served_and_ends_when_the_last_is_sent() -> None:
    requests = [  # first token, last token, number of tokens
        ("a", 0, 4 * SECOND, 41),
        ("b", 1 * SECOND, 11 * SECOND, 101),
        ("c", 4 * SECOND, 8 * SECOND, 81),
    ]
    rounds = [
        (SECOND, 2, 2, None, False, True),  # before it
        (2 * SECOND, 2, 8, 4, False, True),
        (3 * SECOND, 0, 0, None, False, False),  # prefill
        (4 * SECOND, 2, 2, 1, False, True),
        (9 * SECOND, 2, 2, None, False, True),  # behind it
    ]
    window = window_of({"requests": requests, "rounds": rounds}, 2, 6 * SECOND)
    assert window["seconds"] == 4.5
    assert window["num_tokens"] == pytest.approx(25 + 45 + 40)
    assert window["rounds"] == {"0": 1, "3": 1}
    with pytest.raises(ValueError, match="2 clients: no window of 3 requests"):
        window_of({"requests": requests, "rounds": []}, 2, SECOND)


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
        by_claim["lowest cell over its best static depth (mixed 1, static-7)"].verdict == "MISSED"
    )
    assert by_claim["mixed 1: ours / static-7"].ratio.value == pytest.approx(0.95)
    assert by_claim["lowest cell over none (chat 32)"].ratio.value == pytest.approx(0.99)
    single = by_claim["ours / static-3, all 2 cells"].ratio.value
    assert single == pytest.approx((99 / 90 * 190 / 150) ** 0.5)
    assert by_claim["texts as under none, ours / static-3, 24 requests"].ratio.value == 1.0
    assert "MISSED" in figure_table(result)


def test_a_stated_figure_follows_from_its_passes(result: Any) -> None:
    assert summary.check_real_text(result) == []
    result["cells"][0]["tokens_per_s"]["none"] += 1
    (problem,) = summary.check_real_text(result)
    assert "chat 32.tokens_per_s.none" in problem


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
