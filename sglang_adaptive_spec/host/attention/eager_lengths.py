"""Forwards look up as much as their longest request may have, not whole contexts.

Where attention needs no lengths on the CPU (FA3, Triton) the host publishes none, and a forward
without a graph takes every request to be as long as the context: at 131,072 tokens FA3 gathers 1 GB
a round for 2,048 requests, where no speculation, which has the lengths, gathers a few MB (sglang
0.5.23 flashattention_backend.py:init_forward_metadata, triton_backend.py:init_forward_metadata).
What the scheduler has reserved for a request bounds its length, and is known without a sync.
On Triton that is for decodes and verifies: drafts without graphs are for small batches, or come in
parts (plain_round.py), and look up whole contexts as with static EAGLE. With graphs FA3 does the
same before every draft-extend, whose graph then fills its table once more.
"""

from collections.abc import Callable, Collection
from typing import Any

import torch

from sglang_adaptive_spec.host.batch import ForwardBatch, ForwardMode
from sglang_adaptive_spec.host.hooks import Hooks, hook_now
from sglang_adaptive_spec.host.host_round import current_round


def bound_page_table(
    init: Callable[..., Any],
    backend: object,
    forward_batch: ForwardBatch,
    *args: object,
    **kwargs: object,
) -> Any:
    """Around FlashAttentionBackend.init_forward_metadata: its table is as wide as the longest."""
    if forward_batch.seq_lens_cpu is not None or not (longest := current_round().longest()):
        return init(backend, forward_batch, *args, **kwargs)
    forward_batch.seq_lens_cpu = torch.full((forward_batch.batch_size,), longest)
    try:
        return init(backend, forward_batch, *args, **kwargs)
    finally:
        forward_batch.seq_lens_cpu = None


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


def bound_extend_table(
    apply: Callable[..., Any],
    backend: object,
    *args: object,
    forward_mode: ForwardMode,
    **kwargs: object,
) -> Any:
    """Around FlashAttentionBackend._apply_cuda_graph_metadata, before a graph is captured or run.

    Decodes and verifies look up live pages alone.
    """
    is_unbound = forward_mode.is_draft_extend_v2() and kwargs["seq_lens_cpu"] is None
    if is_unbound and (longest := current_round().longest()):
        kwargs["seq_lens_cpu"] = torch.full((1,), longest)
    return apply(backend, *args, forward_mode=forward_mode, **kwargs)


HOOKS: dict[str, Hooks] = {
    "fa3": {
        "FlashAttentionBackend.init_forward_metadata": bound_page_table,
        "FlashAttentionBackend._apply_cuda_graph_metadata": bound_extend_table,
    },
    "triton": {"TritonAttnBackend.init_forward_metadata": bound_slots},
}


def install_eager_hooks(backends: Collection[str]) -> None:
    """Hooks those of ``backends`` that the host gives no lengths; before any of them is made."""
    for name in sorted(HOOKS.keys() & set(backends)):
        hook_now(HOOKS[name])
