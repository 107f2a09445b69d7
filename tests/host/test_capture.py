"""An out-of-memory inside a capture becomes one sentence; what else fails stays what it is."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_adaptive_spec.ladder import Ladder
from sglang_adaptive_spec.tiers import PLAIN_TIER, Tier, chain_tier


@pytest.fixture(scope="module")
def capture(plugins_loaded: None) -> Any:
    from sglang_adaptive_spec.host.startup import capture

    return capture


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        Exception("Capture cuda graph failed: CUDA out of memory."),  # as the host wraps it
    ],
    ids=["torch", "host"],
)
def test_out_of_memory_names_the_tier_and_what_to_change(capture: Any, error: Exception) -> None:
    with (
        pytest.raises(RuntimeError, match=r"tier 5: lower --mem-fraction-static") as caught,
        capture.OutOfMemoryGuard(chain_tier(5)),
    ):
        raise error
    assert caught.value.__cause__ is error


def test_a_plan_beyond_flashinfers_workspace_names_the_setting(capture: Any) -> None:
    words = "Buffer overflow when allocating memory for batch_prefill_tmp_v with size 385 in "
    with (
        pytest.raises(RuntimeError, match=r"tier 3-4-16 \(16 tokens .*SGLANG_FLASHINFER_WORKSPACE"),
        capture.OutOfMemoryGuard(Tier(3, 4, 16)),
    ):
        raise RuntimeError(words + "AlignedAllocator")


def test_what_all_graphs_share_is_not_what_a_block_took(
    capture: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block that allocates 3 GB, one of them in a buffer for the graphs of every tier."""
    free_gb, shared_gb = 10.0, 0.5
    monkeypatch.setattr(capture, "get_available_gpu_memory", lambda _device, _gpu_id: free_gb)
    meter = capture.Consumption("cuda", 0, lambda: shared_gb)
    with meter.running():
        free_gb, shared_gb = 7.0, 1.5
    assert meter.gb == 2.0
    assert meter.free_gb() == 8.5


@pytest.mark.parametrize(
    ("target", "draft", "shared_gb"),
    [("one", "one", 3.0), ("one", "other", 4.0), ("one", None, 3.0), (None, None, 0.0)],
)
def test_a_shared_buffer_counts_once(
    capture: Any, target: str | None, draft: str | None, shared_gb: float
) -> None:
    def gigabytes(size: int) -> Any:
        return SimpleNamespace(nbytes=size * 2**30)

    outputs = {
        "one": SimpleNamespace(_logits_buffers={128: gigabytes(2), 32: gigabytes(1)}),
        "other": SimpleNamespace(_logits_buffers={32: gigabytes(1)}),
        None: None,
    }
    runners = [SimpleNamespace(graph_shared_output=outputs[name]) for name in (target, draft)]
    assert capture.logits_gb(runners) == shared_gb


def test_another_error_passes_through(capture: Any) -> None:
    with pytest.raises(KeyError, match="other"), capture.OutOfMemoryGuard(chain_tier(5)):
        raise KeyError("other")


@pytest.mark.parametrize(
    ("tier", "cap", "larger"),
    [
        (PLAIN_TIER, 4096, (320, 512)),
        (PLAIN_TIER, 400, (320, 400)),
        (PLAIN_TIER, 300, (300,)),
        (PLAIN_TIER, 256, ()),
        (chain_tier(3), 4096, ()),
    ],
)
def test_zero_steps_decode_larger_batches_with_graphs(
    capture: Any, monkeypatch: pytest.MonkeyPatch, tier: Tier, cap: int, larger: tuple[int, ...]
) -> None:
    monkeypatch.setattr(capture, "check_cuda_graph_backend", lambda *_: False)
    monkeypatch.setattr(capture, "get_batch_sizes_to_capture", lambda *_: ([1, 8, 256], []))
    runner = SimpleNamespace(max_running_requests=cap, device="cuda")
    ladder = Ladder({1: [PLAIN_TIER, chain_tier(3)]})
    lists = capture.CaptureLists(runner, ladder, False, (320, 512))
    assert lists.decode_sizes(tier) == (*lists.sizes(tier), *larger) == (1, 8, 256, *larger)


def test_catch_ups_pad_up_further_than_decodes(
    capture: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 20, 24, 28]
    monkeypatch.setattr(capture, "check_cuda_graph_backend", lambda *_: False)
    monkeypatch.setattr(capture, "get_batch_sizes_to_capture", lambda *_: (listed, []))
    runner = SimpleNamespace(max_running_requests=4096, device="cuda")
    lists = capture.CaptureLists(runner, Ladder({1: [PLAIN_TIER]}), True, (320, 512))
    assert lists.decode_sizes(PLAIN_TIER) == (*listed, 320, 512)
    assert lists.catch_up_sizes() == (1, 2, 3, 4, 6, 8, 12, 16, 24, 28)


def test_where_nothing_is_captured_no_larger_batch_is(capture: Any) -> None:
    runner = SimpleNamespace(max_running_requests=4096, device="cpu")
    lists = capture.CaptureLists(runner, Ladder({1: [PLAIN_TIER]}), False, (320, 512))
    assert lists.decode_sizes(PLAIN_TIER) == lists.catch_up_sizes() == ()
