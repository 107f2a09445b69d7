"""Where an answer ends inside a round: what the host forgets when a round gives more than it takes.

A round may give a request tokens behind its end: accepted drafts, or the rest of a run of decodes.
The host keeps them and marks the end (`Req.finished_len`). Three readers overlook the mark: the
count of reasoning tokens, the next turn of a session, and the KV that a streaming session resumes
from. Static EAGLE has the same faults; patches/upstream/ mends them in the host.
"""

from collections.abc import Callable, Sequence
from typing import Any

from sglang_adaptive_spec.host.batch import Request
from sglang_adaptive_spec.host.hooks import hook_now


def install_end_hooks() -> None:
    """Hooks the host's methods; for the process of a scheduler."""
    hook_now(
        {
            "SchedulerOutputStreamer.stream_output": cut_answers,
            "StreamingSession.try_cache_finished_req": keep_turn,
        }
    )


# -- the host's methods, hooked --


def cut_answers(
    stream: Callable[..., Any],
    streamer: object,
    reqs: Sequence[Request],
    *args: object,
    **kwargs: object,
) -> Any:
    """Around stream_output, which every result passes through before a client sees it."""
    for req in reqs:
        if req.finished_len is not None:
            cut_answer(req, req.finished_len)
    return stream(streamer, reqs, *args, **kwargs)


def cut_answer(req: Request, num_tokens: int) -> None:
    """Takes what lies behind the end of a finished answer of ``num_tokens`` out of the way."""
    req.reasoning_tokens = min(req.reasoning_tokens, num_tokens)
    if req.session is not None:  # the next turn begins with all of it
        req.output_ids = req.output_ids[:num_tokens]


def keep_turn(
    keep: Callable[..., bool], sessions: Any, req: Request, *args: object, **kwargs: object
) -> bool:
    """Around try_cache_finished_req: the newest token of a turn may have no KV.

    The host keeps KV up to that token, as far as slots are allocated. Without speculation they end
    before it; with speculation they are allocated ahead.
    """
    is_kept = keep(sessions, req, *args, **kwargs)
    session = req.session
    slot = sessions.slots.get(session.session_id) if is_kept and session is not None else None
    if slot is not None:  # None: the turn was aborted, and its KV is gone
        kv = slot.kv
        written = len(req.origin_input_ids) + len(req.output_ids) - 1
        kv.kv_committed_len = min(kv.kv_committed_len, max(written, kv.cache_protected_len))
    return is_kept
