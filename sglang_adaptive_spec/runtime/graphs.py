"""Which CUDA-graph batch sizes a tier needs.

A batch pads up to the next captured size, so graph ``b`` serves the batches in (previous b, b].
It belongs to a tier if any of those batches may choose the tier; a batch above the largest
captured size runs eager at every tier.
"""

from collections.abc import Sequence

from sglang_adaptive_spec.ladder import Ladder
from sglang_adaptive_spec.tiers import Tier


def graph_batch_sizes(
    tier: Tier,
    captured: Sequence[int],
    ladder: Ladder,
    max_batch_size: int,
) -> list[int]:
    """Returns the sizes of ``captured`` that a batch running at ``tier`` may pad to.

    Args:
        tier: The tier to capture.
        captured: The host's capture list, in any order.
        ladder: What a batch may choose.
        max_batch_size: Largest batch the scheduler can form.
    """
    needed: list[int] = []
    previous = 0
    for size in sorted(set(captured)):
        batches = range(previous + 1, min(size, max_batch_size) + 1)
        if any(tier in ladder.of(batch) for batch in batches):
            needed.append(size)
        previous = size
    return needed


def thinned(captured: Sequence[int]) -> list[int]:
    """Returns every size 2^k and 3 * 2^k of ``captured``, and the largest.

    For tiers that compete by measured cost: a batch pads up by a third at most, the policy knows
    what that costs, and a tier takes 14 graphs up to batch 128 instead of 35.
    """
    sizes = sorted(set(captured))
    odd_parts = {size: size // (size & -size) for size in sizes}
    return [size for size in sizes if odd_parts[size] in (1, 3) or size == sizes[-1]]
