"""What the worker makes ready: zero-step rounds, and the stream that the host plans on."""

import os
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_adaptive_spec.tiers import chain_tier

SKIP = "SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND"


def worker_of(steps: tuple[int, ...]) -> Any:
    """A worker as far as zero-step rounds are made ready."""
    return SimpleNamespace(
        _target_worker=SimpleNamespace(
            model_runner=SimpleNamespace(max_running_requests=8, req_to_token_pool=None)
        ),
        _draft_worker=SimpleNamespace(),
        adaptive_options=SimpleNamespace(
            config=SimpleNamespace(candidate_steps=steps), startup_tier=chain_tier(7)
        ),
        tier_builder=SimpleNamespace(max_catch_up_size=lambda: 8),
        controller=SimpleNamespace(draft_schedule=None),
        plain_rounds=None,
    )


@pytest.fixture
def prepare(plugins_loaded: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    from sglang_adaptive_spec.host.serving import worker

    made = SimpleNamespace(schedule=object(), prefixes=object())
    cached = SimpleNamespace(install=lambda *_: None)
    monkeypatch.setattr(worker, "cached_prefixes", cached)
    monkeypatch.setattr(worker, "plain_round_unsupported_reason", lambda _runner: None)
    monkeypatch.setattr(worker, "PlainRounds", lambda *_: made)
    return worker.AdaptiveEagleWorker.prepare_plain_rounds


@pytest.mark.parametrize("steps", [(0, 3), (1, 3)])
def test_leaving_the_draft_behind_for_good_is_switched_off_with_a_warning(
    prepare: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any, steps: tuple[int, ...]
) -> None:
    """With it the host never calls the draft-extend that a catch-up is."""
    monkeypatch.setenv(SKIP, "1")
    worker = worker_of(steps)
    prepare(worker)
    has_zero_steps = 0 in steps
    assert (worker.plain_rounds is not None) == has_zero_steps
    assert (os.environ[SKIP] == "1") != has_zero_steps
    assert [SKIP in record.getMessage() for record in caplog.records] == [True] * has_zero_steps


class Rounds:
    """Stands for PlainRounds in a catch-up: its draft-extend is the host's."""

    is_running = True

    def draft_extend(self, extend: Any, *args: Any) -> None:
        extend(*args)


@pytest.mark.parametrize("rounds", [None, Rounds()])
@pytest.mark.parametrize("has_plan_stream", [True, False])
def test_the_host_plans_the_draft_extend_after_what_the_forward_stream_has_been_given(
    plugins_loaded: None, monkeypatch: pytest.MonkeyPatch, rounds: Any, has_plan_stream: bool
) -> None:
    """Its plan would overwrite the shared index while the verify still reads it."""
    from sglang.srt.speculative.eagle_worker_v2 import EagleDraftWorker

    from sglang_adaptive_spec.host.serving.worker import AdaptiveDraftWorker

    events: list[Any] = []
    monkeypatch.setattr(
        EagleDraftWorker, "_draft_extend_for_decode", lambda *_: events.append("plan")
    )
    draft_worker: Any = object.__new__(AdaptiveDraftWorker)
    plan_stream = SimpleNamespace(wait_stream=events.append) if has_plan_stream else None
    vars(draft_worker).update(
        device="cpu", topk=1, relay_topk=1, plain_rounds=rounds, plan_stream=plan_stream
    )
    draft_worker._draft_extend_for_decode(None, None)
    assert events == [torch.cpu.current_stream()] * has_plan_stream + ["plan"]


@pytest.mark.parametrize("may_draft", [True, False])
def test_before_a_mixed_batch_rows_are_caught_up_unless_they_are_too_many_to_draft(
    plugins_loaded: None, monkeypatch: pytest.MonkeyPatch, may_draft: bool
) -> None:
    from sglang_adaptive_spec.host.serving import worker

    asked: list[str] = []
    plain = SimpleNamespace(
        begin_catch_up=lambda _batch, requests: asked.append(f"catch up {len(requests)}"),
        leave_behind=lambda: asked.append("leave behind"),
    )
    monkeypatch.setattr(worker, "row_keys", lambda batch: batch.reqs)
    controller = SimpleNamespace(before_extend=lambda: None, may_draft=lambda _size: may_draft)
    mixed = SimpleNamespace(
        forward_mode=SimpleNamespace(is_mixed=lambda: True), reqs=["a", "b", "c"]
    )
    worker.AdaptiveEagleWorker._before_extend(
        SimpleNamespace(controller=controller, plain_rounds=plain), mixed
    )
    assert asked == (["catch up 3"] if may_draft else ["leave behind"])
