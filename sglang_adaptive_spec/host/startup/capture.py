"""Narrows the host's CUDA-graph capture list to what a tier needs, around the captures alone.

The host reads ``cuda_graph_config.decode.bs`` for three things: what to capture, how large the
shared logits buffer is, and which shapes to warm up (sglang 0.5.23 graph_shared_output.py,
runner/base_cuda_graph_runner.py). Only the first may shrink, so the list is narrowed inside the
capture calls, after that buffer exists, and put back. ``max_bs`` sizes the KV pool: never touched.
"""

import contextlib
import gc
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from sglang.srt.model_executor.cuda_graph_config import Backend, Phase, check_cuda_graph_backend
from sglang.srt.model_executor.runner.base_cuda_graph_runner import get_batch_sizes_to_capture
from sglang.srt.runtime_context import get_exec
from sglang.srt.utils import get_available_gpu_memory

from sglang_adaptive_spec.host.engine import ModelRunner
from sglang_adaptive_spec.ladder import Ladder
from sglang_adaptive_spec.runtime.graphs import graph_batch_sizes, thinned
from sglang_adaptive_spec.tiers import PLAIN_TIER, Tier

# FlashInfer cuts its workspace with a class of this name and raises when it is used up
# (flashinfer 0.6 allocator.h).
WORKSPACE_ERROR = "AlignedAllocator"


class CaptureLists:
    """Knows the graph batch sizes of every tier; usable once the memory pools exist."""

    def __init__(
        self,
        target_runner: ModelRunner,
        ladder: Ladder,
        is_thinned: bool,
        larger_sizes: Sequence[int],
    ) -> None:
        self._target_runner = target_runner
        self.ladder = ladder  # given the tiers left out so far
        self._is_thinned = is_thinned  # drafting tiers need not have every size
        self._larger_sizes = larger_sizes  # beyond the host's list, for decodes at zero steps

    @property
    def max_batch_size(self) -> int:
        """Largest decode batch the scheduler can form."""
        return int(self._target_runner.max_running_requests)

    def sizes(self, tier: Tier) -> tuple[int, ...]:
        """Returns the batch sizes to capture for ``tier``; empty where nothing is captured."""
        if self._target_runner.device == "cpu":
            return ()
        if check_cuda_graph_backend(Phase.DECODE, Backend.DISABLED):
            return ()
        # Verify and the draft stages are aligned by their own widths, so their lists may differ.
        needed: set[int] = set()
        for width in (1, tier.num_draft_tokens):
            captured, _ = get_batch_sizes_to_capture(self._target_runner, width)
            if self._is_thinned and tier != PLAIN_TIER:
                captured = thinned(captured)
            sizes = graph_batch_sizes(tier, captured, self.ladder, self.max_batch_size)
            needed.update(sizes)
        return tuple(sorted(needed))

    def decode_sizes(self, tier: Tier) -> tuple[int, ...]:
        """Returns `sizes`, and for zero steps those beyond the host's list that may run."""
        sizes = self.sizes(tier)
        if tier != PLAIN_TIER or not sizes:
            return sizes
        most = self.max_batch_size  # no batch pads up beyond it
        larger = {min(size, most) for size in self._larger_sizes}
        captured = [*sizes, *(size for size in larger if size > sizes[-1])]
        return tuple(graph_batch_sizes(tier, captured, self.ladder, most))

    def catch_up_sizes(self) -> tuple[int, ...]:
        """Returns the sizes of zero steps' draft-extends: one round in 15 pads up further."""
        return tuple(thinned(self.sizes(PLAIN_TIER)))

    @contextlib.contextmanager
    def narrowed(self, sizes: tuple[int, ...]) -> Iterator[None]:
        """Lets the host capture ``sizes`` and nothing else inside the block."""
        decode = get_exec().graph.cuda_graph_config.decode
        before = decode.bs, decode.backend
        if sizes:
            decode.bs = list(sizes)
        else:
            decode.backend = Backend.DISABLED  # the host cannot capture an empty list
        try:
            yield
        finally:
            decode.bs, decode.backend = before


class Consumption:
    """Adds up the seconds and GB that its blocks took on this rank, apart from what tiers share."""

    def __init__(self, device: str, gpu_id: int, shared_gb: Callable[[], float]) -> None:
        self._device, self._gpu_id, self._shared_gb = device, gpu_id, shared_gb
        self.seconds = 0.0
        self.gb = 0.0

    def free_gb(self) -> float:
        """Returns the free device memory of this rank plus what all tiers share."""
        return float(get_available_gpu_memory(self._device, self._gpu_id)) + self._shared_gb()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Measures the block."""
        start_s, before_gb = time.perf_counter(), self.free_gb()
        yield
        self.seconds += time.perf_counter() - start_s
        self.gb += before_gb - self.free_gb()


def logits_gb(runners: Iterable[ModelRunner]) -> float:
    """Returns the GB of the logits buffers that the graphs of all tiers share."""
    outputs = {id(out): out for runner in runners if (out := runner.graph_shared_output)}
    buffers = (buffer for out in outputs.values() for buffer in out._logits_buffers.values())
    return sum(buffer.nbytes for buffer in buffers) / 2**30


class GarbageHold:
    """Holds the garbage collector off from the first capture to the last.

    The host collects and freezes around each of its captures, twice for every stage of every tier;
    with the objects of a whole server that took longer than capturing seven graphs. Between `hold`
    and `release` the collector is off altogether, so the host's own steps can be left out.
    """

    def __init__(self) -> None:
        self.is_holding = False

    def hold(self) -> None:
        """Collects once, then stops collecting."""
        gc.collect()
        gc.freeze()
        gc.disable()
        self.is_holding = True

    def release(self) -> None:
        """Puts the collector back and collects once."""
        self.is_holding = False
        gc.enable()
        gc.unfreeze()
        gc.collect()

    def around_freeze_gc(
        self, freeze_gc: Callable[..., Any], *args: object, **kwargs: object
    ) -> Any:
        """Wraps the host's ``freeze_gc`` (AROUND hook): nothing to do while holding."""
        return contextlib.nullcontext() if self.is_holding else freeze_gc(*args, **kwargs)


class OutOfMemoryGuard:
    """Turns an out-of-memory inside a capture into one sentence that says what to change."""

    def __init__(self, tier: Tier) -> None:
        self._tier = tier

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        # The host wraps it in a bare Exception (sglang 0.5.23 decode_cuda_graph_runner.py).
        if WORKSPACE_ERROR in str(error):
            raise RuntimeError(
                f"ADAPTIVE_EAGLE: FlashInfer's workspace does not hold the plan of tier "
                f"{self._tier.label} ({self._tier.num_draft_tokens} tokens a request) at its "
                "largest batch: raise SGLANG_FLASHINFER_WORKSPACE_SIZE (536870912 is 512 MB), or "
                "name the tier in slots of smaller batches only."
            ) from error
        if isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error).lower():
            raise RuntimeError(
                f"ADAPTIVE_EAGLE ran out of memory while capturing tier {self._tier.label}"
                ": lower --mem-fraction-static or --cuda-graph-max-bs-decode, or remove the step "
                "from the config."
            ) from error


class StartupCapture:
    """The host's own capture of the start-up tier: what that tier needs, and what it took.

    Args:
        captures: Graph batch sizes of the tiers.
        startup: The tier.
        target_runner: The host's; its draft's captures come by `of_draft`.
        shared_gb: Returns what all tiers share of the device.
    """

    def __init__(
        self,
        captures: CaptureLists,
        startup: Tier,
        target_runner: ModelRunner,
        shared_gb: Callable[[], float],
    ) -> None:
        self._captures, self._startup, self._target_runner = captures, startup, target_runner
        device, gpu_id = target_runner.device, target_runner.gpu_id
        self.backends = Consumption(device, gpu_id, shared_gb)
        self.graphs = Consumption(device, gpu_id, shared_gb)
        self.catch_ups = Consumption(device, gpu_id, shared_gb)
        self.packed = Consumption(device, gpu_id, shared_gb)
        self.shared_gb = shared_gb
        self.is_measured = False  # what is captured from now on belongs to other tiers
        self.is_over = False  # all tiers are built

    @contextlib.contextmanager
    def _running(self) -> Iterator[None]:
        narrowed = self._captures.narrowed(self._captures.sizes(self._startup))
        with self.graphs.running(), OutOfMemoryGuard(self._startup), narrowed:
            yield

    def of_draft(self) -> contextlib.AbstractContextManager[None]:
        """Around the draft's captures; those of later tiers are narrowed and measured already."""
        return contextlib.nullcontext() if self.is_measured else self._running()

    def around_capture(self, capture: Callable[..., Any], *args: object, **kwargs: object) -> Any:
        """Around ``capture_decode_graph``: the target captures what the start-up tier needs."""
        if self.is_over or kwargs.get("model_runner") is not self._target_runner:
            return capture(*args, **kwargs)
        with self._running():
            return capture(*args, **kwargs)

    def around_get_backend(
        self, get_backend: Callable[..., Any], runner: ModelRunner, *args: object, **kwargs: object
    ) -> Any:
        """Around ``ModelRunner._get_attention_backend``: tiers share the workspace in use already.

        The host gives every tier a private one (FlashInfer: 384 MB). It holds what one kernel
        leaves to the next on the same stream; two tiers never run at once, so they can share it
        just as draft, verify and prefill do (sglang 0.5.23 layers/attention/flashinfer_backend.py).
        """
        if runner is self._target_runner and not self.is_over:
            kwargs = {**kwargs, "init_new_workspace": False}
        return get_backend(runner, *args, **kwargs)
