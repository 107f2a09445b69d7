"""Plants a fault, to show that a comparison of texts would see it: tiers share what they must not.

What a graph reads and only its capture writes must be the tier's own: on FA3, where the tokens of
each request begin in a verify. Here all tiers have one such buffer, and the last one built wins.
"""

import os
from typing import Any

import torch

FAULT_ENV = "ADAPTIVE_SPEC_PLANTED_FAULT"
BIND = (
    "sglang.srt.layers.attention.flashattention_backend"
    ".FlashAttentionBackend._bind_metadata_buffers"
)
_shared: dict[tuple[int, ...], torch.Tensor] = {}


def share_query_starts(backend: Any, *_args: Any, **_kwargs: Any) -> None:
    """Before FlashAttentionBackend._bind_metadata_buffers, for a capture: the fault."""
    metadata = getattr(backend, "target_verify_metadata", {})
    if (starts := metadata.get("cu_seqlens_q")) is not None:
        shared = _shared.setdefault(tuple(starts.shape), starts)
        metadata["cu_seqlens_q"] = shared.copy_(starts)


def register() -> None:
    """Installs the hook; does nothing in a server that no benchmark told to fail."""
    if FAULT_ENV not in os.environ:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(BIND, share_query_starts, HookType.BEFORE)
