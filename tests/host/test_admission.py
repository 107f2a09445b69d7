"""What requests bring into the scheduler's queue: read once, counted, or refused."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_adaptive_spec.config.schema import load_config
from sglang_adaptive_spec.ladder import Ladder
from sglang_adaptive_spec.loop.counters import RoundCounters
from sglang_adaptive_spec.tiers import chain_tier
from tests.host.test_exact import NOT_EVERYWHERE, request

LADDER = Ladder({1: [chain_tier(0), chain_tier(3)]})
CONFIG = load_config(None)


@pytest.fixture(scope="module")
def admission(plugins_loaded: None) -> Any:
    from sglang_adaptive_spec.host.serving import admission

    return admission


def made(admission: Any, config: Any = CONFIG, ladder: Ladder = LADDER) -> Any:
    from sglang_adaptive_spec.host.serving.exact import ExactRequests

    exact = ExactRequests(config.exact, ladder, has_plain_rounds=True)
    return admission.Admission(config, exact, RoundCounters(), 3)


def asking(settings: Any, max_new_tokens: int | None = 8, **sampling: Any) -> Any:
    req = request(**sampling)
    params = None if settings is None else {"adaptive_spec": settings, "__req__": req}
    vars(req.sampling_params).update(custom_params=params, max_new_tokens=max_new_tokens)
    req.to_finish = None
    req.set_finish_with_abort = lambda text: setattr(req, "to_finish", text)
    return req


def admit(here: Any, *reqs: Any, is_retracted: bool = False) -> list[Any]:
    added: list[Any] = []
    for req in reqs:
        here.admit(lambda _, req, is_retracted: added.append(req), None, req, is_retracted)
    return added


def counted(here: Any) -> dict[str, int]:
    return {reason: total for reason, total in here._counters.num_requests.items() if total}


def test_limits_of_a_batch_are_those_of_its_requests(admission: Any) -> None:
    here = made(admission)
    reqs = [
        asking({"max_steps": 1}),
        asking(None),
        asking({"max_steps": 0}),
        asking({"max_steps": 3}),
    ]
    assert here.of("abcd", reqs) == ({}, None)
    assert admit(here, *reqs) == reqs
    assert here.of("abcd", reqs) == ({"a": 1, "c": 0}, None)  # 3: no tier is deeper
    assert counted(here) == {"max_steps": 3}


def test_a_request_is_counted_once_however_often_it_is_queued(admission: Any) -> None:
    here, req = made(admission), asking({"max_steps": 1, "exact": True})
    admit(here, req)
    admit(here, req)
    admit(here, req, is_retracted=True)
    assert counted(here) == {"max_steps": 1, "exact": 1}


def test_one_that_decodes_nothing_is_not_counted(admission: Any) -> None:
    here = made(admission)
    admit(here, asking({"max_steps": 1}, max_new_tokens=0))
    assert counted(here) == {}
    admit(here, asking({"max_steps": 1}, max_new_tokens=None))
    assert counted(here) == {"max_steps": 1}


def test_of_exact_requests_those_hold_a_batch_that_verify_would_sample_otherwise(
    admission: Any,
) -> None:
    here, exact = made(admission), {"exact": True}
    greedy, drawn = asking(exact, top_k=1, min_p=0.1), asking(exact)
    cut, not_asked = asking(exact, min_p=0.1), asking(None, min_p=0.1)
    admit(here, greedy, drawn, cut, not_asked)
    assert here.of("abc", [greedy, drawn, not_asked]) == ({}, None)
    assert here.of("abc", [greedy, drawn, cut]) == ({}, "min_p")


@pytest.mark.parametrize("settings", [3, {"max_steps": "x"}, {"max_step": 1}])
def test_what_came_past_the_tokenizer_s_check_is_refused_with_its_sentence(
    admission: Any, settings: Any
) -> None:
    here, req = made(admission), asking(settings)
    assert admit(here, req) == [req]
    assert "; allowed: " in req.to_finish
    assert counted(here) == {"refused": 1}
    assert here.of("a", [req]) == ({}, None)


def test_exactness_is_refused_where_no_round_has_it(admission: Any) -> None:
    here = made(admission, ladder=NOT_EVERYWHERE)
    refused, served = asking({"exact": True}, min_p=0.1), asking({"exact": True})
    admit(here, refused, served)
    assert "min_p" in refused.to_finish
    assert served.to_finish is None
    assert counted(here) == {"refused": 1, "exact": 1}


def test_the_config_s_limit_holds_for_all(admission: Any) -> None:
    here = made(admission, replace(CONFIG, per_request=False, max_steps=2))
    reqs = [asking(None), asking({"max_steps": 0})]
    admit(here, *reqs)
    assert here.of("ab", reqs) == ({"a": 2, "b": 2}, None)
    assert counted(here) == {"default": 2, "ignored": 1}


def test_a_static_server_takes_limits_and_refuses_exactness(admission: Any) -> None:
    admission.check_request({"adaptive_spec": {"max_steps": 1}}, CONFIG, "trees")
    admission.check_request({"adaptive_spec": {"exact": True}}, CONFIG, None)
    with pytest.raises(ValueError, match="serves one depth"):
        admission.check_request({"adaptive_spec": {"exact": True}}, CONFIG, "trees")


def test_an_answer_says_what_held(admission: Any) -> None:
    obj = SimpleNamespace(sampling_params={"custom_params": {"adaptive_spec": {"max_steps": 1}}})
    states = {
        "a": SimpleNamespace(obj=obj),
        "b": SimpleNamespace(obj=SimpleNamespace(sampling_params={})),
    }
    manager = SimpleNamespace(rid_to_state=states, preferred_sampling_params=None)

    def shown(rid: str) -> dict[str, Any]:
        meta: dict[str, Any] = {}
        admission.show_settings(meta, manager, rid, CONFIG)
        return meta

    assert shown("a") == {"adaptive_spec": {"max_steps": 1}}
    assert shown("b") == shown("gone") == {}
    manager.preferred_sampling_params = obj.sampling_params
    assert shown("b") == shown("a")
