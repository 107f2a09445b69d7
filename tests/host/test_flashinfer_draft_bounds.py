"""Draft steps on FlashInfer are planned with bounds that the CPU computes, as the kernel would."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

LENS = [5, 9, 1]  # prefixes of a batch


@pytest.mark.parametrize("topk", [1, 3])
def test_bounds_on_the_cpu_are_those_that_the_kernel_writes(
    plugins_loaded: None, topk: int
) -> None:
    from sglang_adaptive_spec.host.attention.flashinfer.draft_bounds import bounds_on_cpu

    num_steps = 3
    got = bounds_on_cpu(torch.tensor(LENS), topk, num_steps)
    expected = []
    for step in range(1, num_steps + 1):
        bounds = [0]
        for length in LENS:
            for _ in range(topk):
                bounds.append(bounds[-1] + length + step)
        expected.append(bounds)
    assert got.dtype == torch.int32
    assert got.tolist() == expected


def draft_steps(monkeypatch: pytest.MonkeyPatch, **attributes: Any) -> tuple[Any, list[Any]]:
    """The host's draft steps, whose kernel writes nothing, and what each step was planned with."""
    from sglang.srt.layers.attention import flashinfer_backend as host

    steps: Any = object.__new__(host.FlashInferMultiStepDraftBackend)
    seen: list[Any] = []

    class Kernel:
        def __getitem__(self, _grid: Any) -> Any:
            return lambda *args: seen.append(args[4])

    vars(steps).update(
        topk=1,
        speculative_num_steps=3,
        page_size=1,
        pool_len=64,
        kv_indptr=torch.full((3, 9), -1, dtype=torch.int32),
        req_to_token_pool=SimpleNamespace(req_to_token=None),
        generate_draft_decode_kv_indices=Kernel(),
        draft_window_size=0,
        draft_sink_size=0,
        **attributes,
    )
    return steps, seen


@pytest.mark.parametrize("are_known", [True, False])
def test_draft_steps_are_planned_with_bounds_of_the_cpu(
    plugins_loaded: None, monkeypatch: pytest.MonkeyPatch, are_known: bool
) -> None:
    from sglang.srt.layers.attention import flashinfer_backend as host

    from sglang_adaptive_spec.host.attention.flashinfer.draft_bounds import know_bounds

    steps, seen = draft_steps(monkeypatch)
    spec = SimpleNamespace(is_draft_input=lambda: True)
    batch = SimpleNamespace(
        batch_size=3,
        seq_lens_sum=sum(LENS),
        seq_lens_cpu=torch.tensor(LENS) if are_known else None,
        req_pool_indices=None,
        seq_lens=None,
        positions=None,
        spec_info=spec,
    )
    planned: list[tuple[list[int], torch.Tensor]] = []

    def call(_step: int, forward_batch: Any) -> None:
        bounds = host.global_override_indptr_cpu
        planned.append((bounds.tolist(), forward_batch.spec_info.kv_indptr))

    template = host.FlashInferMultiStepDraftBackend.common_template
    know_bounds(template, steps, batch, torch.zeros((3, 256), dtype=torch.int32), call)
    starts = [0, 5, 14, 15]
    expected = [
        [start + step * row for row, start in enumerate(starts)] if are_known else [-1] * 4
        for step in (1, 2)
    ]
    assert [bounds for bounds, _ in planned] == expected
    assert all(type(on_device) is torch.Tensor for _, on_device in planned)
    (given,) = seen
    assert given.data_ptr() == steps.kv_indptr.data_ptr()
    assert steps.kv_indptr[:, :4].cpu().tolist() == [[-1] * 4] * 3  # beyond the draft: the device's


def test_windows_of_drafts_are_read_from_the_device(
    plugins_loaded: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sglang_adaptive_spec.host.attention.flashinfer.draft_bounds import know_bounds

    steps, _ = draft_steps(monkeypatch)
    steps.draft_window_size = 16
    batch = SimpleNamespace(seq_lens_cpu=torch.tensor(LENS))
    assert know_bounds(lambda *args: args, steps, batch, "buffer") == (steps, batch, "buffer")
    assert type(steps.kv_indptr) is torch.Tensor
