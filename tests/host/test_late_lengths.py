"""Drafts get bounds where the scheduler knows no lengths, and verifies get the lengths."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

RESERVED = (24, 40, 17)  # tokens of each request
LENS = (11, 30, 9)
ROWS = (4, 2, 7)  # of the host's request pool


@pytest.fixture
def module(plugins_loaded: None) -> Any:
    from sglang_adaptive_spec.host.attention import late_lengths

    return late_lengths


def batch(**fields: Any) -> Any:
    """A decode batch as the scheduler hands it over, without lengths on the CPU."""
    reqs = [SimpleNamespace(kv=SimpleNamespace(kv_allocated_len=each)) for each in RESERVED]
    rows = torch.tensor(ROWS)
    both = {"req_pool_indices": rows, "req_pool_indices_cpu": rows}
    unknown = {"seq_lens_cpu": None, "seq_lens_sum": None}
    return SimpleNamespace(reqs=reqs, spec_info="drafts to verify", **both, **(unknown | fields))


def relay() -> Any:
    """The host's own relay, as far as lengths go."""
    from sglang.srt.managers.overlap_utils import FutureMap

    made: Any = object.__new__(FutureMap)
    made.new_seq_lens_buf = torch.zeros(8, dtype=torch.int64)
    made.new_seq_lens_buf[list(ROWS)] = torch.tensor(LENS)
    made.needs_cpu_seq_lens, made.publish_ready = False, None
    made.fwd_prepare_d2h_stream = None
    return made


def lengths(module: Any, is_on: bool = True) -> Any:
    made = module.LateLengths(is_on)
    made.connect(relay())
    return made


def test_a_draft_gets_what_is_reserved_and_its_verify_the_lengths(module: Any) -> None:
    late, asked = lengths(module), batch()
    assert late.bound(asked)
    assert asked.seq_lens_cpu.tolist() == list(RESERVED)
    assert asked.seq_lens_sum == sum(RESERVED)
    late.fetch(asked)
    assert asked.seq_lens_cpu.tolist() == list(LENS)
    assert asked.seq_lens_sum == sum(LENS)
    assert asked.spec_info == "drafts to verify"
    assert not late._relay.needs_cpu_seq_lens  # the scheduler goes on without


@pytest.mark.parametrize("is_on", [False, True])
def test_known_lengths_stay(module: Any, is_on: bool) -> None:
    known = torch.tensor(LENS)
    late, asked = lengths(module, is_on), batch(seq_lens_cpu=known, seq_lens_sum=sum(LENS))
    assert not late.bound(asked)
    assert asked.seq_lens_cpu is known


def test_other_backends_are_told_nothing(module: Any) -> None:
    late, asked = lengths(module, is_on=False), batch()
    assert not late.bound(asked)
    assert asked.seq_lens_cpu is None


def server(module: Any, changes: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Returns what `may_be_late` takes, of a server where it may be; ``changes`` by name."""

    def backend(name: str) -> Any:
        made: Any = object.__new__(changes.get(f"{name}_type", module.FlashInferAttnBackend))
        made.prefill_backend, made.dispatch_reason = "fa2", changes.get(f"{name}_reason")
        made.decode_use_tensor_cores = changes.get(f"{name}_tensor_cores", True)
        made.is_multimodal = changes.get(f"{name}_multimodal", False)
        return made

    flags = ("disable_overlap_schedule", "enable_mixed_chunk", "enable_dp_attention")
    view = SimpleNamespace(**{name: changes.get(name, False) for name in flags})
    draft = SimpleNamespace(
        plan_stream=changes.get("plan_stream"), draft_extend_attn_backend=backend("draft")
    )
    return view, backend("target"), draft


def test_flashinfer_under_the_overlap_schedule_may_be_late(module: Any) -> None:
    assert module.may_be_late(*server(module, {}))


@pytest.mark.parametrize(
    "changes",
    [
        {"disable_overlap_schedule": True},
        {"enable_mixed_chunk": True},
        {"enable_dp_attention": True},
        {"plan_stream": "a stream"},
        {"target_reason": "a sliding window"},
        {"draft_reason": "a sliding window"},
        {"draft_tensor_cores": False},
        {"target_multimodal": True},
        {"target_type": type("TritonAttnBackend", (), {})},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_needs_lengths_waits_for_them(module: Any, changes: dict[str, Any]) -> None:
    assert not module.may_be_late(*server(module, changes))


def test_where_the_host_checks_that_a_length_is_taken_once_the_batch_has_it(
    module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGLANG_IS_IN_CI", "1")
    late, asked = lengths(module), batch(seq_lens=torch.tensor(LENS))
    late._relay.new_seq_lens_buf.fill_(-1)  # as the host leaves it
    late.bound(asked)
    late.fetch(asked)
    assert asked.seq_lens_cpu.tolist() == list(LENS)
    assert asked.seq_lens_sum == sum(LENS)


@pytest.mark.parametrize("is_on", [False, True])
def test_the_scheduler_waits_only_for_backends_that_need_lengths(module: Any, is_on: bool) -> None:
    from sglang_adaptive_spec.host.serving.worker import AdaptiveEagleWorker

    worker: Any = object.__new__(AdaptiveEagleWorker)
    worker._late_lengths = module.LateLengths(is_on)
    target = SimpleNamespace(model_runner=SimpleNamespace(attn_backend="target's"))
    worker._target_worker = target
    worker._draft_worker = SimpleNamespace(
        draft_attn_backend="draft's", draft_extend_attn_backend="the extend's"
    )
    assert bool(worker.spec_v2_attn_backends) != is_on
