"""An out-of-memory inside a capture becomes one sentence; what else fails stays what it is."""

from typing import Any

import pytest
import torch

from sglang_adaptive_spec.policy.tiers import Tier, chain_tier


@pytest.fixture(scope="module")
def capture(plugins_loaded: None) -> Any:
    from sglang_adaptive_spec.host import capture

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


def test_another_error_passes_through(capture: Any) -> None:
    with pytest.raises(KeyError, match="other"), capture.OutOfMemoryGuard(chain_tier(5)):
        raise KeyError("other")
