"""Attention over whole windows gives packed tokens what attention of their own rows gives."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

WINDOW, HEAD_DIM, MAX_SLOTS, CONTEXT = 4, 8, 5, 12
PREFIXES, VERIFY_LENS = (3, 6, 1), (2, 4, 1)  # of three requests, in a graph of five
NUM_TOKENS = sum(VERIFY_LENS)


class UniformBackend:
    """Attends as FlashInfer plans it: equally many tokens of every slot, causal, by an index.

    A weight of 0 times a value that is no number is no number, as in its kernel.
    """

    supports_ragged_verify_graph = False
    workspace_buffer = torch.zeros(1)

    def __init__(self) -> None:
        self.pool = torch.randn(MAX_SLOTS * CONTEXT, HEAD_DIM, 2)  # keys and values
        self.wrapper = SimpleNamespace(_paged_kv_indptr_buf=None, _paged_kv_indices_buf=None)
        self.forward_metadata = SimpleNamespace(prefill_wrappers=[self.wrapper])
        self.planned: list[Any] = []
        self.sizes: tuple[int, int] = (0, 0)
        self.num_in_graph = self.num_eager = 0

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        self.sizes = max_bs, max_num_tokens

    def init_forward_metadata(self, _batch: Any) -> None:
        self.num_eager += 1

    def init_forward_metadata_out_graph(self, batch: Any, in_capture: bool) -> None:
        assert batch.spec_info.ragged_verify_layout is None, "FlashInfer refuses this"
        self.planned.append((batch, in_capture))
        lens = batch.seq_lens_cpu + WINDOW
        rows = [row * CONTEXT + torch.arange(int(each)) for row, each in enumerate(lens)]
        self.wrapper._paged_kv_indices_buf = torch.cat(rows).to(torch.int32)
        bounds = torch.cat((torch.zeros(1, dtype=torch.int64), lens.cumsum(0)))
        self.wrapper._paged_kv_indptr_buf = bounds.to(torch.int32)

    def init_forward_metadata_in_graph(self, _batch: Any) -> None:
        self.num_in_graph += 1

    def forward_extend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        _layer: object,
        slots: Any,
        is_saved: bool,
    ) -> torch.Tensor:
        """Writes ``k`` and ``v`` [tokens, HEAD_DIM] into ``slots`` [tokens], and attends."""
        assert is_saved
        self.pool[slots] = torch.stack((k, v), dim=-1)
        windows = q.view(-1, WINDOW, HEAD_DIM)
        bounds, index = self.wrapper._paged_kv_indptr_buf, self.wrapper._paged_kv_indices_buf
        parts = [index[bounds[row] : bounds[row + 1]] for row in range(len(windows))]
        outputs = [attend(q, self.pool[part]) for q, part in zip(windows, parts, strict=True)]
        return torch.cat(outputs)


def attend(queries: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
    """Returns outputs [tokens, HEAD_DIM] of the newest tokens of a request; ``kv`` is all of it."""
    keys, values = kv.unbind(-1)
    prefix = len(kv) - len(queries)
    scores = queries @ keys.T / math.sqrt(HEAD_DIM)
    seen = torch.arange(len(kv)) <= prefix + torch.arange(len(queries)).unsqueeze(1)
    return scores.masked_fill(~seen, -math.inf).softmax(-1) @ values


@pytest.fixture
def windows(plugins_loaded: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    from sglang_adaptive_spec.host.attention.flashinfer import windows

    monkeypatch.setattr(windows, "FlashInferAttnBackend", UniformBackend)
    return windows


def batch_of(verify_lens: tuple[int, ...], prefixes: tuple[int, ...], num_slots: int) -> Any:
    """A packed batch in a graph of so many slots, as the host's runner hands it over."""
    bounds = torch.tensor((0, *verify_lens), dtype=torch.int32).cumsum(0).to(torch.int32)
    num_tokens = sum(verify_lens)
    layout = SimpleNamespace(
        bs=len(verify_lens), graph_num_tokens=num_tokens, qo_indptr_device=bounds
    )
    return SimpleNamespace(
        batch_size=num_slots,
        positions=torch.zeros(num_tokens, dtype=torch.int64),
        seq_lens_cpu=torch.tensor(prefixes + (1,) * (num_slots - len(prefixes))),
        spec_info=SimpleNamespace(ragged_verify_layout=layout, topk=1),
    )


def captured(windows: Any, num_slots: int, num_tokens: int) -> Any:
    """A backend with a captured graph, as far as that goes on a CPU."""
    backend = windows.for_packed_verifies(UniformBackend(), WINDOW)
    backend.init_cuda_graph_state(MAX_SLOTS, MAX_SLOTS * WINDOW)
    lens = (num_tokens - num_slots + 1, *(1,) * (num_slots - 1))
    batch = batch_of(lens, (1,) * num_slots, num_slots)
    backend.init_forward_metadata_out_graph(batch, in_capture=True)
    backend.init_forward_metadata_in_graph(batch)
    return backend


def replayed(windows: Any) -> Any:
    """A backend that was captured, with the batch of `VERIFY_LENS` planned as before a replay."""
    backend = captured(windows, MAX_SLOTS, NUM_TOKENS)
    batch = batch_of(VERIFY_LENS, PREFIXES, MAX_SLOTS)
    backend.init_forward_metadata_out_graph(batch)
    backend.init_forward_metadata_in_graph(batch)  # a replay runs what the graph has of it
    return backend


def packed_slots() -> torch.Tensor:
    """Where the packed tokens of `VERIFY_LENS` are written: [NUM_TOKENS]."""
    places = [(row, place) for row, lens in enumerate(VERIFY_LENS) for place in range(lens)]
    return torch.tensor([row * CONTEXT + PREFIXES[row] + place for row, place in places])


@pytest.mark.parametrize("stale", [1.0, math.nan])
def test_every_packed_token_gets_the_output_of_its_own_row(windows: Any, stale: float) -> None:
    """Whatever other requests left in the slots of a window that nobody writes."""
    torch.manual_seed(0)
    backend = replayed(windows)
    uniform, pool = backend._backend, backend._backend.pool.view(MAX_SLOTS, CONTEXT, HEAD_DIM, 2)
    for row, prefix in enumerate((*PREFIXES, *(1,) * (MAX_SLOTS - len(PREFIXES)))):
        pool[row, prefix:] = stale
    queries = torch.randn(NUM_TOKENS, HEAD_DIM)
    kv = torch.randn(NUM_TOKENS, HEAD_DIM, 2)
    outputs = backend.forward(queries, *kv.unbind(-1), "layer", packed_slots())
    assert outputs.shape == queries.shape
    own = torch.cat(
        [
            attend(part, pool[row, : prefix + len(part)])
            for row, (part, prefix) in enumerate(
                zip(queries.split(VERIFY_LENS), PREFIXES, strict=True)
            )
        ]
    )
    assert torch.isfinite(own).all()
    assert torch.allclose(outputs, own, atol=1e-6)
    assert uniform.num_in_graph == 2


def test_what_is_not_verified_is_not_written(windows: Any) -> None:
    backend = replayed(windows)
    before, slots = backend._backend.pool.clone(), packed_slots()
    zeros = torch.zeros(NUM_TOKENS, HEAD_DIM)
    backend.forward(torch.randn(NUM_TOKENS, HEAD_DIM), zeros, zeros, "layer", slots)
    written = (before != backend._backend.pool).flatten(1).any(-1).nonzero().flatten()
    assert written.tolist() == slots.tolist()


def test_without_a_graph_rows_go_to_flashinfer_as_they_are(windows: Any) -> None:
    backend = replayed(windows)
    backend.init_forward_metadata(batch_of((WINDOW,) * 2, PREFIXES[:2], 2))
    uniform = backend._backend
    uniform.wrapper._paged_kv_indptr_buf = torch.tensor([0, WINDOW, 2 * WINDOW])
    uniform.wrapper._paged_kv_indices_buf = slots = torch.arange(2 * WINDOW)
    queries = torch.randn(2 * WINDOW, HEAD_DIM)
    kv = torch.randn(2 * WINDOW, HEAD_DIM, 2)
    outputs = backend.forward(queries, *kv.unbind(-1), "layer", slots)
    own = [attend(q, each) for q, each in zip(queries.split(WINDOW), kv.split(WINDOW), strict=True)]
    assert torch.allclose(outputs, torch.cat(own), atol=1e-6)
    assert uniform.num_eager == 1


def test_the_host_plans_whole_windows_for_a_capture_and_lengths_alone_for_a_replay(
    windows: Any,
) -> None:
    backend = captured(windows, MAX_SLOTS, NUM_TOKENS)
    batch = batch_of(VERIFY_LENS, PREFIXES, MAX_SLOTS)
    backend.init_forward_metadata_out_graph(batch)
    (capture, is_capture), (replay, is_later_capture) = backend._backend.planned
    assert (is_capture, is_later_capture) == (True, False)
    assert capture.positions.numel() == MAX_SLOTS * WINDOW
    assert capture.spec_info.topk == 1  # the host's own words: our plans take EAGLE's alone
    assert replay.spec_info.num_tokens_per_req == WINDOW
    assert replay.spec_info.custom_mask is None
    assert batch.spec_info.ragged_verify_layout is not None, "the host's batch was changed"
    assert batch.positions.numel() == NUM_TOKENS


def test_everything_else_is_the_backends_own(windows: Any) -> None:
    backend = captured(windows, 2, 5)
    assert backend.supports_ragged_verify_graph
    assert backend.forward_metadata is backend._backend.forward_metadata
    assert backend._backend.sizes == (MAX_SLOTS, MAX_SLOTS)  # no room for masks of windows


def test_only_flashinfers_own_backend_is_wrapped(windows: Any) -> None:
    class Derived(UniformBackend):
        """For another kind of attention, say."""

    for other in (SimpleNamespace(supports_ragged_verify_graph=True), Derived()):
        assert windows.for_packed_verifies(other, WINDOW) is other
