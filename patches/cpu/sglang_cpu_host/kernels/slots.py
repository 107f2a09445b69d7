"""KV-slot bookkeeping of the EAGLE rounds.

`req_to_token` [num_requests, pool_len] int32 maps a request's position to its KV slot. All other
tensors are small, so loops over Python lists are faster than indexing kernels.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor


def assign_req_to_token_pool_cpu(
    req_pool_indices: Tensor,  # [bs]
    req_to_token: Tensor,  # [num_requests, pool_len], written
    start_offset: Tensor,  # [bs]
    end_offset: Tensor,  # [bs]
    out_cache_loc: Tensor,  # [sum(end - start)]
    pool_len: int,
) -> None:
    """Writes newly allocated slots into each request's positions [start, end)."""
    done = 0
    for request, start, end in _rows(req_pool_indices, start_offset, end_offset):
        new = out_cache_loc[done : done + end - start]
        req_to_token[request, start:end] = new.to(req_to_token.dtype)
        done += end - start


def assign_extend_cache_locs_cpu(
    req_pool_indices: Tensor,  # [bs]
    req_to_token: Tensor,  # [num_requests, pool_len]
    start_offset: Tensor,  # [bs]
    end_offset: Tensor,  # [bs]
    out_cache_loc: Tensor,  # [sum(end - start)], written
    pool_len: int,
) -> None:
    """Reads the slots of each request's positions [start, end)."""
    done = 0
    for request, start, end in _rows(req_pool_indices, start_offset, end_offset):
        found = req_to_token[request, start:end]
        out_cache_loc[done : done + end - start] = found.to(out_cache_loc.dtype)
        done += end - start


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: Tensor,  # [bs]
    req_to_token: Tensor,  # [num_requests, pool_len]
    seq_lens: Tensor,  # [bs]
    out_cache_loc: Tensor,  # [bs * topk * num_steps], written
    pool_len: int,
    topk: int,
    num_steps: int,
) -> None:
    """Reads the topk * num_steps slots that follow each request's prefix."""
    num_slots = topk * num_steps
    for i, (request, seq_len) in enumerate(_rows(req_pool_indices, seq_lens)):
        found = req_to_token[request, seq_len : seq_len + num_slots]
        out_cache_loc[i * num_slots : (i + 1) * num_slots] = found.to(out_cache_loc.dtype)


def build_draft_decode_metadata_cpu(
    req_to_token: Tensor,  # [num_requests, pool_len]
    req_pool_indices: Tensor,  # [bs]
    seq_lens: Tensor,  # [bs]
    topk: int,
    num_steps: int,
    pool_len: int,
) -> Tensor:
    """Returns a req_to_token for the branches: row i * topk + t is request i's prefix, then the
    num_steps draft slots of branch t."""
    num_columns = req_to_token.shape[1]
    rows = req_to_token.new_zeros((req_pool_indices.numel() * topk, num_columns))
    for i, (request, seq_len) in enumerate(_rows(req_pool_indices, seq_lens)):
        for branch in range(topk):
            row = rows[i * topk + branch]
            row[:seq_len] = req_to_token[request, :seq_len]
            first = seq_len + branch * num_steps
            drafts = req_to_token[request, first : first + num_steps]
            row[seq_len : seq_len + drafts.numel()] = drafts
    return rows


def fill_bonus_tokens_cpu(
    accept_tokens: Tensor,  # [bs * accept_stride]
    accept_lens: Tensor,  # [bs], bonus token included
    bonus_tokens: Tensor,  # [bs], written
    accept_stride: int,
) -> None:
    """Copies each request's last accepted token, which is the target's own."""
    bs = accept_lens.numel()
    last = torch.arange(bs) * accept_stride + accept_lens.long() - 1
    bonus_tokens[:bs] = accept_tokens.reshape(-1)[last].to(bonus_tokens.dtype)


def fill_accept_out_cache_loc_cpu(
    accept_index: Tensor,  # [bs, num_steps + 1] into out_cache_loc, -1 = rejected
    out_cache_loc: Tensor,
    accept_out_cache_loc: Tensor,  # written from its start
) -> None:
    """Packs the slots of accepted tokens, in order."""
    accepted = accept_index.reshape(-1)
    accepted = accepted[accepted > -1].long()
    slots = out_cache_loc[accepted]
    accept_out_cache_loc[: slots.numel()] = slots.to(accept_out_cache_loc.dtype)


def rotate_input_ids_cpu(
    input_ids: Tensor,  # [num_tokens], written
    start_loc: Tensor,  # [bs]
    seq_lens: Tensor,  # [bs]
    topk_index: Tensor,  # [bs, 1] or [bs]
    select_index: Tensor | None = None,  # [bs] positions of the new token, else the last ones
) -> None:
    """Shifts each request's tokens left by one and puts the next token in the free place."""
    new_tokens = topk_index.reshape(-1)
    for i, (start, length) in enumerate(_rows(start_loc, seq_lens)):
        if length == 0:
            continue
        end = start + length
        input_ids[start : end - 1] = input_ids[start + 1 : end].clone()
        place = end - 1 if select_index is None else int(select_index[i])
        input_ids[place] = new_tokens[i]


def copy_all_layer_kv_cache_cpu(
    data_ptrs: Tensor,  # [num_buffers] addresses of K and V buffers of all layers
    strides: Tensor,  # [num_buffers] bytes per slot
    tgt_loc: Tensor,  # [num_slots]
    src_loc: Tensor,  # [num_slots]
) -> None:
    """Moves KV slots in every buffer; all sources are read before any target is written."""
    sources, targets = src_loc.tolist(), tgt_loc.tolist()
    if sources == targets:
        return
    for base, stride in _rows(data_ptrs, strides):
        contents = [ctypes.string_at(base + source * stride, stride) for source in sources]
        for target, content in zip(targets, contents, strict=True):
            ctypes.memmove(base + target * stride, content, stride)


def _rows(*columns: Tensor) -> list[tuple[int, ...]]:
    """Integer tensors of one length as a list of rows."""
    return list(zip(*(column.tolist() for column in columns), strict=True))
