"""Gated delta rule and its short convolution: the recurrent layers of Qwen3-Next, token by token.

A request keeps, per layer, the last inputs of the convolution and a matrix per value head. The
verification leaves both as they are and writes what they would be after each draft, of which
`scatter_states` keeps the one that was accepted. The oracle is sglang 0.5.21
kernels/ops/attention/fla/fused_sigmoid_gating_recurrent.py and kernels/ops/mamba. Chains only.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize, silu, softplus


def causal_conv1d_fn_cpu(
    x: Tensor,  # [dim, num_tokens], request after request
    weight: Tensor,  # [dim, width]
    bias: Tensor | None,  # [dim]
    activation: str | None,
    conv_states: Tensor,  # [num_slots, dim, width - 1], written
    has_initial_state: Tensor | None,  # [bs] bool
    cache_indices: Tensor,  # [bs] slots
    query_start_loc: Tensor,  # [bs + 1]
    seq_lens_cpu: Any = None,
) -> Tensor:
    """Convolves each request's new tokens, behind its last ones: [dim, num_tokens]."""
    out = torch.empty_like(x)
    starts = query_start_loc.tolist()
    for i, slot in enumerate(cache_indices.tolist()):
        state = conv_states[slot]
        if has_initial_state is not None and not has_initial_state[i]:
            state = torch.zeros_like(state)
        new = slice(starts[i], starts[i + 1])
        out[:, new], windows = _convolve(x[:, new], state, weight, bias, activation)
        if len(windows):
            conv_states[slot] = windows[-1]
    return out


def causal_conv1d_update_cpu(
    x: Tensor,  # [bs, dim], or [bs, dim, num_draft_tokens] of a verification
    conv_states: Tensor,  # [num_slots, dim, width - 1], written unless verifying
    weight: Tensor,  # [dim, width]
    bias: Tensor | None,  # [dim]
    activation: str | None,
    conv_state_indices: Tensor,  # [bs] slots
    intermediate_conv_window: Tensor | None = None,  # [rows, max drafts, dim, width - 1], written
    intermediate_state_indices: Tensor | None = None,  # [bs] rows
    retrieve_next_token: Tensor | None = None,
    retrieve_next_sibling: Tensor | None = None,
    retrieve_parent_token: Tensor | None = None,
) -> Tensor:
    """Convolves one token, or a chain of drafts, of each request: as x."""
    _refuse_trees(retrieve_parent_token)
    out = torch.empty_like(x)
    for i, slot in enumerate(conv_state_indices.tolist()):
        tokens = x[i].view(x.shape[1], -1)
        done, windows = _convolve(tokens, conv_states[slot], weight, bias, activation)
        out[i] = done.view(out[i].shape)
        if intermediate_conv_window is None:
            conv_states[slot] = windows[-1]
        else:
            assert intermediate_state_indices is not None
            row = int(intermediate_state_indices[i])
            intermediate_conv_window[row, : len(windows)] = windows
    return out


def _convolve(
    x: Tensor, state: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None
) -> tuple[Tensor, Tensor]:
    """Returns the output [dim, n] and the state after each token [n, dim, width - 1]."""
    width = weight.shape[1]
    seen = torch.cat([state.to(x.dtype), x], dim=1).unfold(1, width, 1)  # [dim, n, width]
    out = (seen * weight[:, None]).sum(-1)
    if bias is not None:
        out = out + bias[:, None]
    return silu(out) if activation in ("silu", "swish") else out, seen[..., 1:].transpose(0, 1)


def fused_gdn_gating_cpu(
    A_log: Tensor,  # [value_heads]  # the host's name
    a: Tensor,  # [num_tokens, value_heads]
    b: Tensor,  # [num_tokens, value_heads]
    dt_bias: Tensor,  # [value_heads]
) -> tuple[Tensor, Tensor]:
    """Returns the logarithm of the decay and the rate of writing, [1, num_tokens, value_heads]."""
    decay = -A_log.float().exp() * softplus(a.float() + dt_bias.float())
    return decay[None], b.float().sigmoid()[None]


def chunk_gated_delta_rule_cpu(
    q: Tensor,  # [1, num_tokens, key_heads, key_dim]
    k: Tensor,  # [1, num_tokens, key_heads, key_dim]
    v: Tensor,  # [1, num_tokens, value_heads, value_dim]
    g: Tensor,  # [1, num_tokens, value_heads] logarithm of the decay
    beta: Tensor,  # [1, num_tokens, value_heads]
    initial_state: Tensor,  # [num_slots, value_heads, value_dim, key_dim], written
    initial_state_indices: Tensor,  # [bs] slots
    cu_seqlens: Tensor,  # [bs + 1]
    head_first: bool = False,
    use_qk_l2norm_in_kernel: bool = True,
) -> tuple[Tensor, None, None]:
    """Runs each request's new tokens through its state: [1, num_tokens, value_heads, value_dim]."""
    out = torch.empty_like(v)
    starts = cu_seqlens.tolist()
    for i, slot in enumerate(initial_state_indices.tolist()):
        new = slice(starts[i], starts[i + 1])
        state = initial_state[slot].float()
        for token in range(new.start, new.stop):
            state, out[0, token] = _step(
                state, q[0, token], k[0, token], v[0, token], g[0, token], beta[0, token]
            )
        initial_state[slot] = state.to(initial_state.dtype)
    return out, None, None


def fused_sigmoid_gating_delta_rule_update_cpu(
    A_log: Tensor,  # the host's name
    dt_bias: Tensor,
    q: Tensor,  # [1, num_tokens, key_heads, key_dim]
    k: Tensor,
    v: Tensor,  # [1, num_tokens, value_heads, value_dim]
    a: Tensor,  # [num_tokens, value_heads]
    b: Tensor,
    initial_state_source: Tensor,  # [num_slots, value_heads, value_dim, key_dim], written or not:
    initial_state_indices: Tensor,  # [bs] slots
    cu_seqlens: Tensor,  # [bs + 1]
    use_qk_l2norm_in_kernel: bool = True,
    softplus_beta: float = 1.0,
    softplus_threshold: float = 20.0,
    is_kda: bool = False,
    disable_state_update: bool = False,
    intermediate_states_buffer: Tensor | None = None,  # [rows, max drafts, ...state], written
    intermediate_state_indices: Tensor | None = None,  # [bs] rows
    cache_steps: int | None = None,
    retrieve_parent_token: Tensor | None = None,
) -> Tensor:
    """The same for decoding and, with intermediate states, for verifying chains of drafts."""
    _refuse_trees(retrieve_parent_token)
    g, beta = fused_gdn_gating_cpu(A_log, a, b, dt_bias)
    out = torch.empty_like(v)
    starts = cu_seqlens.tolist()
    for i, slot in enumerate(initial_state_indices.tolist()[: len(starts) - 1]):
        state = initial_state_source[slot].float()
        for step, token in enumerate(range(starts[i], starts[i + 1])):
            state, out[0, token] = _step(
                state, q[0, token], k[0, token], v[0, token], g[0, token], beta[0, token]
            )
            if intermediate_states_buffer is not None and intermediate_state_indices is not None:
                row = int(intermediate_state_indices[i])
                intermediate_states_buffer[row, step] = state.to(intermediate_states_buffer.dtype)
        if not disable_state_update:
            initial_state_source[slot] = state.to(initial_state_source.dtype)
    return out


def _step(
    state: Tensor,  # [value_heads, value_dim, key_dim] float32
    q: Tensor,  # [key_heads, key_dim]
    k: Tensor,  # [key_heads, key_dim]
    v: Tensor,  # [value_heads, value_dim]
    g: Tensor,  # [value_heads]
    beta: Tensor,  # [value_heads]
) -> tuple[Tensor, Tensor]:
    """Returns the state after one token and what it reads from it, [value_heads, value_dim]."""
    group = v.shape[0] // q.shape[0]
    query, key = (
        normalize(x.float(), dim=-1, eps=1e-6).repeat_interleave(group, 0) for x in (q, k)
    )
    state = state * g.float().exp()[:, None, None]
    known = (state * key[:, None]).sum(-1)
    update = (v.float() - known) * beta.float()[:, None]
    state = state + update[..., None] * key[:, None]
    read = (state * query[:, None]).sum(-1) * q.shape[-1] ** -0.5
    return state, read.to(v.dtype)


def scatter_states(
    dst: Tensor,  # [num_layers, num_slots, ...], written
    src: Tensor,  # [num_layers, rows, max drafts, ...]
    dst_indices: Tensor,  # [bs] slots
    step_indices: Tensor,  # [bs] the last accepted token; -1 = keep
    src_indices: Tensor | None = None,  # [bs] rows, else one after the other
) -> None:
    """Makes the state after each request's last accepted token the one it goes on from."""
    rows = range(len(step_indices)) if src_indices is None else src_indices.tolist()
    for row, slot, step in zip(rows, dst_indices.tolist(), step_indices.tolist(), strict=True):
        if step >= 0:
            dst[:, slot] = src[:, row, step].to(dst.dtype)


def _refuse_trees(retrieve_parent_token: Tensor | None) -> None:
    if retrieve_parent_token is not None:
        raise NotImplementedError("sglang-cpu-host has recurrent layers for chains only, no trees.")
