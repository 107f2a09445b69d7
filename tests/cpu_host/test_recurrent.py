"""The recurrent kernels against the gated delta rule written out, and against each other."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang_cpu_host.kernels.recurrent import (
    causal_conv1d_fn_cpu,
    causal_conv1d_update_cpu,
    chunk_gated_delta_rule_cpu,
    fused_gdn_gating_cpu,
    fused_sigmoid_gating_delta_rule_update_cpu,
    scatter_states,
)
from torch import Tensor

# The first call into torch takes long on a busy machine.
patient = settings(deadline=None)

KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM = 2, 4, 3, 5  # no two are equal
DIM, WIDTH, SLOTS, MAX_DRAFTS = 6, 4, 7, 5
ONE = torch.zeros(1)

lengths = st.lists(st.integers(1, 4), min_size=1, max_size=3)
seeds = st.integers(0, 99)


def starts_of(news: list[int]) -> Tensor:
    return torch.tensor([sum(news[:i]) for i in range(len(news) + 1)])


def convolved(history: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The newest of [dim, WIDTH] inputs, in float64."""
    out = (history.double() * weight.double()).sum(1)
    out = out if bias is None else out + bias.double()
    return out / (1 + (-out).exp())


@patient
@given(lengths, seeds, st.booleans())
def test_a_convolution_goes_on_from_its_state(news, seed, has_bias):
    torch.manual_seed(seed)
    weight, bias = torch.randn(DIM, WIDTH), torch.randn(DIM) if has_bias else None
    states, x = torch.randn(SLOTS, DIM, WIDTH - 1), torch.randn(DIM, sum(news))
    before, slots = states.clone(), torch.randperm(SLOTS)[: len(news)]
    known = torch.rand(len(news)) < 0.5
    out = causal_conv1d_fn_cpu(
        x, weight, bias, "silu", states, known, slots, starts_of(news), seq_lens_cpu=news
    )
    for i, (slot, new) in enumerate(zip(slots.tolist(), news, strict=True)):
        start = sum(news[:i])
        history = torch.cat([before[slot] * known[i], x[:, start : start + new]], dim=1)
        for step in range(new):
            expected = convolved(history[:, step : step + WIDTH], weight, bias)
            torch.testing.assert_close(out[:, start + step], expected.float())
        assert torch.equal(states[slot], history[:, -(WIDTH - 1) :])
    others = [slot for slot in range(SLOTS) if slot not in slots.tolist()]
    assert torch.equal(states[others], before[others])


@patient
@given(st.integers(1, 3), st.integers(1, MAX_DRAFTS), seeds)
def test_verifying_a_chain_convolves_as_decoding_it_does_and_keeps_the_state(bs, n, seed):
    torch.manual_seed(seed)
    weight, states = torch.randn(DIM, WIDTH), torch.randn(SLOTS, DIM, WIDTH - 1)
    x, slots, rows = torch.randn(bs, DIM, n), torch.randperm(SLOTS)[:bs], torch.randperm(bs)
    before, windows = states.clone(), torch.full((bs, MAX_DRAFTS, DIM, WIDTH - 1), torch.nan)
    verified = causal_conv1d_update_cpu(
        x, states, weight, None, "silu", slots, windows, intermediate_state_indices=rows
    )
    assert torch.equal(states, before)
    for step in range(n):
        one = causal_conv1d_update_cpu(x[:, :, step], states, weight, None, "silu", slots)
        torch.testing.assert_close(verified[:, :, step], one)
        assert torch.equal(windows[rows, step], states[slots])


def delta_rule(state: Tensor, q: Tensor, k: Tensor, v: Tensor, g: float, beta: float) -> Tensor:
    """One token of one value head; changes state [VALUE_DIM, KEY_DIM], in float64."""
    q, k = (x.double() / math.sqrt(float(x.double() @ x.double())) for x in (q, k))
    state *= math.exp(g)
    for row in range(VALUE_DIM):
        error = beta * (float(v[row]) - float(state[row] @ k))
        state[row] += error * k
    return state @ q / math.sqrt(KEY_DIM)


@patient
@given(lengths, seeds)
def test_the_state_learns_by_the_delta_rule(news, seed):
    torch.manual_seed(seed)
    total = sum(news)
    q, k = torch.randn(2, 1, total, KEY_HEADS, KEY_DIM)
    v, b, a = torch.randn(1, total, VALUE_HEADS, VALUE_DIM), *torch.randn(2, total, VALUE_HEADS)
    rate, bias = torch.randn(2, VALUE_HEADS)
    g, beta = fused_gdn_gating_cpu(rate, a, b, bias)
    states = torch.randn(SLOTS, VALUE_HEADS, VALUE_DIM, KEY_DIM)
    before, slots = states.clone(), torch.randperm(SLOTS)[: len(news)]
    out, *_ = chunk_gated_delta_rule_cpu(q, k, v, g, beta, states, slots, starts_of(news))
    for i, slot in enumerate(slots.tolist()):
        for head in range(VALUE_HEADS):
            state = before[slot, head].double()
            for token in range(sum(news[:i]), sum(news[: i + 1])):
                source = head * KEY_HEADS // VALUE_HEADS
                softplus = math.log1p(math.exp(float(a[token, head] + bias[head])))
                decay = -math.exp(float(rate[head])) * softplus
                write = 1 / (1 + math.exp(-float(b[token, head])))
                expected = delta_rule(
                    state, q[0, token, source], k[0, token, source], v[0, token, head], decay, write
                )
                got = out[0, token, head].double()
                torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-4)
            torch.testing.assert_close(states[slot, head].double(), state, atol=1e-5, rtol=1e-4)


@patient
@given(st.integers(1, 3), st.integers(1, MAX_DRAFTS), seeds)
def test_what_is_accepted_of_a_verified_chain_is_as_if_decoded(bs, n, seed):
    torch.manual_seed(seed)
    q, k = torch.randn(2, 1, bs, n, KEY_HEADS, KEY_DIM)
    v, (b, a) = torch.randn(1, bs, n, VALUE_HEADS, VALUE_DIM), torch.randn(2, bs, n, VALUE_HEADS)
    gates = torch.randn(VALUE_HEADS), torch.randn(VALUE_HEADS)
    states = torch.randn(SLOTS, VALUE_HEADS, VALUE_DIM, KEY_DIM)
    before, slots = states.clone(), torch.randperm(SLOTS)[:bs]
    kept = torch.full((bs, MAX_DRAFTS, *states.shape[1:]), torch.nan)
    accepted = torch.randint(-1, n, (bs,))  # the last accepted draft; -1 = no such request

    def flat(x: Tensor) -> Tensor:
        return x.flatten(-4, -3) if x.dim() == 5 else x.flatten(0, 1)

    verified = fused_sigmoid_gating_delta_rule_update_cpu(
        *gates, flat(q), flat(k), flat(v), flat(a), flat(b), states, slots,
        n * torch.arange(bs + 1), disable_state_update=True, intermediate_states_buffer=kept,
        intermediate_state_indices=torch.arange(bs),
    ).view(v.shape)  # fmt: skip
    assert torch.equal(states, before)
    committed = states[None].clone()
    scatter_states(committed, kept[None], slots, accepted)
    for step in range(n):
        one = fused_sigmoid_gating_delta_rule_update_cpu(
            *gates, q[:, :, step], k[:, :, step], v[:, :, step], a[:, step], b[:, step], states,
            slots, torch.arange(bs + 1),
        )  # fmt: skip
        torch.testing.assert_close(verified[:, :, step], one)
        ends = accepted == step
        torch.testing.assert_close(committed[0, slots[ends]], states[slots[ends]])
    untouched = accepted == -1
    assert torch.equal(committed[0, slots[untouched]], before[slots[untouched]])


def test_trees_are_refused():
    with pytest.raises(NotImplementedError, match="trees"):
        causal_conv1d_update_cpu(
            *[torch.zeros(1, 1)] * 3,
            None,
            None,
            torch.zeros(1),
            retrieve_parent_token=torch.zeros(1),
        )
