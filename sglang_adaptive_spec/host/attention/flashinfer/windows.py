"""Packed verifies on FlashInfer: attention over whole windows, the rest over packed tokens.

FlashInfer plans a graph either for equal lengths or for any lengths. A plan for any lengths allows
one request all tokens of a round, so its tiles have 128 rows; a window fills 16 to 64 (flashinfer
0.6.18 attention/scheduler.cuh: `uniform_q_len`). Here verifies keep whole windows, planned as any
other verify (plans.py). Two copies surround each attention layer:

    queries [tokens] --to windows--> [slots * window] --attention--> outputs --back--> [tokens]

Only packed tokens write KV. A place of a window that is not verified gets another token's query,
and its output is not read. Its KV has a weight of 0, since a chain is causal. But 0 times a NaN
that another request left in a slot is NaN, so the index names a written slot for such places.
"""

import copy
from typing import Any

import torch
from sglang.srt.layers.attention.flashinfer_backend import FlashInferAttnBackend
from sglang.srt.speculative.dflash_info import DFlashVerifyInput

from sglang_adaptive_spec.host.batch import ForwardBatch


class WindowAttention:
    """A FlashInfer backend whose verifies are packed. Everything else is delegated."""

    supports_ragged_verify_graph = True

    def __init__(self, backend: Any, window: int) -> None:
        """Takes a FlashInferAttnBackend, and the tokens of a window."""
        self._backend, self._window = backend, window
        # No mask: a chain is causal. Lengths and KV index cover whole windows.
        self._uniform = DFlashVerifyInput(draft_token=None, positions=None, draft_token_num=window)
        self._bounds = torch.zeros(0)  # [slots + 1] int32: where each request's tokens begin
        # Of the graph being captured, int64; None where no graph runs.
        self._sources: torch.Tensor | None = None  # [slots * window]: a token for each place
        self._places: torch.Tensor | None = None  # [tokens]: the place of each token

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def init_cuda_graph_state(
        self, max_bs: int, max_num_tokens: int, *args: object, **kwargs: object
    ) -> None:
        """Makes what graphs of up to ``max_bs`` requests read.

        ``max_num_tokens`` sizes masks, and these graphs have none: whole contexts a token.
        """
        self._backend.init_cuda_graph_state(max_bs, max_bs, *args, **kwargs)
        device = self._backend.workspace_buffer.device
        self._bounds = torch.zeros(max_bs + 1, dtype=torch.int32, device=device)

    def init_forward_metadata(self, forward_batch: ForwardBatch) -> None:
        """Plans a verify without a graph, for which FlashInfer takes rows of any length."""
        self._sources = self._places = None
        self._backend.init_forward_metadata(forward_batch)

    def init_forward_metadata_out_graph(
        self, forward_batch: ForwardBatch, in_capture: bool = False
    ) -> None:
        """Plans whole windows, and says where the packed tokens of each request begin."""
        spec_info, num_slots = forward_batch.spec_info, forward_batch.batch_size
        layout = spec_info.ragged_verify_layout
        of_windows = copy.copy(forward_batch)
        of_windows.spec_info = self._uniform
        if in_capture:  # EAGLE's own input: `prepare_wrappers` plans only that
            of_windows.spec_info = copy.copy(spec_info)
            of_windows.spec_info.ragged_verify_layout = None
            of_windows.positions = forward_batch.positions.new_zeros(num_slots * self._window)
        self._backend.init_forward_metadata_out_graph(of_windows, in_capture)
        # Slots that no request has begin, and end, behind all tokens.
        self._bounds[: num_slots + 1].fill_(layout.graph_num_tokens)
        self._bounds[: layout.bs + 1].copy_(layout.qo_indptr_device)

    def init_forward_metadata_in_graph(self, forward_batch: ForwardBatch) -> None:
        """Finds the place of each token, a token for each place, and a slot for each place."""
        self._backend.init_forward_metadata_in_graph(forward_batch)
        num_tokens, device = forward_batch.positions.numel(), self._bounds.device
        bounds = self._bounds[: forward_batch.batch_size + 1]
        self._places = places_in_windows(bounds, num_tokens, self._window)
        ahead = torch.arange(self._window, device=device)
        sources = bounds[:-1].unsqueeze(1) + ahead
        self._sources = sources.clamp_(max=num_tokens - 1).flatten()
        (wrapper,) = self._backend.forward_metadata.prefill_wrappers
        name_written_slots(wrapper, bounds.diff(), ahead)

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: object,
        forward_batch: ForwardBatch,
        save_kv_cache: bool = True,
        **kwargs: object,
    ) -> torch.Tensor:
        """Returns the attention of packed tokens: [tokens, heads * head_dim], as ``q``.

        Writes ``k`` and ``v`` before.
        """
        sources, places = self._sources, self._places
        queries = q if sources is None else q.index_select(0, sources)
        outputs: torch.Tensor = self._backend.forward_extend(
            queries, k, v, layer, forward_batch, save_kv_cache, **kwargs
        )
        return outputs if places is None else outputs.index_select(0, places)


def places_in_windows(bounds: torch.Tensor, num_tokens: int, width: int) -> torch.Tensor:
    """Returns the place of each packed token in windows of ``width``: [num_tokens] int64.

    Args:
        bounds: [rows + 1]: where the tokens of each row begin; the last one is ``num_tokens``.
        num_tokens: Of all rows.
        width: Of a window.
    """
    tokens = torch.arange(num_tokens, device=bounds.device)
    rows = torch.searchsorted(bounds[1:], tokens, right=True)
    return tokens - bounds[rows] + rows * width


def name_written_slots(wrapper: Any, verify_lens: torch.Tensor, ahead: torch.Tensor) -> None:
    """Puts the slot of a window's root into the index, where places are not verified.

    Args:
        wrapper: FlashInfer's, of a graph; what its kernel reads is changed.
        verify_lens: [slots] int32.
        ahead: [window] int64: 0, 1, ..
    """
    index = wrapper._paged_kv_indices_buf
    roots = wrapper._paged_kv_indptr_buf[1:].long() - len(ahead)
    entries = roots.unsqueeze(1) + ahead
    is_behind = ahead >= verify_lens.unsqueeze(1)
    index[entries] = torch.where(is_behind, index[roots].unsqueeze(1), index[entries])


def for_packed_verifies(backend: Any, window: int) -> Any:
    """Returns the host's ``backend``, inside a `WindowAttention` if it is FlashInfer's."""
    is_flashinfer = type(backend) is FlashInferAttnBackend  # not what derives from it
    return WindowAttention(backend, window) if is_flashinfer else backend
