"""Packed verifies on FlashInfer: attention over whole windows, all else over packed tokens.

FlashInfer plans a graph for equally many tokens of each request, or for requests of any length: one
of them could then have all tokens of a round, and tiles get 128 rows where a window fills 16 to 64
(flashinfer 0.6.18 attention/scheduler.cuh: `uniform_q_len`). So here requests keep whole windows,
planned as in any other verify (plans.py), and each attention layer has two copies about it:

    queries [tokens] --to windows--> [slots * window] --attention--> outputs --back--> [tokens]

KV is written for the packed tokens alone. A place of a window that is not verified gets the query
of some other token; nobody reads its output, and in a chain no place before it sees its KV.
"""

import copy
from typing import Any

import torch
from sglang.srt.speculative.dflash_info import DFlashVerifyInput

from sglang_adaptive_spec.host.batch import ForwardBatch


class WindowAttention:
    """A FlashInfer backend whose verifies are packed; the rest is that of the backend."""

    supports_ragged_verify_graph = True

    def __init__(self, backend: Any, window: int) -> None:
        """Takes a FlashInferAttnBackend, and the tokens of a window."""
        self._backend, self._window = backend, window
        # Without a mask, like a chain's; its lengths and its index are those of whole windows.
        self._uniform = DFlashVerifyInput(draft_token=None, positions=None, draft_token_num=window)
        self._bounds = torch.zeros(0)  # [slots + 1] where the tokens of each request begin
        self._sources = self._places = self._bounds  # of the graph in the making

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def init_cuda_graph_state(self, max_bs: int, *args: object, **kwargs: object) -> None:
        """Makes what graphs of up to ``max_bs`` requests read."""
        self._backend.init_cuda_graph_state(max_bs, *args, **kwargs)
        device = self._backend.workspace_buffer.device
        self._bounds = torch.zeros(max_bs + 1, dtype=torch.int32, device=device)

    def init_forward_metadata_out_graph(
        self, forward_batch: ForwardBatch, in_capture: bool = False
    ) -> None:
        """Plans whole windows, and says where the packed tokens of each request begin."""
        spec_info, num_slots = forward_batch.spec_info, forward_batch.batch_size
        layout = spec_info.ragged_verify_layout
        windows = copy.copy(forward_batch)
        windows.spec_info = self._uniform
        if in_capture:  # the host's words for EAGLE: `plans.prepare_wrappers` asks for them
            windows.spec_info = copy.copy(spec_info)
            windows.spec_info.ragged_verify_layout = None
            windows.positions = forward_batch.positions.new_zeros(num_slots * self._window)
        self._backend.init_forward_metadata_out_graph(windows, in_capture)
        # Slots that no request has begin, and end, behind all tokens.
        self._bounds[: num_slots + 1].fill_(layout.graph_num_tokens)
        self._bounds[: layout.bs + 1].copy_(layout.qo_indptr_device)

    def init_forward_metadata_in_graph(self, forward_batch: ForwardBatch) -> None:
        """Finds the place of each token, and a token for each place."""
        self._backend.init_forward_metadata_in_graph(forward_batch)
        num_tokens, device = forward_batch.positions.numel(), self._bounds.device
        bounds = self._bounds[: forward_batch.batch_size + 1]
        tokens = torch.arange(num_tokens, device=device)
        rows = torch.searchsorted(bounds[1:], tokens, right=True)
        self._places = tokens - bounds[rows] + rows * self._window
        ahead = torch.arange(self._window, device=device)
        sources = bounds[:-1].unsqueeze(1) + ahead
        self._sources = sources.clamp_(max=num_tokens - 1).flatten()

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
        """Attends; all of [tokens, heads * head_dim]. The KV of these tokens is written before."""
        windows = q.index_select(0, self._sources)
        outputs: torch.Tensor = self._backend.forward_extend(
            windows, k, v, layer, forward_batch, save_kv_cache, **kwargs
        )
        return outputs.index_select(0, self._places)


def for_packed_verifies(backend: Any, window: int) -> Any:
    """Returns the ``backend`` of the host as a packed verify needs it."""
    takes_rows = backend.supports_ragged_verify_graph
    return backend if takes_rows else WindowAttention(backend, window)
