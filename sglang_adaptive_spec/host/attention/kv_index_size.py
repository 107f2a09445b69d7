"""What the graphs of all tiers keep together to find KV slots: room for whole contexts.

Where contexts are long this is most of what graphs take. Tiers never run at once, so there is one
of each buffer, as large as the largest (tier, batch) needs it (host/attention/kv_index.py).
The size of the KV pool bounds none: a prefix that requests share counts for each of them.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from sglang_adaptive_spec.host.server_args import ServerArgs
from sglang_adaptive_spec.host.sizes import ModelConfig, Stages
from sglang_adaptive_spec.tiers import Tier

# Their buffers are shared. Other backends keep tables of their own, of which nothing is known here.
KNOWN = ("flashinfer", "triton", "fa3")
FLOAT_BYTES = 4


class Extent(NamedTuple):
    """The most that a graph of any tier holds."""

    requests: int
    tokens: int  # of a verify or a draft-extend
    draft_rows: int  # requests x topk x draft steps: each has an index of its own

    @classmethod
    def of(cls, largest: Mapping[Tier, int], stages: Stages) -> "Extent":
        """Returns the extent of graphs.

        Args:
            largest: The largest captured batch of each tier.
            stages: Those that have graphs.
        """
        sizes = largest.items()
        return cls(
            requests=max(largest.values(), default=0),
            tokens=max((size * stages.extend_width(tier) for tier, size in sizes), default=0),
            draft_rows=max((size * stages.num_draft_rows(tier) for tier, size in sizes), default=0),
        )


class IndexShape(NamedTuple):
    """What the size of the buffers follows from beside the extent, per server."""

    backends: Collection[str]  # empty where nothing is known
    context_length: int
    page_size: int
    num_pools: int  # 2 with sliding windows: their slots are found apart
    row_bytes: int  # of the partial results that Triton keeps per token, target's and draft's

    @classmethod
    def of(
        cls,
        view: ServerArgs,
        backends: Collection[str],
        model_config: ModelConfig,
        heads: Iterable[tuple[int, int, int]],
    ) -> "IndexShape":
        """Returns the shape for a server with these arguments.

        Args:
            view: The server's arguments, or as far as they are resolved.
            backends: Attention backends.
            model_config: The target's.
            heads: Of target and draft, as `sizes.heads` gives them.
        """
        splits = view.triton_attention_num_kv_splits
        distinct = {(num_heads, width) for num_heads, _, width in heads}
        row_bytes = sum(triton_row_bytes(*shape, splits) for shape in distinct)
        num_pools = 2 if model_config.is_hybrid_swa else 1
        return cls(backends, model_config.context_len, view.page_size or 1, num_pools, row_bytes)

    def gb(self, extent: Extent, is_tree: bool = False) -> float:
        """Returns at least the GB of the buffers that graphs up to ``extent`` share."""
        return sum(self._bytes(name, extent, is_tree) for name in self.backends) / 2**30

    def _bytes(self, backend: str, extent: Extent, is_tree: bool) -> int:
        context = self.context_length
        rows = extent.requests + extent.draft_rows
        if backend == "flashinfer":  # entries of 4 bytes, masks of a bit
            return context * (4 * self.num_pools * rows + extent.tokens // 8)
        if backend == "triton":  # masks of a byte
            return context * (8 * rows + extent.tokens) + self.row_bytes * extent.tokens
        if backend == "fa3":  # a table of pages; trees have one of tokens beside it, and a mask
            num_pages = -(-context // self.page_size)
            of_trees = context * (4 * extent.requests + extent.tokens) if is_tree else 0
            return 4 * self.num_pools * extent.requests * num_pages + of_trees
        return 0


def triton_row_bytes(num_heads: int, head_dim: int, num_kv_splits: int) -> int:
    """Returns what Triton keeps per token of a batch: a partial result per head and split."""
    return num_heads * num_kv_splits * (head_dim + 1) * FLOAT_BYTES
