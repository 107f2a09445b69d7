"""Triton kernels; importing this needs Triton, which torch for CPUs comes without."""

import torch
import triton
import triton.language as tl

BLOCK, NUM_WARPS = 8192, 16  # a choice: 16 logits a lane, and vocabularies in 4 to 19 turns
LOWEST = tl.constexpr(-1e30)  # below all logits; the difference of two -inf would be none


def top_probability(logits: torch.Tensor) -> torch.Tensor:
    """Returns the probability of the likeliest token of each row of [rows, V]: float32.

    In one pass over rows in one piece. Of the likeliest token's own term 1 is left:

        exp(most) / sum(exp(logits)) = 1 / sum(exp(logits - most))
    """
    assert logits.stride(1) == 1, "the caller checked this"
    num_rows, num_tokens = logits.shape
    found = torch.empty(num_rows, dtype=torch.float32, device=logits.device)
    top_probability_kernel[(num_rows,)](
        logits, found, logits.stride(0), num_tokens, BLOCK, num_warps=NUM_WARPS
    )
    return found


# Triton reads the annotations of arguments, too: that of a compile-time constant is its only one.
@triton.jit  # type: ignore[untyped-decorator]
def top_probability_kernel(  # type: ignore[no-untyped-def]
    logits, found, row_stride, num_tokens, block: tl.constexpr
):
    """Of one row: each lane keeps its largest logit, and the sum of its terms beside that."""
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, block)
    most = tl.full((block,), LOWEST, tl.float32)
    total = tl.zeros((block,), tl.float32)
    for first in range(0, num_tokens, block):
        tokens = first + lanes
        values = tl.load(logits + row * row_stride + tokens, tokens < num_tokens, other=LOWEST)
        values = values.to(tl.float32)
        higher = tl.maximum(most, values)
        total = total * tl.exp(most - higher) + tl.exp(values - higher)
        most = higher
    of_row = tl.max(most, 0)
    tl.store(found + row, 1.0 / tl.sum(total * tl.exp(most - of_row), 0))
