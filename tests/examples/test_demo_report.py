"""The demo's figures, checks, page and picture, from hand-made answers."""

import json
import math
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from examples.demo.arms import BUILTIN, NONE, OURS, STATIC, arms
from examples.demo.figures import (
    ArmResult,
    by_phase,
    figures_of,
    oracle_seconds,
    paired,
    pairs_of,
    tier_shares,
)
from examples.demo.page import page
from examples.demo.prompts import PHASES
from examples.demo.report import (
    checks_of,
    digest_of,
    last_line,
    num_identical,
    report_json,
    speed_rows,
    table,
)
from examples.demo.timeline import prompt_spans, timeline_svg
from examples.demo.traffic import Answer, Snapshot

ARMS = {arm.name: arm for arm in arms(Path("model"))}
SPEC: dict[str, Any] = {"rounds": {"0": 12, "1": 0, "3": 25, "5": 10}}


def answers(seconds: float = 0.5, rounds: dict[str, int] | None = None) -> list[Answer]:
    return [
        Answer(phase, f"{phase} {n}", (n, n + 1, n + 2), seconds, 10, 15, rounds or {})
        for phase in PHASES
        for n in range(2)
    ]


def result(name: str, seconds: float, spec: dict[str, Any] | None = None) -> ArmResult:
    rounds = {"0": 4, "3": 6} if name == OURS else None
    snapshots = [Snapshot(0.5 * n, PHASES[n // 2], n % 2 * 3) for n in range(6)]
    return ArmResult(ARMS[name], ["server"], 20.0, answers(seconds, rounds), snapshots, spec)


def results(spec: dict[str, Any] | None = SPEC) -> list[ArmResult]:
    return [
        *(result(name, seconds) for name, seconds in ((NONE, 0.5), (STATIC, 0.4), (BUILTIN, 0.6))),
        result(OURS, 0.4, spec),
    ]


def failed(made: list[ArmResult]) -> list[str]:
    return [check.claim for check in checks_of(made) if not check.is_met]


def test_a_good_run_passes_and_says_identical() -> None:
    assert failed(results()) == []
    assert last_line(results()) == "identical: yes (6 answers, 18 tokens)"


@pytest.mark.parametrize("spec", [None, {}, {"rounds": {"0": 9, "3": 100}}])
def test_fewer_than_two_tiers_of_ten_rounds_fail(spec: dict[str, Any] | None) -> None:
    (claim,) = failed(results(spec))
    assert claim.startswith("ADAPTIVE_EAGLE: at least 2 tiers with at least 10 rounds")


def test_one_other_token_fails_and_changes_the_hash() -> None:
    made = results()
    changed = [*made[-1].answers]
    changed[3] = replace(changed[3], output_ids=(1, 2, 4))
    made[-1] = replace(made[-1], answers=changed)
    assert failed(made) == ["ADAPTIVE_EAGLE: every answer equals no speculation, token for token"]
    assert last_line(made) == "identical: no (1 of 6 answers differ)"
    assert digest_of(changed) != digest_of(made[0].answers)
    assert num_identical(made[-1], made[0]) == 5
    assert not report_json(made, {})["passed"]


def test_token_boundaries_matter_to_the_hash() -> None:
    one = [Answer("prose", "a", (1, 23), 1, 1, 0)]
    assert digest_of(one) != digest_of([replace(one[0], output_ids=(12, 3))])
    assert digest_of(one) != digest_of([replace(one[0], output_ids=(1,)), one[0]])


def test_no_answers_are_not_identical_answers() -> None:
    assert last_line([replace(each, answers=[]) for each in results()]).startswith("identical: no")


def test_figures_follow_their_definitions() -> None:
    figures = figures_of(answers())
    assert figures.tokens_per_s == 18 / 3.0
    assert figures.accept_length == 1 + 15 / 10
    assert by_phase(results()[0])["code"].num_tokens == 6


def test_equal_pairs_have_no_scatter_though_phases_differ() -> None:
    mine, other = results()[-1], results()[0]
    assert pairs_of(results())[NONE].value == pytest.approx(1.25)
    slow = {"prose": 1.0, "code": 2.0, "JSON": 4.0}
    stretched = [replace(each, seconds=0.4 * slow[each.phase]) for each in other.answers]
    ratio = paired(mine, replace(other, answers=stretched))
    assert ratio.value == pytest.approx(2.0)
    assert (ratio.low, ratio.high) == pytest.approx((2.0, 2.0))


def test_pairs_that_scatter_within_a_phase_widen_the_interval() -> None:
    mine, other = results()[-1], results()[0]
    factors = (0.9, 1.1) * len(PHASES)
    scattered = [
        replace(each, seconds=0.4 * factor)
        for each, factor in zip(other.answers, factors, strict=True)
    ]
    ratio = paired(mine, replace(other, answers=scattered))
    half = math.log(1.1 / 0.9) / 2
    reach = 3.18 * half * math.sqrt(2 / 6)  # three degrees of freedom, six prompts
    assert ratio.value == pytest.approx(math.sqrt(0.99))
    assert ratio.low == pytest.approx(math.sqrt(0.99) * math.exp(-reach))
    assert ratio.high == pytest.approx(math.sqrt(0.99) * math.exp(reach))


def test_one_prompt_a_phase_has_no_interval() -> None:
    short = [replace(each, answers=each.answers[::2]) for each in results()]
    assert paired(short[-1], short[0]).high == math.inf


def test_an_oracle_knows_the_best_fixed_arm_of_each_phase() -> None:
    made = results()
    slow_json = [
        replace(each, seconds=0.9) if each.phase == "JSON" else each for each in made[1].answers
    ]
    made[1] = replace(made[1], answers=slow_json)
    assert oracle_seconds(made) == pytest.approx(4 * 0.4 + 2 * 0.5)


def test_shares_of_tiers_are_those_of_a_phase() -> None:
    assert tier_shares(results()[-1])["code"] == {"0": 0.4, "3": 0.6}
    assert tier_shares(results()[0]) == {}


def test_the_table_has_a_row_and_a_hash_per_arm() -> None:
    text = table(results())
    for each in results():
        assert each.name in text
        assert digest_of(each.answers) in text
    assert "6.0 (2.50)" in text
    assert "1.250 (1.250 to 1.250)" in text
    assert len({len(row) for row in speed_rows(results())}) == 1
    assert all(phase in text for phase in PHASES)


def test_the_report_is_json_with_provenance_and_raw_answers() -> None:
    report = json.loads(json.dumps(report_json(results(), {"new_tokens": 3})))
    assert {"git_sha", "versions", "argv", "machine", "date"} <= report["provenance"].keys()
    assert report["provenance"]["versions"].keys() >= {"python", "sglang", "torch"}
    assert report["ours_over"][STATIC]["value"] == pytest.approx(1.0)
    assert len(report["arms"][OURS]["answers"]) == 6


class Tags(HTMLParser):
    """Notes what a page opens, links to and says."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.opened.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]


def test_the_page_has_the_tables_the_picture_and_needs_no_network() -> None:
    settings = {"new_tokens": "<3>", "config": {"1": {"candidate_steps": [0, 3]}}}
    text = page(results(), settings)
    tags = Tags()
    tags.feed(text)
    assert tags.opened.count("table") == 3
    assert "<td>config 1 candidate_steps</td><td>0, 3</td>" in text
    first = text[text.index("<p>") : text.index("</p>")]
    assert f"over each other server, 6 prompts of {', '.join(PHASES)} (95 %)" in first
    assert f"{NONE}: 1.250 (1.250 to 1.250); {STATIC}: 1.000 (1.000 to 1.000)" in first
    assert "svg" in tags.opened
    assert not [link for link in tags.links if not link.startswith(("#", "data:"))]
    assert "identical: yes (6 answers, 18 tokens)" in text
    assert "&lt;3&gt;" in text


def test_the_picture_has_a_row_per_arm_that_adapts() -> None:
    text = timeline_svg(results())
    assert text.startswith("<svg")
    assert timeline_svg(results()) == text
    assert prompt_spans(results()[0])[1] == ("prose", 0.5, 1.0)
