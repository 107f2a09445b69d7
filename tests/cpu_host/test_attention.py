"""Attention over the paged cache against softmax written out, one query and head at a time."""

import math
from itertools import compress

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang_cpu_host.kernels.attention import decode_attention_cpu, extend_attention_cpu
from torch import Tensor

# The first call into torch takes long on a busy machine.
patient = settings(deadline=None)

HEAD_DIM, SCALE, NUM_SLOTS = 4, 0.6, 40
ONE = (1.0, 1.0)
PLAIN = (0.0, False, 0, None, None)  # cap, cross attention, window, encoder_lens, sinks
windows, sinks = st.sampled_from([0, 1, 3]), st.booleans()


def softmax_attention(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None) -> Tensor:
    """One query [heads, dim] over keys and values [length, kv_heads, dim], in float64."""
    group = q.shape[0] // k.shape[1]
    out = torch.zeros(q.shape, dtype=torch.float64)
    for head in range(q.shape[0]):
        scores = [SCALE * float(q[head].double() @ key[head // group].double()) for key in k]
        if sinks is not None:
            scores.append(float(sinks[head]))  # takes its share and has no value
        weights = [math.exp(score - max(scores)) for score in scores]
        for weight, value in zip(weights[: len(v)], v, strict=True):
            out[head] += weight / sum(weights) * value[head // group].double()
    return out


@st.composite
def paged_batches(draw):
    """Requests with scattered slots: (pool, rows, prefix lengths, new lengths, heads, K, V)."""
    bs = draw(st.integers(1, 3))
    prefixes = [draw(st.integers(0, 5)) for _ in range(bs)]
    news = [draw(st.integers(1, 5)) for _ in range(bs)]
    order = iter(draw(st.permutations(range(NUM_SLOTS))))
    rows = draw(st.permutations(range(bs)))
    pool = torch.zeros((bs, 12), dtype=torch.int32)
    for row, prefix, new in zip(rows, prefixes, news, strict=True):
        for position in range(prefix + new):
            pool[row, position] = next(order)
    kv_heads = draw(st.sampled_from([1, 2]))
    heads = kv_heads * draw(st.sampled_from([1, 3]))
    torch.manual_seed(draw(st.integers(0, 99)))
    k, v = torch.randn(2, NUM_SLOTS, kv_heads, HEAD_DIM)
    return pool, rows, prefixes, news, heads, k, v


def random_tree(n: int) -> Tensor:
    """Every node after an earlier one: row i has True at itself and at its ancestors."""
    tree = torch.eye(n, dtype=torch.bool)
    for node in range(1, n):
        tree[node] |= tree[int(torch.randint(node, (1,)))]
    return tree


def new_slots(pool, rows, prefixes, news) -> Tensor:
    """The slots of all new tokens, request after request."""
    requests = zip(rows, prefixes, news, strict=True)
    return torch.cat([pool[row, prefix : prefix + new] for row, prefix, new in requests]).long()


@patient
@given(
    paged_batches(), st.sampled_from(["causal", "tree", "full"]), st.booleans(), windows, sinks,
    st.integers(0, 2),
)  # fmt: skip
def test_extend_sees_the_prefix_and_what_the_mask_allows(
    batch, kind, is_cached, window, has_sinks, num_padded
):
    window = 0 if kind == "full" else window
    pool, rows, prefixes, news, heads, k, v = batch
    k_cache, v_cache, new = k.clone(), v.clone(), new_slots(pool, rows, prefixes, news)
    if not is_cached:
        k_cache[new] = v_cache[new] = torch.nan  # must not be read
    q = torch.randn(sum(news), heads, HEAD_DIM)
    o = torch.full_like(q, torch.nan)
    sinks = torch.randn(heads) if has_sinks else None
    trees = [random_tree(n) for n in news]
    starts = [sum(news[:i]) for i in range(len(news))]

    def padded(values):  # as attention DP does with all but the lengths
        return torch.tensor([*values, *[0] * num_padded])

    extend_attention_cpu(
        q, None if is_cached else k[new], None if is_cached else v[new], o, k_cache, v_cache, *ONE,
        pool, padded(rows), torch.tensor(prefixes) + torch.tensor(news), padded(news),
        padded(starts), max(news), SCALE, 0.0, False, window, None, sinks,
        torch.cat([tree.flatten() for tree in trees]) if kind == "tree" else None,
        kind == "causal",
    )  # fmt: skip
    for i, (row, prefix, new, start) in enumerate(zip(rows, prefixes, news, starts, strict=True)):
        for step in range(new):
            seen = {
                "causal": [j <= step for j in range(new)],
                "tree": trees[i][step].tolist(),
                "full": [True] * new,
            }[kind]
            depths = trees[i].sum(1).tolist() if kind == "tree" else [*range(1, new + 1)]
            positions = [*range(prefix), *(prefix + j for j in range(new) if seen[j])]
            places = [*range(prefix), *(prefix + depths[j] - 1 for j in range(new) if seen[j])]
            if window:  # the own place is the last one that is seen
                in_window = [place > prefix + depths[step] - 1 - window for place in places]
                positions = list(compress(positions, in_window))
            slots = pool[row, positions].long()
            expected = softmax_attention(q[start + step], k[slots], v[slots], sinks)
            torch.testing.assert_close(o[start + step].double(), expected, atol=1e-5, rtol=1e-4)


def test_without_a_prefix_new_tokens_may_have_another_shape_than_the_cache():
    """Latent attention prefills per head and caches one narrower row for all of them."""
    q, k = torch.randn(2, 3, 2, HEAD_DIM)
    v = torch.randn(3, 2, HEAD_DIM - 1)
    latent = torch.full((NUM_SLOTS, 1, HEAD_DIM + 2), torch.nan)
    o = torch.full_like(v, torch.nan)
    (one, length), pool = torch.tensor([[0], [3]]), torch.arange(3, dtype=torch.int32)[None]
    extend_attention_cpu(
        q, k, v, o, latent, latent, *ONE, pool, one, length, length, one, 3, SCALE, *PLAIN
    )
    for step in range(3):
        wide = torch.cat([v, torch.zeros(3, 2, 1)], dim=2)
        expected = softmax_attention(q[step], k[: step + 1], wide[: step + 1])
        torch.testing.assert_close(o[step].double(), expected[:, :-1], atol=1e-5, rtol=1e-4)


@patient
@given(paged_batches(), st.booleans(), windows, sinks)
def test_decode_stores_the_new_token_and_sees_it(batch, is_cached, window, has_sinks):
    pool, rows, prefixes, news, heads, k, v = batch
    seq_lens = [prefix + new for prefix, new in zip(prefixes, news, strict=True)]
    loc = torch.stack([pool[row, n - 1] for row, n in zip(rows, seq_lens, strict=True)]).long()
    q = torch.randn(len(rows), heads, HEAD_DIM)
    o = torch.full_like(q, torch.nan)
    sinks = torch.randn(heads) if has_sinks else None
    new_k, new_v = torch.randn(2, len(rows), *k.shape[1:])
    k_before, v_before = k.clone(), v.clone()
    decode_attention_cpu(
        q, k, v, *ONE, o, None if is_cached else new_k, None if is_cached else new_v, loc,
        torch.empty(0), pool, torch.tensor(rows), torch.tensor(seq_lens), SCALE,
        0.0, False, window, None, sinks,
    )  # fmt: skip
    if not is_cached:
        k_before[loc], v_before[loc] = new_k, new_v
    assert torch.equal(k, k_before)
    assert torch.equal(v, v_before)
    for i, (row, seq_len) in enumerate(zip(rows, seq_lens, strict=True)):
        slots = pool[row, max(0, seq_len - window) if window else 0 : seq_len].long()
        expected = softmax_attention(q[i], k[slots], v[slots], sinks)
        torch.testing.assert_close(o[i].double(), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("scales", "plain", "named"),
    [
        ((2.0, 1.0), PLAIN, "scaled KV"),
        (ONE, (30.0, False, 0, None, None), "logit cap"),
        (ONE, (0.0, True, 0, None, None), "cross attention"),
    ],
)
def test_what_it_cannot_compute_is_refused_by_name(scales, plain, named):
    q = k = torch.zeros(1, 1, HEAD_DIM)
    one = torch.tensor([1])
    pool = torch.zeros((2, 1), dtype=torch.int32)
    with pytest.raises(NotImplementedError, match=named):
        decode_attention_cpu(q, k, k, *scales, q, None, None, one, q, pool, one, one, SCALE, *plain)
