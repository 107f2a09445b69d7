"""Graphs of all tiers find KV slots through one set of buffers.

The host's attention backends keep, for every stage and draft step, a place for the whole context of
the largest batch, and every tier has backends of its own. Here those places are one buffer each.
Why that is safe: a buffer is written before every replay of a graph that reads it, tiers never run
at once, and the stages of a round follow each other on one stream (with a plan stream, which the
draft-extend waits for: drafters/eagle.py). What a buffer holds past the lengths of a batch is never
read.

What is read within one graph stays apart (docs/decisions/attention-backends.md).
(sglang 0.5.23 layers/attention: `init_cuda_graph_state` of flashattention_backend.py,
flashinfer_backend.py, flashinfer_mla_backend.py and triton_backend.py.)
"""

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeAlias

import msgspec
import torch

from sglang_adaptive_spec.host.attention.kv_index_size import Extent

# On a FlashAttentionBackend: what holds its tables, and which of them are rows of `req_to_token`.
PAGE_METADATA = (
    "decode_cuda_graph_metadata",
    "target_verify_metadata",
    "draft_extend_metadata",
    "draft_decode_metadata_topk_normal",
    "target_verify_metadata_topk_normal",
)
PAGE_TABLES = ("page_table", "page_table_draft_decode")
WINDOW_TABLES = ("swa_page_table",)
# On a TritonAttnBackend: partial results of one kernel, which the next one adds up.
TRITON_PARTS = ("cuda_graph_attn_logits", "cuda_graph_swa_attn_logits", "cuda_graph_attn_lse")
# FlashInfer's plan is given up to this many entries more than there are tokens.
SPARE_ENTRIES = 256
# Shares what a backend has beside the index. Takes the backend, the most requests and tokens of its
# graphs, and whether it is a draft step, which was handed a row of an index.
ShareRest: TypeAlias = Callable[[Any, int, int, bool], None]


class SharedIndex:
    """The buffers of this process, by name; each is made once, with room for all tiers."""

    def __init__(self) -> None:
        self.extent = Extent(0, 0, 0)
        self.row_slots = 0
        self.device = torch.device("cpu")
        self._buffers: dict[Hashable, torch.Tensor] = {}

    @property
    def gb(self) -> float:
        """What the buffers take of the device."""
        return sum(buffer.nbytes for buffer in self._buffers.values()) / 2**30

    def plan(self, extent: Extent, req_to_token: torch.Tensor) -> None:
        """Says how large buffers will be, and where they are made; before the first capture.

        Args:
            extent: Of the graphs of all tiers.
            req_to_token: [requests, KV slots of one, those of a whole verify included
                (build_hooks.py:get_row_headroom)] of the host.
        """
        self.extent, self.row_slots = extent, req_to_token.shape[1]
        self.device = req_to_token.device

    def take(
        self, name: Hashable, shape: Sequence[int], most: int, dtype: torch.dtype
    ) -> torch.Tensor:
        """Returns the head of the buffer ``name``.

        Args:
            name: Who asks for the same name may write over what another has read.
            shape: Of the result.
            most: Elements that any tier will ask for. Who asks for more all the same, because a
                tier was left out and batches fell back to another, gets a larger buffer; graphs
                that were captured keep theirs.
            dtype: Of the elements; buffers of other types are others.
        """
        size, key = math.prod(shape), (name, dtype)
        buffer = self._buffers.get(key)
        if buffer is None or buffer.numel() < size:
            buffer = torch.zeros(max(size, most), dtype=dtype, device=self.device)
            self._buffers[key] = buffer
        return buffer[:size].view(tuple(shape))

    def instead_of(
        self, name: Hashable, buffer: torch.Tensor, most: int, size: int
    ) -> torch.Tensor:
        """Returns the shared buffer for one that grows with the number of requests or tokens.

        Args:
            name: As `take` takes it; buffers with other rows are others.
            buffer: What the host made.
            most: The largest number of any tier.
            size: The number that ``buffer`` was made for.
        """
        num_most = buffer.numel() * most // max(size, 1)
        return self.take((name, buffer.shape[1:]), buffer.shape, num_most, buffer.dtype)

    def _slots(self, max_bs: int, dtype: torch.dtype, wrapper: int = 0) -> torch.Tensor:
        """Returns the index of ``max_bs`` requests; a wrapper with slots of its own has its own."""
        num_slots, most = (
            size * self.row_slots + SPARE_ENTRIES for size in (max_bs, self.extent.requests)
        )
        return self.take(("slots", wrapper), (num_slots,), most, dtype)

    def _share_verify_mask(self, backend: Any) -> None:
        """Shares what drafts write and the verify after them reads: whole contexts a token."""
        mask = backend._verify_mask
        if mask is not None and mask.is_read:
            most = self.extent.tokens * self.row_slots
            own = mask.buffer
            buffer = self.take("verify mask", own.shape, most, own.dtype)
            backend._verify_mask = msgspec.structs.replace(mask, buffer=buffer)

    # -- the host's methods, hooked --

    def share_page_tables(
        self, result: object, backend: Any, max_bs: int, *_: object, **__: object
    ) -> Any:
        """After FlashAttentionBackend.init_cuda_graph_state: one table for all stages and tiers."""
        most = self.extent.requests
        of_pool = ("window pages", id(backend.token_to_kv_pool))  # the target's or the draft's
        for attribute in PAGE_METADATA:
            metadata = getattr(backend, attribute, {})
            for names, name in ((PAGE_TABLES, "pages"), (WINDOW_TABLES, of_pool)):
                for table in metadata.keys() & names:
                    metadata[table] = self.instead_of(name, metadata[table], most, max_bs)
        self._share_verify_mask(backend)
        return result

    def around_init(
        self, share_rest: ShareRest | None = None, dtype: torch.dtype = torch.int32
    ) -> Callable[..., Any]:
        """Returns what runs around the init_cuda_graph_state of FlashInfer or Triton.

        The backend gets an index as long as it can get; the host's is as long for every token of a
        verify. A draft step brings a row of its own.

        Args:
            share_rest: Shares what the backend has beside that.
            dtype: Of the backend's index.
        """

        def share_slots(
            init: Callable[..., Any],
            backend: Any,
            max_bs: int,
            max_num_tokens: int,
            kv_indices_buf: torch.Tensor | None = None,
            *args: object,
            **kwargs: object,
        ) -> Any:
            is_step = kv_indices_buf is not None
            slots = kv_indices_buf if is_step else self._slots(max_bs, dtype)
            result = init(backend, max_bs, max_num_tokens, slots, *args, **kwargs)
            if share_rest is not None:
                share_rest(backend, max_bs, max_num_tokens, is_step)
            return result

        return share_slots

    def share_flashinfer(
        self, backend: Any, max_bs: int, max_num_tokens: int, is_step: bool
    ) -> None:
        """Shares the index of windows, and a mask of bits, which the host gives a byte each."""
        if is_step:
            return
        indices = backend.cuda_graph_kv_indices
        for wrapper in range(1, backend.num_wrappers):
            indices[wrapper] = self._slots(max_bs, indices[0].dtype, wrapper)
        if not backend.skip_prefill:
            mask, per_token = backend.cuda_graph_custom_mask, self.row_slots // 8 + 1
            shape, most = (max_num_tokens * per_token,), self.extent.tokens * per_token
            backend.cuda_graph_custom_mask = self.take("mask bits", shape, most, mask.dtype)

    def share_triton(self, backend: Any, max_bs: int, max_num_tokens: int, is_step: bool) -> None:
        """Shares partial results, the index of windows and the mask."""
        for name in TRITON_PARTS:
            if (parts := getattr(backend, name)) is not None:
                most = self.extent.tokens
                setattr(backend, name, self.instead_of(name, parts, most, max_num_tokens))
        window = backend.sliding_window_size
        if not is_step and window is not None and window > 0:
            shape, most = (max_bs * window,), self.extent.requests * window
            own = self.take("window slots", shape, most, torch.int64)
            backend.cuda_graph_window_kv_indices = own
        self._share_verify_mask(backend)

    def share_draft_slots(
        self, result: object, steps: Any, max_bs: int, max_num_tokens: int, *_: object, **__: object
    ) -> Any:
        """After a multi-step draft backend's init_cuda_graph_state: a row for each step, once.

        The steps are handed their new rows as the host hands them its own.
        """
        own = steps.cuda_graph_kv_indices
        most = self.extent.draft_rows * steps.max_context_len
        rows = self.take("draft slots", own.shape, most, own.dtype)
        steps.cuda_graph_kv_indices = rows
        more = {}
        if (splits := getattr(steps, "cuda_graph_num_kv_splits", None)) is not None:  # Triton's
            more["cuda_graph_num_kv_splits_buf"] = splits
        for row, backend in zip(rows, steps.attn_backends, strict=False):  # the last has no forward
            backend.init_cuda_graph_state(max_bs, max_num_tokens, kv_indices_buf=row, **more)
        return result
