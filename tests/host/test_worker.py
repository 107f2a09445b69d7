"""What the worker makes ready and tells the controller, and the stream that the host plans on."""

import importlib
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_adaptive_spec.host.host_round import current_round, open_round
from sglang_adaptive_spec.tiers import chain_tier
from tests.hosts import REPO

SKIP = "SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND"


@pytest.fixture
def module(plugins_loaded: None) -> Any:
    from sglang_adaptive_spec.host.serving import worker

    return worker


@pytest.mark.parametrize("steps", [(0, 3), (1, 3)])
def test_leaving_the_draft_behind_for_good_is_switched_off_with_a_warning(
    module: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any, steps: tuple[int, ...]
) -> None:
    """With it the host never calls the draft-extend that a catch-up is."""
    from sglang_adaptive_spec.host.serving import plain_round

    monkeypatch.setattr(plain_round, "plain_round_unsupported_reason", lambda _runner: None)
    monkeypatch.setattr(module, "PlainRounds", lambda *_: SimpleNamespace(decodes=None))
    monkeypatch.setenv(SKIP, "1")
    prepared: list[bool] = []
    config = SimpleNamespace(candidate_steps=steps)
    worker = SimpleNamespace(
        engine=SimpleNamespace(
            options=SimpleNamespace(config=config, startup_tier=chain_tier(7)), target_runner=None
        ),
        drafter=None,
        _tier_builder=SimpleNamespace(prepare_catch_ups=lambda: prepared.append(True)),
        _plain_rounds=None,
    )
    module.AdaptiveEagleWorker._prepare_plain_rounds(worker)
    has_zero_steps = 0 in steps
    assert (worker._plain_rounds is not None) == bool(prepared) == has_zero_steps
    assert (os.environ[SKIP] == "1") != has_zero_steps
    assert [SKIP in record.getMessage() for record in caplog.records] == [True] * has_zero_steps


class Plain:
    """Stands for a zero-step round that catches up: its draft-extend is the host's."""

    def draft_extend(self, extend: Any, *args: Any) -> None:
        extend(*args)


@pytest.mark.parametrize("plain", [None, Plain()])
@pytest.mark.parametrize("has_plan_stream", [True, False])
def test_the_host_plans_the_draft_extend_after_what_the_forward_stream_has_been_given(
    plugins_loaded: None, monkeypatch: pytest.MonkeyPatch, plain: Any, has_plan_stream: bool
) -> None:
    """Its plan would overwrite the shared index while the verify still reads it."""
    from sglang.srt.speculative.eagle_worker_v2 import EagleDraftWorker

    from sglang_adaptive_spec.host.drafters.eagle import AdaptiveDraftWorker

    events: list[Any] = []
    monkeypatch.setattr(
        EagleDraftWorker, "_draft_extend_for_decode", lambda *_: events.append("plan")
    )
    draft_worker: Any = object.__new__(AdaptiveDraftWorker)
    plan_stream = SimpleNamespace(wait_stream=events.append) if has_plan_stream else None
    vars(draft_worker).update(device="cpu", topk=1, relay_topk=1, plan_stream=plan_stream)
    open_round(()).plain = plain
    draft_worker._draft_extend_for_decode(None, None)
    assert events == [torch.cpu.current_stream()] * has_plan_stream + ["plan"]


@pytest.mark.parametrize(
    ("is_mixed", "padded", "told"),
    [
        (False, None, (("a", "b", "c"), (), True)),
        (True, None, (("a",), ("b", "c"), True)),
        (True, [9], (("a",), ("b", "c"), False)),  # padded for experts: no part runs alone
    ],
)
def test_rows_that_are_prefilled_and_those_that_decode_beside_them_are_told_apart(
    module: Any, monkeypatch: pytest.MonkeyPatch, is_mixed: bool, padded: Any, told: tuple[Any, ...]
) -> None:
    asked: list[tuple[Any, ...]] = []
    of_batches = importlib.import_module("sglang_adaptive_spec.host.batch")
    monkeypatch.setattr(of_batches, "row_keys", lambda batch: batch.reqs)
    controller = SimpleNamespace(before_extend=lambda *rows: asked.append(rows))
    batch = SimpleNamespace(
        forward_mode=SimpleNamespace(is_mixed=lambda: is_mixed),
        reqs=("a", "b", "c"),
        decoding_reqs=["b", "c"],
        global_num_tokens=padded,
    )
    slots = SimpleNamespace(forget=lambda: asked.append(("slots",)))
    worker = SimpleNamespace(controller=controller, _plain_rounds=SimpleNamespace(slots=slots))
    module.AdaptiveEagleWorker._before_extend(worker, batch, current_round())
    assert asked == [("slots",), told]


def test_an_idle_forward_reaches_the_controller_and_runs(
    module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[str] = []
    worker: Any = object.__new__(module.AdaptiveEagleWorker)
    worker.controller = SimpleNamespace(before_idle=lambda: counted.append("idle"))
    monkeypatch.setattr(
        module.EAGLEWorkerV2, "forward_batch_generation", lambda *_: counted.append("forward")
    )
    mode = SimpleNamespace(is_extend=lambda: False, is_idle=lambda: True)
    worker.forward_batch_generation(
        SimpleNamespace(forward_mode=mode, is_extend_in_batch=False, reqs=[])
    )
    assert counted == ["idle", "forward"]


# Kernels of its own come with each worker; sgl_kernel's are missing where nobody serves NGRAM.
ONE_ALONE = """
import sys
from sglang.srt.plugins import load_plugins
load_plugins()
from {host_module} import {host_class}
from sglang_adaptive_spec.host.serving.workers import worker_class
assert worker_class({host_class}).__bases__[-1] is {host_class}
print(sorted(name for name in sys.modules if name.endswith("ngram_worker")))
"""


@pytest.mark.full  # imports the host anew
def test_a_server_imports_the_worker_that_serves_and_no_other() -> None:
    code = ONE_ALONE.format(
        host_module="sglang.srt.speculative.eagle_worker_v2", host_class="EAGLEWorkerV2"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1:] == ["[]"], done.stderr


@pytest.mark.parametrize(
    ("host_module", "host_class"),
    [
        ("eagle_worker_v2", "EAGLEWorkerV2"),
        ("standalone_worker_v2", "StandaloneWorkerV2"),
        ("ngram_worker", "NGRAMWorker"),
    ],
)
def test_each_worker_of_the_host_has_one_of_ours(
    plugins_loaded: None, host_module: str, host_class: str
) -> None:
    from sglang_adaptive_spec.host.launch.ready import WORKERS
    from sglang_adaptive_spec.host.serving.workers import worker_class

    host = getattr(importlib.import_module(f"sglang.srt.speculative.{host_module}"), host_class)
    ours = worker_class(host)
    assert issubclass(ours, host)
    assert ours.__name__ in WORKERS
    with pytest.raises(RuntimeError, match="NGRAMWorker and got Another"):
        worker_class(type("Another", (host,), {}))
    with pytest.raises(RuntimeError, match=f"and got {host_class}"):  # another of that name
        worker_class(type(host_class, (host,), {}))
