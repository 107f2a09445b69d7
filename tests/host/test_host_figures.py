"""The host's own figures of drafts while tiers change, on a reporter as the host's is."""

from types import SimpleNamespace
from typing import Any

import pytest

from sglang_adaptive_spec.host.reporting import host_figures
from sglang_adaptive_spec.host.reporting.host_figures import set_accept_rate
from sglang_adaptive_spec.tiers import chain_tier

LARGEST = 8  # draft tokens as published


@pytest.fixture(autouse=True)
def published(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        host_figures, "get_spec", lambda: SimpleNamespace(speculative_num_draft_tokens=LARGEST)
    )


class Request:
    """A request as far as counting goes."""

    is_retracted = False

    def __init__(self, is_finished: bool = False) -> None:
        self.spec_verify_ct = self.spec_num_block_accept_tokens = 0
        self.histogram: list[int] = []
        self._is_finished = is_finished

    def finished(self) -> bool:
        return self._is_finished

    def update_spec_correct_drafts_histogram(self, num_correct: int) -> None:
        self.histogram.append(num_correct)


def result(num_draft_tokens: int, decodes: int = 1) -> Any:
    return SimpleNamespace(
        speculative_num_draft_tokens=num_draft_tokens, num_non_draft_tokens_per_req=decodes
    )


def figures() -> host_figures.HostFigures:
    """Figures of a server whose newest decode round ran three steps."""
    return host_figures.HostFigures(lambda: chain_tier(3))


def test_a_request_sums_the_drafts_of_its_own_rounds() -> None:
    live, ended, kept = Request(), Request(is_finished=True), figures()
    batch = SimpleNamespace(reqs=[live, ended])
    for each in (result(4), result(2), result(1, decodes=4)):
        assert kept.resolve(lambda *_: "tokens", None, each, batch) == "tokens"
    assert (live.spec_num_block_accept_tokens, live.spec_verify_ct) == (4, 3)
    assert live.histogram == [0, 0, 0]
    assert ended.spec_num_block_accept_tokens == 0


def test_of_a_packed_round_the_drafts_count_that_were_verified() -> None:
    one, ended, other, kept = Request(), Request(is_finished=True), Request(), figures()
    packed = result(4)
    packed._adaptive_spec_kept = lambda: [0, 3, 2]
    kept.resolve(lambda *_: None, None, packed, SimpleNamespace(reqs=[one, ended, other]))
    found = [each.spec_num_block_accept_tokens for each in (one, ended, other)]
    assert found == [0, 0, 2]
    reporter = Reporter()
    kept.update(Reporter.update, reporter, 3, 2, 5)
    assert reporter.spec_num_block_accept_tokens == 5


class Reporter:
    """The fields that the host sums, resets and divides (sglang 0.5.23 metrics_reporter.py)."""

    def __init__(self) -> None:
        self.spec_num_correct_drafts: float = 0
        self.spec_num_block_accept_tokens = self.spec_num_forward_ct = 0
        self.rates: list[float] = []

    def update(self, bs: int, correct: int, _accepted: int, **kwargs: int) -> None:
        self.spec_num_forward_ct += bs
        self.spec_num_correct_drafts += correct
        self.spec_num_block_accept_tokens += kwargs["num_block_accept_tokens"]

    def report(self, is_due: bool) -> None:
        if is_due:
            drafts = self.spec_num_forward_ct * (LARGEST - 1)
            self.rates.append(self.spec_num_correct_drafts / drafts)
            self.spec_num_correct_drafts = 0
            self.spec_num_block_accept_tokens = self.spec_num_forward_ct = 0


def round_of(reporter: Reporter, num_draft_tokens: int, correct: int, is_due: bool) -> None:
    size = 2
    batch = SimpleNamespace(reqs=[Request() for _ in range(size)])
    kept = figures()
    kept.resolve(lambda *_: None, None, result(num_draft_tokens), batch)
    kept.update(Reporter.update, reporter, size, correct, size + correct)
    host_figures.report(Reporter.report, reporter, is_due)


def test_the_rate_is_that_of_the_drafts_proposed_and_intervals_keep_their_sums() -> None:
    reporter = Reporter()
    round_of(reporter, 4, 6, is_due=False)  # 6 of 6
    assert reporter.spec_num_correct_drafts == 6
    round_of(reporter, 8, 1, is_due=False)  # 1 of 14
    round_of(reporter, 1, 0, is_due=True)
    assert reporter.rates == [pytest.approx(7 / 20)]
    round_of(reporter, 1, 0, is_due=True)  # nothing proposed
    assert reporter.rates[1] == 0
    round_of(reporter, 8, 7, is_due=True)
    assert reporter.rates[2] == pytest.approx(0.5)


def test_the_gauges_show_the_decode_tier_whatever_the_worker_holds() -> None:
    assert figures().snapshot({}, None) == {"num_steps": 3, "num_draft_tokens": 4}


def test_requests_that_are_put_back_are_counted() -> None:
    kept = figures()
    for put_back in (["a", "b"], [], ["c"]):
        answer = (put_back, 0.5, [])
        assert kept.count_retracted(answer, None) is answer
    assert kept.num_retractions == 3


@pytest.mark.parametrize(("proposed", "expected"), [(10, 0.3), (0, 0.0)])
def test_an_answer_has_the_rate_of_its_request(proposed: int, expected: float) -> None:
    meta = {"spec_num_proposed_drafts": 70, "spec_accept_rate": 3 / 70, "spec_accept_length": 1.3}
    answer = SimpleNamespace(
        spec_num_block_accept_tokens=[99, proposed],
        spec_num_correct_drafts=[1, 3 if proposed else 0],
    )
    set_accept_rate(meta, answer, 1)
    assert meta == {
        "spec_num_proposed_drafts": proposed,
        "spec_accept_rate": expected,
        "spec_accept_length": 1.3,
    }


def test_an_answer_without_drafts_stays_as_it_is() -> None:
    meta: dict[str, Any] = {"prompt_tokens": 3}
    set_accept_rate(meta, SimpleNamespace(spec_num_block_accept_tokens=[5]), 0)
    assert meta == {"prompt_tokens": 3}
