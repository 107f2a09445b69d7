"""Which requests keep a batch at zero steps, and which ones a server refuses."""

from types import SimpleNamespace
from typing import Any

import pytest

from sglang_adaptive_spec.ladder import Ladder
from sglang_adaptive_spec.tiers import chain_tier

ALL = 1 << 30  # top-k cuts nothing
EVERYWHERE = Ladder({1: [chain_tier(0), chain_tier(3)]})
NOT_EVERYWHERE = Ladder({1: [chain_tier(0), chain_tier(3)], 8: [chain_tier(1)]})


@pytest.fixture(scope="module")
def exact(plugins_loaded: None) -> Any:
    from sglang_adaptive_spec.host.serving import exact

    return exact


def request(processor: str | None = None, **sampling: Any) -> Any:
    params = {
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "repetition_penalty": 1.0,
        "min_new_tokens": 0,
        "min_p": 0.0,
        "top_k": ALL,
        "top_p": 1.0,
    }
    assert not sampling.keys() - params.keys()
    return SimpleNamespace(
        custom_logit_processor=processor,
        sampling_params=SimpleNamespace(**{**params, **sampling}),
    )


def batch(*reqs: Any) -> Any:
    """A batch with the host's own summary of its requests."""
    params = [req.sampling_params for req in reqs]
    penalised = any(p.frequency_penalty or p.min_new_tokens for p in params)
    info = SimpleNamespace(
        has_custom_logit_processor=any(req.custom_logit_processor for req in reqs),
        acc_additive_penalties="counts" if penalised else None,
        penalizer_orchestrator=None,
        is_all_greedy=all(p.top_k <= 1 for p in params),
        need_min_p_sampling=any(p.min_p > 0 for p in params),
        need_top_k_sampling=any(p.top_k != ALL for p in params),
        need_top_p_sampling=any(p.top_p != 1.0 for p in params),
    )
    return SimpleNamespace(sampling_info=info, reqs=list(reqs))


PLAIN, GREEDY = request(), request(top_k=1, top_p=0.5, min_p=0.1)
CASES = [
    (request("a processor"), "processors", "processors"),
    (request(frequency_penalty=0.5), None, "penalties"),
    (request(min_new_tokens=4), None, "penalties"),
    (request(min_p=0.1), None, "min_p"),
    (request(top_k=20, top_p=0.9), None, "top_k with top_p"),
    (request(top_k=20), None, None),
    (request(top_p=0.9), None, None),
    (GREEDY, None, None),
    (PLAIN, None, None),
]


@pytest.mark.parametrize(("req", "by_default", "of_all"), CASES)
def test_a_request_and_a_batch_that_holds_it_have_the_same_reason(
    exact: Any, req: Any, by_default: str | None, of_all: str | None
) -> None:
    for key, expected in {"processors": by_default, "all": of_all, "none": None}.items():
        assert exact.request_reason(req, key) == expected
        assert exact.batch_reason(batch(PLAIN, req), key) == expected
        assert exact.batch_reason(batch(req, GREEDY), key) == expected


def test_flags_of_two_requests_are_not_taken_for_one(exact: Any) -> None:
    assert exact.batch_reason(batch(request(top_p=0.9), GREEDY, request(top_k=20)), "all") is None


@pytest.mark.parametrize(
    ("ladder", "has_plain_rounds", "words"),
    [
        (NOT_EVERYWHERE, True, "not served in every batch-size slot"),
        (EVERYWHERE, False, "own zero-step"),
    ],
)
def test_what_no_round_serves_exactly_is_refused_with_a_sentence(
    exact: Any, ladder: Ladder, has_plain_rounds: bool, words: str
) -> None:
    requests = exact.ExactRequests("processors", ladder, has_plain_rounds)
    refusal = requests.refusal(request("a processor"))
    assert "custom logit processor" in refusal
    assert words in refusal
    assert '"exact": "none"' in refusal
    assert requests.refusal(request(min_p=0.1)) is None
    assert 'remove "exact"' in requests.refusal(request(min_p=0.1), is_asked=True)
    assert requests.refusal(request(), is_asked=True) is None
    drawn = exact.ExactRequests("none", ladder, has_plain_rounds, draws_alike=False)
    assert "exactly drawn tokens" in drawn.refusal(request(), is_asked=True)
    assert drawn.refusal(GREEDY, is_asked=True) is None
    assert requests.exact == "none", "no batch is held at zero steps for what is refused"


def test_a_server_with_zero_steps_everywhere_refuses_nothing(exact: Any) -> None:
    requests = exact.ExactRequests("all", EVERYWHERE, has_plain_rounds=True)
    assert requests.refusal(request("a processor")) is None
    assert requests.exact == "all"


@pytest.mark.parametrize(
    ("device", "single", "acc", "alike"),
    [
        ("cuda", 1.0, 1.0, True),
        ("cuda", 0.2, 1.0, False),
        ("cuda", 1.0, 0.9, False),
        ("cpu", 1.0, 1.0, False),
    ],
)
def test_verify_draws_alike_unless_thresholds_or_a_cpu_rule_it_out(
    exact: Any, monkeypatch: pytest.MonkeyPatch, device: str, single: float, acc: float, alike: bool
) -> None:
    settings = SimpleNamespace(
        speculative_accept_threshold_single=single, speculative_accept_threshold_acc=acc
    )
    monkeypatch.setattr(exact, "get_spec", lambda: settings)
    assert exact.draws_alike(device) is alike
    requests = exact.ExactRequests("none", EVERYWHERE, True, draws_alike=alike)
    assert (requests.own_reason(request()) is None) is alike
    assert requests.own_reason(GREEDY) is None
    assert requests.own_reason(request(min_p=0.1)) == "min_p"
