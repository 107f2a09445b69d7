"""The logits of DeepSeek's sparse indexer from PyTorch, where DeepGEMM's own cannot run.

DeepGEMM's library is built for one torch (sgl-deep-gemm 0.2.0: 2.13) and reads tensors of another
one wrongly. What is compared are texts of one server and another, so a slower sum of the same
numbers will do: relu(query * key), weighted and added over the heads, times the key's scale.
Attention over the tokens that they pick, and the picking, stay SGLang's own kernels.
"""

import importlib
import os
from typing import Any

import torch

INDEXER_ENV = "BENCH_TORCH_INDEXER"
ROWS_AT_ONCE = 256  # of a prefill


def _weighted(queries: torch.Tensor, keys: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """[n, heads, dim], [n or 1, tokens, dim] and [n, heads] to [n, tokens], in float32."""
    products = torch.matmul(queries.float(), keys.float().transpose(-1, -2))
    return torch.matmul(weights.float().unsqueeze(1), products.relu()).squeeze(1)


def paged_schedule(
    context_lens: torch.Tensor, _block_size: int, num_sms: int, *_args: object, **_kwargs: object
) -> torch.Tensor:
    """Returns a plan of the shape of DeepGEMM's, which nobody reads."""
    return torch.zeros((num_sms + 1, 2), dtype=torch.int32, device=context_lens.device)


def paged_logits(
    queries: torch.Tensor,
    cache: torch.Tensor,
    weights: torch.Tensor,
    _context_lens: torch.Tensor,
    block_table: torch.Tensor,
    _schedule: torch.Tensor,
    max_len: int,
    **_kwargs: object,
) -> torch.Tensor:
    """Returns [rows * next_n, max_len] of keys in the cache; what is past a context is garbage.

    Args:
        queries: [rows, next_n, heads, dim], fp8.
        cache: [blocks, block_size, 1, dim + 4] bytes: a block's keys, then its scales.
        weights: [rows * next_n, heads].
        block_table: [rows, blocks of the longest context]; unused entries are anything.
        max_len: Tokens of the longest context.
    """
    rows, next_n, heads, dim = queries.shape
    num_blocks, block_size = cache.shape[:2]
    blocks = cache.view(num_blocks, -1)
    every_key = blocks[:, : block_size * dim].view(queries.dtype)
    every_scale = blocks[:, block_size * dim :].view(torch.float32)
    table = block_table.long().clamp(0, num_blocks - 1)
    keys = every_key[table].view(rows, -1, dim)
    scales = every_scale[table].view(rows, 1, -1)
    per_row = _weighted(
        queries.reshape(rows * next_n, heads, dim), keys.repeat_interleave(next_n, 0), weights
    )
    return (per_row.view(rows, next_n, -1) * scales).view(rows * next_n, -1)[:, :max_len]


def ragged_logits(
    queries: torch.Tensor,
    keys_and_scales: tuple[torch.Tensor, torch.Tensor],
    weights: torch.Tensor,
    *_args: object,
    **_kwargs: object,
) -> torch.Tensor:
    """Returns [rows, tokens] of a prefill: queries [rows, heads, dim], keys [tokens, dim]."""
    keys, scales = keys_and_scales
    parts = [
        _weighted(part, keys.unsqueeze(0), weight)
        for part, weight in zip(
            queries.split(ROWS_AT_ONCE), weights.split(ROWS_AT_ONCE), strict=True
        )
    ]
    return torch.cat(parts) * scales.view(1, -1)


def register() -> None:
    """Takes the place of DeepGEMM's functions; does nothing in a server that was not told so."""
    if INDEXER_ENV not in os.environ:
        return
    module = importlib.import_module("deep_gemm")
    stand_ins: dict[str, Any] = {
        "get_paged_mqa_logits_metadata": paged_schedule,
        "fp8_paged_mqa_logits": paged_logits,
        "fp8_mqa_logits": ragged_logits,
    }
    for name, stand_in in stand_ins.items():
        setattr(module, name, stand_in)
