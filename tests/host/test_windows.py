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
    """Attends as FlashInfer plans it: equally many tokens of every slot, causal, from a pool."""

    supports_ragged_verify_graph = False
    workspace_buffer = torch.zeros(1)
    forward_metadata = "of the newest plan"

    def __init__(self) -> None:
        self.pool = torch.randn(MAX_SLOTS, CONTEXT, HEAD_DIM, 2)
        self.planned: list[Any] = []
        self.max_bs, self.num_in_graph = 0, 0

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        assert max_num_tokens == max_bs * WINDOW
        self.max_bs = max_bs

    def init_forward_metadata_out_graph(self, batch: Any, in_capture: bool) -> None:
        assert batch.spec_info.ragged_verify_layout is None, "FlashInfer refuses this"
        self.planned.append((batch, in_capture))

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
        self.pool.view(-1, HEAD_DIM, 2)[slots] = torch.stack((k, v), dim=-1)
        windows = q.view(-1, WINDOW, HEAD_DIM)
        outputs = torch.zeros_like(windows)
        for row, prefix in enumerate(self.planned[-1][0].seq_lens_cpu.tolist()):
            outputs[row] = attend(windows[row], self.pool[row], prefix)
        return outputs.view(-1, HEAD_DIM)


def attend(queries: torch.Tensor, kv: torch.Tensor, prefix: int) -> torch.Tensor:
    """Returns outputs of tokens behind a prefix: [tokens, HEAD_DIM]; ``kv`` is of one request."""
    keys, values = kv.unbind(-1)
    scores = queries @ keys.T / math.sqrt(HEAD_DIM)
    seen = torch.arange(len(kv)) <= prefix + torch.arange(len(queries)).unsqueeze(1)
    return scores.masked_fill(~seen, -math.inf).softmax(-1) @ values


@pytest.fixture
def windows(plugins_loaded: None) -> Any:
    from sglang_adaptive_spec.host.attention.flashinfer import windows

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


def test_every_packed_token_gets_the_output_of_its_own_row(windows: Any) -> None:
    torch.manual_seed(0)
    backend = captured(windows, MAX_SLOTS, NUM_TOKENS)
    uniform = backend._backend
    batch = batch_of(VERIFY_LENS, PREFIXES, MAX_SLOTS)
    backend.init_forward_metadata_out_graph(batch)
    backend.init_forward_metadata_in_graph(batch)  # a replay runs what the graph has of it
    queries = torch.randn(NUM_TOKENS, HEAD_DIM)
    kv = torch.randn(NUM_TOKENS, HEAD_DIM, 2)
    places = [(row, place) for row, lens in enumerate(VERIFY_LENS) for place in range(lens)]
    slots = torch.tensor([row * CONTEXT + PREFIXES[row] + place for row, place in places])
    outputs = backend.forward(queries, *kv.unbind(-1), "layer", slots)
    assert outputs.shape == queries.shape
    parts = zip(queries.split(VERIFY_LENS), PREFIXES, uniform.pool, strict=False)
    own = torch.cat([attend(part, pool, prefix) for part, prefix, pool in parts])
    assert torch.allclose(outputs, own, atol=1e-6)


def test_what_is_not_verified_is_not_written(windows: Any) -> None:
    backend = captured(windows, MAX_SLOTS, NUM_TOKENS)
    before = backend._backend.pool.clone()
    backend.init_forward_metadata_out_graph(batch_of(VERIFY_LENS, PREFIXES, MAX_SLOTS))
    slots = torch.arange(NUM_TOKENS)
    zeros = torch.zeros(NUM_TOKENS, HEAD_DIM)
    backend.forward(torch.randn(NUM_TOKENS, HEAD_DIM), zeros, zeros, "layer", slots)
    written = (before != backend._backend.pool).flatten(2).any(-1).flatten().nonzero().flatten()
    assert written.tolist() == slots.tolist()


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


def test_all_else_is_the_backends_own(windows: Any) -> None:
    backend = captured(windows, 2, 5)
    assert backend.supports_ragged_verify_graph
    assert backend.forward_metadata == UniformBackend.forward_metadata
    assert backend._backend.max_bs == MAX_SLOTS
    assert backend._backend.num_in_graph == 1


def test_a_backend_that_takes_rows_stays_as_it_is(windows: Any) -> None:
    fa3 = SimpleNamespace(supports_ragged_verify_graph=True)
    assert windows.for_packed_verifies(fa3, WINDOW) is fa3
