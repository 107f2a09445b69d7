"""On FlashInfer and Triton forwards begin with bounds of lengths that the CPU does not know yet.

A bound is what the scheduler has reserved for a request; it is known without a sync.

FlashInfer plans on the CPU, so the host waits for the lengths that the round in flight decides, and
the GPU idles while the next round is prepared (sglang 0.5.23 managers/overlap_utils.py:
resolve_seq_lens_cpu). A draft step is planned with bounds instead: the kernel reads lengths from
the device, and a part of a context that begins past its end is empty. The verify has several tokens
a request, whose partial results lie as far apart as a context has parts (flashinfer 0.6.18
attention/prefill.cuh: `num_kv_chunks`): it waits for the lengths, while the GPU drafts.

Triton needs no lengths on the CPU, so the host publishes none, and decodes and verifies without a
graph look up whole contexts (sglang 0.5.23 triton_backend.py:init_forward_metadata). Here they look
up as much as the longest request may have. Drafts without graphs are for small batches, or come in
parts (drafters/parts.py), and look up whole contexts as with static EAGLE. (FA3's bounds: fa3.py.)
"""

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.environ import envs
from sglang.srt.layers.attention.flashinfer_backend import FlashInferAttnBackend

from sglang_adaptive_spec.host.attention.flashinfer.plans import has_uniform_plans
from sglang_adaptive_spec.host.batch import Batch, ForwardBatch
from sglang_adaptive_spec.host.engine import DraftWorker
from sglang_adaptive_spec.host.host_round import current_round
from sglang_adaptive_spec.host.server_args import ServerArgs, num_replicas


def may_be_late(view: ServerArgs, target_backend: Any, draft_worker: DraftWorker) -> bool:
    """Returns whether this server's drafts can do without lengths.

    Kernels without tensor cores count a part's tokens without a sign. Positions of multimodal
    models follow from lengths.

    Args:
        view: The resolved arguments.
        target_backend: Of the target, as it serves.
        draft_worker: The host's.
    """
    return (
        _come_late(view)
        and draft_worker.plan_stream is None
        and all(
            type(backend) is FlashInferAttnBackend  # not what derives from it
            and has_uniform_plans(backend)
            and backend.decode_use_tensor_cores
            and not backend.is_multimodal
            for backend in (target_backend, draft_worker.draft_extend_attn_backend)
        )
    )


def decodes_without(view: ServerArgs, target_backend: Any) -> bool:
    """Returns whether this server's decodes can do without lengths on the CPU.

    The host has NGRAM wait for them in every round, since its verify's mask takes them (sglang
    0.5.23 managers/overlap_utils.py:decide_needs_cpu_seq_lens).

    Args:
        view: The resolved arguments.
        target_backend: Of the target, as it serves.
    """
    return _come_late(view) and not getattr(target_backend, "needs_cpu_seq_lens", True)


def _come_late(view: ServerArgs) -> bool:
    """Returns whether a round could begin earlier if its lengths came later, and nobody else asks.

    Extends beside decodes need theirs, and ranks with requests of their own.
    """
    return (
        not view.disable_overlap_schedule
        and not view.enable_mixed_chunk
        and num_replicas(view) == 1
    )


class LateLengths:
    """Gives the draft of a round bounds, and its verify the lengths."""

    def __init__(self, is_on: bool) -> None:
        """Takes whether it has anything to do (`may_be_late`)."""
        self.is_on = is_on
        self._relay: Any = None  # the host's FutureMap
        self._is_spent = envs.SGLANG_IS_IN_CI.get()  # it checks that a length is taken once

    def connect(self, relay: Any) -> None:
        """Takes the relay that rounds publish their lengths to, before the first one."""
        self._relay = relay

    def ask_only_to_verify(self) -> None:
        """Has no round begin with a wait for lengths; who verifies fetches them."""
        self._relay.needs_cpu_seq_lens = False

    def bound(self, batch: Batch) -> bool:
        """Gives ``batch``, about to draft, what its requests may have at most; or needs not to."""
        is_bound = self.is_on and batch.seq_lens_cpu is None
        if is_bound:
            lens = [req.kv.kv_allocated_len for req in batch.reqs]
            batch.seq_lens_cpu, batch.seq_lens_sum = torch.tensor(lens), sum(lens)
        return is_bound

    def fetch(self, batch: Batch) -> None:
        """Gives ``batch``, bound before and about to be verified, its lengths; waits for them."""
        if self._is_spent:
            batch.seq_lens_cpu = batch.seq_lens.cpu()
            batch.seq_lens_sum = int(batch.seq_lens_cpu.sum())
            return
        asked = copy.copy(batch)
        asked.spec_info = SimpleNamespace(future_indices=batch.req_pool_indices)
        self._relay.needs_cpu_seq_lens = True
        try:
            self._relay.resolve_seq_lens_cpu(asked)
        finally:
            self._relay.needs_cpu_seq_lens = False
        batch.seq_lens_cpu, batch.seq_lens_sum = asked.seq_lens_cpu, asked.seq_lens_sum


def bound_slots(
    init: Callable[..., Any],
    backend: object,
    forward_batch: ForwardBatch,
    *args: object,
    **kwargs: object,
) -> Any:
    """Around TritonAttnBackend.init_forward_metadata: its index holds all requests."""
    if forward_batch.seq_lens_sum is not None or not (longest := current_round().longest()):
        return init(backend, forward_batch, *args, **kwargs)
    forward_batch.seq_lens_sum = forward_batch.batch_size * longest
    try:
        return init(backend, forward_batch, *args, **kwargs)
    finally:
        forward_batch.seq_lens_sum = None
