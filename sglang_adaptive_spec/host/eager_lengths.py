"""Forwards without graphs look up as much as their longest request may have, not whole contexts.

Where attention needs no lengths on the CPU (FA3, Triton) the host publishes none, and a forward
without a graph takes every request to be as long as the context: at 131,072 tokens FA3 gathers 1 GB
a round for 2,048 requests, where no speculation, which has the lengths, gathers a few MB (sglang
0.5.23 flashattention_backend.py:init_forward_metadata, triton_backend.py:init_forward_metadata).
What the scheduler has reserved for a request bounds its length, and is known without a sync.
On Triton that is for decodes and verifies: drafts without graphs are for small batches, or come in
parts (plain_round.py), and look up whole contexts as with static EAGLE.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from sglang.srt.plugins.hook_registry import HookType

from sglang_adaptive_spec.host.registration import hook_now

_ATTENTION = "sglang.srt.layers.attention"
_INIT = "init_forward_metadata"


class EagerLengths:
    """Knows the requests of the round in the making."""

    def __init__(self) -> None:
        self._reqs: Sequence[Any] = ()

    def begin_round(self, reqs: Sequence[Any]) -> None:
        """Takes the requests that the next forwards are about; the host's ``Req``."""
        self._reqs = reqs

    def longest(self) -> int:
        """Returns how many tokens the longest of them may have; 0 without requests."""
        return max((req.kv.kv_allocated_len for req in self._reqs), default=0)


# One per process, as a process runs one round at a time.
eager_lengths = EagerLengths()


def bound_page_table(
    init: Callable[..., Any], backend: Any, forward_batch: Any, *args: Any, **kwargs: Any
) -> Any:
    """Around FlashAttentionBackend.init_forward_metadata: its table is as wide as the longest."""
    if forward_batch.seq_lens_cpu is not None or not (longest := eager_lengths.longest()):
        return init(backend, forward_batch, *args, **kwargs)
    forward_batch.seq_lens_cpu = torch.full((forward_batch.batch_size,), longest)
    try:
        return init(backend, forward_batch, *args, **kwargs)
    finally:
        forward_batch.seq_lens_cpu = None


def bound_slots(
    init: Callable[..., Any], backend: Any, forward_batch: Any, *args: Any, **kwargs: Any
) -> Any:
    """Around TritonAttnBackend.init_forward_metadata: its index holds all requests."""
    if forward_batch.seq_lens_sum is not None or not (longest := eager_lengths.longest()):
        return init(backend, forward_batch, *args, **kwargs)
    forward_batch.seq_lens_sum = forward_batch.batch_size * longest
    try:
        return init(backend, forward_batch, *args, **kwargs)
    finally:
        forward_batch.seq_lens_sum = None


HOOKS = {
    "fa3": ("flashattention_backend.FlashAttentionBackend", bound_page_table),
    "triton": ("triton_backend.TritonAttnBackend", bound_slots),
}


def install_eager_hooks(backends: Collection[str]) -> None:
    """Hooks those of ``backends`` that the host gives no lengths; before any of them is made."""
    hooks = [HOOKS[name] for name in sorted(HOOKS.keys() & set(backends))]
    around = HookType.AROUND
    hook_now([(f"{_ATTENTION}.{owner}.{_INIT}", hook, around) for owner, hook in hooks])
