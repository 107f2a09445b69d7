"""The stand-in for DeepGEMM's indexer adds up what its formula says, key by key."""

import torch

from benchmarks.inject.indexer_plugin import paged_logits, ragged_logits

ROWS, NEXT_N, HEADS, DIM, BLOCK, BLOCKS = 3, 2, 4, 128, 64, 10
FP8 = torch.float8_e4m3fn


def test_logits_of_keys_in_blocks_and_in_a_row_are_the_weighted_sum_over_heads() -> None:
    generator = torch.Generator().manual_seed(0)
    keys = torch.randn(BLOCKS, BLOCK, DIM, generator=generator).to(FP8)
    scales = torch.rand(BLOCKS, BLOCK, generator=generator)
    queries = torch.randn(ROWS, NEXT_N, HEADS, DIM, generator=generator).to(FP8)
    weights = torch.randn(ROWS * NEXT_N, HEADS, generator=generator)
    cache = torch.cat(
        [keys.view(BLOCKS, -1).view(torch.uint8), scales.contiguous().view(torch.uint8)], dim=1
    )
    table = torch.tensor([[1, 2, 3], [4, 5, -1], [7, 0, 9]])

    paged = paged_logits(
        queries,
        cache.view(BLOCKS, BLOCK, 1, DIM + 4),
        weights,
        torch.empty(0),
        table,
        torch.empty(0),
        3 * BLOCK,
    )
    for row in range(ROWS):
        for place in (0, 63, 64, 191):
            block, key = max(int(table[row, place // BLOCK]), 0), place % BLOCK
            for n in range(NEXT_N):
                heads = (queries[row, n].float() @ keys[block, key].float()).relu()
                expected = (heads * weights[row * NEXT_N + n]).sum() * scales[block, key]
                assert torch.isclose(paged[row * NEXT_N + n, place], expected, rtol=1e-4)

    ragged = ragged_logits(queries.flatten(0, 1), (keys[1], scales[1]), weights)
    assert torch.allclose(ragged[:NEXT_N], paged[:NEXT_N, :BLOCK], rtol=1e-4, atol=1e-4)
