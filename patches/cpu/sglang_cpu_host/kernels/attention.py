"""Attention over the paged KV cache: one request at a time, torch's SDPA in float32.

Stands in for torch.ops.sgl_kernel.{extend,decode}_attention_cpu as sglang 0.5.20 to 0.5.23
layers/attention/intel_amx_backend.py calls them. What the tiny and small targets do not use
(cross attention, logit cap, scaled KV) is refused, never ignored.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


def extend_attention_cpu(
    q: Tensor,  # [num_tokens, num_heads, head_dim]
    k: Tensor | None,  # [num_tokens, num_kv_heads, head_dim], or None: all is in the cache
    v: Tensor | None,
    o: Tensor,  # [num_tokens, num_heads, v_head_dim], written
    k_buffer: Tensor,  # [num_slots, num_kv_heads, head_dim]
    v_buffer: Tensor,
    k_scale: float,
    v_scale: float,
    req_to_token: Tensor,  # [num_requests, pool_len]
    req_pool_indices: Tensor,  # [bs]
    seq_lens: Tensor,  # [bs], new tokens included
    extend_seq_lens: Tensor,  # [bs]
    extend_start_loc: Tensor,  # [bs] into q
    max_len_extend: int,
    sm_scale: float,
    logit_cap: float,
    is_cross_attn: bool,
    sliding_window_size: int,  # tokens seen, the own one included; 0: all
    encoder_lens: Tensor | None,
    sinks: Tensor | None,  # [num_heads] or None: scores of nothing
    tree_mask: Tensor | None = None,  # flat, [n, n] per request over its n new tokens
    is_causal: bool = True,
) -> None:
    """Attends from each request's new tokens to its prefix and, causally or by tree, to them.

    The prefix is read from the cache, the new tokens from ``k`` and ``v``: prefill of MLA attends
    to keys and values of every head and caches a latent instead.
    """
    is_two_sided = sliding_window_size > 0 and not is_causal and tree_mask is None
    _refuse(k_scale, v_scale, logit_cap, is_cross_attn, is_two_sided)
    done = 0
    # Attention DP pads a batch to that of the fullest rank; such rows come last and have no length.
    places = (req_pool_indices, extend_seq_lens, extend_start_loc)
    padded = (place[: len(seq_lens)].tolist() for place in places)
    requests = zip(seq_lens.tolist(), *padded, strict=True)
    for seq_len, request, n, start in requests:
        if n == 0:
            continue
        mask = torch.ones((n, seq_len), dtype=torch.bool)
        if is_causal:
            mask = mask.tril(seq_len - n)
        if tree_mask is not None:
            mask[:, seq_len - n :] = tree_mask.view(-1)[done : done + n * n].view(n, n).bool()
            done += n * n
        if sliding_window_size > 0:
            mask &= _within(sliding_window_size, mask[:, seq_len - n :].sum(1) - 1, seq_len - n)
        slots, new = req_to_token[request, :seq_len], slice(start, start + n)
        if k is None or v is None:
            key, value = k_buffer.index_select(0, slots), v_buffer.index_select(0, slots)
        else:
            key, value = k[new], v[new]
            if seq_len > n:
                prefix = slots[: seq_len - n]
                key = torch.cat([k_buffer.index_select(0, prefix).to(key.dtype), key])
                value = torch.cat([v_buffer.index_select(0, prefix).to(value.dtype), value])
        o[new] = _attend(q[new], key, value, mask, sm_scale, sinks)


def decode_attention_cpu(
    q: Tensor,  # [bs, num_heads, head_dim]
    k_buffer: Tensor,  # [num_slots, num_kv_heads, head_dim], written at loc
    v_buffer: Tensor,
    k_scale: float,
    v_scale: float,
    o: Tensor,  # [bs, num_heads, head_dim], written
    k: Tensor | None,  # [bs, ...] the new tokens' keys, or None when they are in the cache
    v: Tensor | None,
    loc: Tensor,  # [bs] slots of the new tokens
    attn_logits: Tensor,  # scratch space of the compiled kernel
    req_to_token: Tensor,  # [num_requests, pool_len]
    req_pool_indices: Tensor,  # [bs]
    seq_lens: Tensor,  # [bs], new token included
    sm_scale: float,
    logit_cap: float,
    is_cross_attn: bool,
    sliding_window_size: int,  # tokens seen, the own one included; 0: all
    encoder_lens: Tensor | None,
    sinks: Tensor | None,  # [num_heads] or None: scores of nothing
) -> None:
    """Stores each request's new key and value, then attends from its one new token."""
    _refuse(k_scale, v_scale, logit_cap, is_cross_attn)
    if k is not None and v is not None:
        k_buffer[loc] = k.view(-1, *k_buffer.shape[1:]).to(k_buffer.dtype)
        v_buffer[loc] = v.view(-1, *v_buffer.shape[1:]).to(v_buffer.dtype)
    rows = zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)
    for i, (request, seq_len) in enumerate(rows):
        first = max(0, seq_len - sliding_window_size) if sliding_window_size > 0 else 0
        slots = req_to_token[request, first:seq_len]
        # index_select, since indexing with a tensor copies four times slower here.
        key, value = k_buffer.index_select(0, slots), v_buffer.index_select(0, slots)
        o[i : i + 1] = _attend(q[i : i + 1], key, value, None, sm_scale, sinks)


def _within(
    window: int,
    depths: Tensor,  # [n] of the new tokens behind the prefix; siblings of a tree share one
    num_prefix: int,
) -> Tensor:
    """Says which tokens lie less than a window before each new one: [n, num_prefix + n] bool."""
    queries = num_prefix + depths
    keys = torch.cat([torch.arange(num_prefix), queries])
    return keys[None] > queries[:, None] - window


def _attend(
    q: Tensor,  # [n, num_heads, head_dim]
    k: Tensor,  # [seq_len, num_kv_heads, head_dim]
    v: Tensor,  # [seq_len, num_kv_heads, v_head_dim]
    mask: Tensor | None,  # [n, seq_len] bool
    scale: float,
    sinks: Tensor | None,  # [num_heads]
) -> Tensor:
    """Attends from n tokens of one request to k and v: [n, num_heads, v_head_dim], as q is."""
    query, key, value = (x.transpose(0, 1)[None].float() for x in (q, k, v))
    is_grouped = q.shape[1] != k.shape[1]
    if sinks is not None:  # one more key, of which only the score counts
        key, value = (torch.nn.functional.pad(x, (0, 0, 0, 1)) for x in (key, value))
        seen = torch.zeros((len(q), len(k)))
        if mask is not None:
            seen = seen.masked_fill(~mask, -torch.inf)
        sink = sinks.float().view(-1, 1, 1).expand(-1, len(q), 1)
        mask = torch.cat([seen.expand(len(sinks), -1, -1), sink], dim=-1)
    out = scaled_dot_product_attention(
        query, key, value, attn_mask=mask, scale=scale, enable_gqa=is_grouped
    )
    return out[0].transpose(0, 1).to(q.dtype)


def _refuse(
    k_scale: float,
    v_scale: float,
    logit_cap: float,
    is_cross_attn: bool,
    is_two_sided: bool = False,
) -> None:
    unsupported = {
        "cross attention": is_cross_attn,
        "a two-sided sliding window": is_two_sided,
        "a logit cap": logit_cap > 0,
        "a scaled KV cache": (k_scale, v_scale) != (1.0, 1.0),
    }
    used = [name for name, is_used in unsupported.items() if is_used]
    if used:
        raise NotImplementedError(f"sglang-cpu-host's attention has no {' and no '.join(used)}.")
