"""What the worker does before any round: zero-step rounds are made ready."""

import os
from types import SimpleNamespace
from typing import Any

import pytest

SKIP = "SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND"


def worker_of(steps: tuple[int, ...]) -> Any:
    """A worker as far as zero-step rounds are made ready."""
    return SimpleNamespace(
        _target_worker=SimpleNamespace(model_runner=SimpleNamespace(max_running_requests=8)),
        _draft_worker=SimpleNamespace(),
        adaptive_request=SimpleNamespace(config=SimpleNamespace(candidate_steps=steps)),
        tier_builder=SimpleNamespace(max_catch_up_size=lambda: 8),
        controller=SimpleNamespace(draft_schedule=None),
        plain_rounds=None,
    )


@pytest.fixture
def prepare(plugins_loaded: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    from sglang_adaptive_spec.host import worker

    made = SimpleNamespace(schedule=object())
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
