"""What lies behind the end of an answer, on requests as the host has them."""

from types import SimpleNamespace
from typing import Any

import pytest


@pytest.fixture(scope="module")
def ends(plugins_loaded: None) -> Any:
    from sglang_adaptive_spec.host.serving import ends

    return ends


def request(**changes: Any) -> Any:
    """A request whose newest round gave five tokens."""
    fields = {
        "finished_len": None,
        "reasoning_tokens": 5,
        "output_ids": [1, 2, 3, 4, 5],
        "origin_input_ids": [0] * 10,
        "session": None,
    }
    return SimpleNamespace(**{**fields, **changes})


@pytest.mark.parametrize(
    ("finished_len", "counted", "expected"), [(None, 5, 5), (3, 5, 3), (3, 2, 2), (5, 5, 5)]
)
def test_reasoning_is_counted_up_to_the_end(
    ends: Any, finished_len: int | None, counted: int, expected: int
) -> None:
    req = request(finished_len=finished_len, reasoning_tokens=counted)
    seen: list[Any] = []
    ends.cut_answers(lambda *args: seen.append(args), "streamer", [req], True)
    assert req.reasoning_tokens == expected
    assert seen == [("streamer", [req], True)]


@pytest.mark.parametrize(("session", "kept"), [(None, 5), (SimpleNamespace(session_id="s"), 3)])
def test_only_the_history_of_a_session_is_cut(ends: Any, session: Any, kept: int) -> None:
    req = request(finished_len=3, session=session)
    ends.cut_answer(req, 3)
    assert req.output_ids == [1, 2, 3, 4, 5][:kept]


@pytest.mark.parametrize(
    ("committed", "protected", "expected"), [(15, 10, 14), (14, 10, 14), (15, 15, 15)]
)
def test_a_streaming_turn_keeps_what_was_written(
    ends: Any, committed: int, protected: int, expected: int
) -> None:
    kv = SimpleNamespace(kv_committed_len=committed, cache_protected_len=protected)
    sessions = SimpleNamespace(slots={"s": SimpleNamespace(kv=kv)})
    req = request(session=SimpleNamespace(session_id="s"))
    assert ends.keep_turn(lambda *_: True, sessions, req)
    assert kv.kv_committed_len == expected


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_turn_whose_kv_is_gone_is_left_alone(ends: Any, is_kept: bool) -> None:
    sessions, session = SimpleNamespace(slots={}), SimpleNamespace(session_id="s")
    assert ends.keep_turn(lambda *_: is_kept, sessions, request(session=session)) is is_kept
    assert not ends.keep_turn(lambda *_: False, sessions, request(session=None))
