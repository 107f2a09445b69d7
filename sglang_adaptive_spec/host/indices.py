"""What a tier's graphs keep to find KV slots: room for the whole context of every request.

For each draft step, for the verify and for the draft-extend the host's attention backends make
buffers of their own (sglang 0.5.23 layers/attention: `init_cuda_graph_state` of
flashinfer_backend.py, triton_backend.py and flashattention_backend.py). Where contexts are long
they are most of what a tier takes, and a tier of small batches tells nothing about them.
"""

from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from sglang_adaptive_spec.policy.tiers import PLAIN_TIER, Tier

# Latent attention and other backends keep less, or tables of their own.
KNOWN = ("flashinfer", "triton", "fa3")
FA3_TABLES = 4  # of pages, in every backend of a draft
FLOAT_BYTES = 4


class GraphIndex(NamedTuple):
    """The buffers as they follow from the arguments of a server."""

    backends: Collection[str]  # empty where nothing is known
    context_length: int
    page_size: int
    catch_up_width: int  # tokens of a request in the draft-extend at zero steps
    row_bytes: int  # of the partial results that Triton keeps per token

    @classmethod
    def of(
        cls,
        view: Any,
        backends: Collection[str],
        shapes: Iterable[tuple[int, int, int]],
        context_length: int,
        catch_up_width: int,
    ) -> "GraphIndex":
        """Returns the buffers of a server with these arguments.

        Args:
            view: The server's arguments, or as far as they are resolved.
            backends: Attention backends; empty where nothing is known of theirs.
            shapes: Heads of target and draft, as `workspaces.plan_heads` gives them.
            context_length: In tokens.
            catch_up_width: Tokens of a request in the draft-extend at zero steps.
        """
        splits = view.triton_attention_num_kv_splits
        row_bytes = max(triton_row_bytes(heads, width, splits) for heads, _, width in shapes)
        return cls(backends, context_length, view.page_size or 1, catch_up_width, row_bytes)

    def gb(self, tier: Tier, batch_size: int) -> float:
        """Returns the GB for graphs of ``tier`` up to ``batch_size``; the most of all backends."""
        request_bytes = [self._request_bytes(name, tier) for name in self.backends]
        return batch_size * max(request_bytes, default=0) / 2**30

    def _request_bytes(self, backend: str, tier: Tier) -> int:
        context = self.context_length
        verify = tier.num_draft_tokens
        extend = extend_width(tier, self.catch_up_width)
        drafts = tier.num_steps * tier.topk if tier.num_steps > 1 else 0  # one step has no graph
        if backend == "flashinfer":  # entries of 4 bytes, masks of 1
            return context * (5 * (verify + extend) + 4 * drafts)
        if backend == "triton":
            rows = verify + extend + drafts
            return context * (verify + 8 * rows) + self.row_bytes * rows
        if backend == "fa3":
            num_backends = 2 + max(tier.num_steps - 1, 0)
            num_pages = -(-context // self.page_size)
            of_trees = 2 * context if tier.topk > 1 else 0
            return 4 * num_backends * (FA3_TABLES * num_pages + of_trees)
        return 0


def extend_width(tier: Tier, catch_up_width: int) -> int:
    """Returns the tokens of a request in the tier's draft-extend."""
    return catch_up_width if tier == PLAIN_TIER else tier.num_draft_tokens


def triton_row_bytes(num_heads: int, head_dim: int, num_kv_splits: int) -> int:
    """Returns what Triton keeps per token of a batch: a partial result per head and split."""
    return num_heads * num_kv_splits * (head_dim + 1) * FLOAT_BYTES
