"""Before the first attention backend the process has a workspace that holds the largest plans."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_adaptive_spec.host.sizes import OF_A_DRAFT
from sglang_adaptive_spec.ladder import Ladder
from sglang_adaptive_spec.runtime.graphs import graph_batch_sizes
from sglang_adaptive_spec.tiers import PLAIN_TIER, Tier, chain_tier

HOSTS_BYTES = 384 * 2**20
SETTING = "SGLANG_FLASHINFER_WORKSPACE_SIZE"
CAPTURED = (1, 8, 64, 128, 192, 256)


@pytest.fixture(scope="module")
def workspace(plugins_loaded: None) -> Any:
    from sglang_adaptive_spec.host.attention.flashinfer import workspace

    return workspace


@pytest.fixture(scope="module")
def sizing(plugins_loaded: None) -> Any:
    from sglang_adaptive_spec.host import sizes

    return sizes


@pytest.fixture
def buffers(workspace: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, torch.Tensor]:
    """The named buffers of this process, as the host keeps them; large ones hold no memory."""
    from sglang.srt import runtime_context

    made: dict[str, torch.Tensor] = {}
    monkeypatch.setattr(runtime_context._CONTEXT.resources, "buffers", made)
    monkeypatch.delenv(SETTING, raising=False)
    return made


def test_a_plan_takes_what_was_seen_on_the_gpu(sizing: Any) -> None:
    """384 MB held 15 tokens of 128 requests of 8B heads, and not 16."""
    assert sizing.plan_bytes(128, 15, 32, 8, 128) == 395_231_232
    assert sizing.plan_bytes(128, 16, 32, 8, 128) > HOSTS_BYTES


def test_a_decode_of_768_requests_fits_into_it(sizing: Any) -> None:
    """Its tiles have 16 rows, four of them per request with the heads of 8B."""
    assert sizing.plan_bytes(768, 1, 32, 8, 128) == 4 * 32 * 959 * 16 * 129 < HOSTS_BYTES
    assert sizing.plan_bytes(8, 1, 128, 2, 128) == sizing.plan_bytes(4, 2, 128, 2, 128) + (
        4 * 128 * 4 * 128 * 129  # as many tiles as there are requests more
    )


def test_what_the_hosts_workspace_holds_needs_no_other(
    workspace: Any, buffers: dict[str, torch.Tensor]
) -> None:
    workspace.provide_workspace(HOSTS_BYTES, "meta")
    assert not buffers


@pytest.mark.parametrize(
    ("needed", "made"),
    [(HOSTS_BYTES + 1, 2**30), (2**30, 2**30), (2**30 + 1, 2**30 + 1), (2**31 + 1, 2**31)],
)
def test_the_host_takes_the_large_one_that_is_there(
    workspace: Any, buffers: dict[str, torch.Tensor], needed: int, made: int
) -> None:
    from sglang.srt.runtime_context import get_buffer

    workspace.provide_workspace(needed, "meta")
    taken = get_buffer("flashinfer_workspace", lambda: pytest.fail("the host makes its own"))
    assert taken.nbytes == made
    assert taken.dtype == torch.uint8


def test_the_largest_holds_the_catch_ups_of_512_requests_of_8b(
    sizing: Any, buffers: dict[str, torch.Tensor]
) -> None:
    """Or of 256 of 70B."""
    largest = sizing.largest_workspace_bytes()
    assert largest == 2**31
    assert sizing.plan_bytes(512, 15, 32, 8, 128) < 0.75 * largest
    assert sizing.plan_bytes(256, 15, 64, 8, 128) < largest
    assert sizing.plan_bytes(512, 15, 64, 8, 128) > largest


def test_what_the_user_set_stays(
    workspace: Any, sizing: Any, buffers: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SETTING, "4096")
    workspace.provide_workspace(2**29, "meta")
    assert not buffers
    assert sizing.largest_workspace_bytes() == 4096


def test_no_room_for_it_says_what_to_change(
    workspace: Any, buffers: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_args: Any, **_kw: Any) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "empty", refuse)
    with pytest.raises(RuntimeError, match="need 402653185: lower --mem-fraction-static") as caught:
        workspace.provide_workspace(HOSTS_BYTES + 1, "meta")
    assert f"workspace of {2**30} bytes" in str(caught.value)
    assert SETTING in str(caught.value)
    assert not buffers


def builder(
    slots: dict[int, Sequence[Tier]], max_batch_size: int, backend: str = "flashinfer"
) -> Any:
    """A builder of a server with 8B heads, as far as its workspace depends on it."""
    from sglang_adaptive_spec.host.startup.tier_builder import TierBuilder

    heads = SimpleNamespace(
        num_attention_heads=32, head_dim=128, get_num_kv_heads=lambda tp_size: 8 // tp_size
    )
    runner = SimpleNamespace(model_config=heads)
    flags = ("decode", "prefill", "speculative_draft")
    engine: Any = SimpleNamespace(
        device="meta",
        server_args=SimpleNamespace(
            attention_backend=backend, **{f"{flag}_attention_backend": None for flag in flags}
        ),
        options=SimpleNamespace(startup_tier=chain_tier(3), stages=OF_A_DRAFT),
        ranks=SimpleNamespace(num_shards=1),
        runners=(runner, runner),
        target_runner=runner,
    )
    ladder = Ladder(slots)

    def sizes(tier: Tier) -> list[int]:
        return graph_batch_sizes(tier, CAPTURED, ladder, max_batch_size)

    captures: Any = SimpleNamespace(
        max_batch_size=max_batch_size, ladder=ladder, sizes=sizes, decode_sizes=sizes
    )
    return TierBuilder(engine, captures, startup=Any, drafter=Any, lora=())


@pytest.mark.parametrize(
    ("slots", "max_batch_size", "backend", "is_large"),
    [
        ({1: [PLAIN_TIER, chain_tier(3)]}, 256, "flashinfer", True),
        ({1: [PLAIN_TIER, chain_tier(3)]}, 128, "flashinfer", False),  # 395 MB: the host's holds it
        ({1: [PLAIN_TIER, chain_tier(3)]}, 256, "fa3", False),
        # A wide verify counts at the largest batch that may run it, and no further.
        ({1: [chain_tier(15)]}, 128, "flashinfer", True),
        ({1: [chain_tier(15)], 65: [chain_tier(3)]}, 128, "flashinfer", False),
    ],
)
def test_the_largest_graph_of_every_tier_counts(
    buffers: dict[str, torch.Tensor],
    monkeypatch: pytest.MonkeyPatch,
    slots: dict[int, Sequence[Tier]],
    max_batch_size: int,
    backend: str,
    is_large: bool,
) -> None:
    from sglang_adaptive_spec.host.startup import tier_builder

    monkeypatch.setattr(tier_builder, "resolved_view", lambda server_args: server_args)
    monkeypatch.setattr(tier_builder, "use_mla_backend", lambda _server_args: False)
    builder(slots, max_batch_size, backend).provide_workspace()
    assert bool(buffers) == is_large


def test_latent_attention_plans_otherwise(
    buffers: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    from sglang_adaptive_spec.host.startup import tier_builder

    monkeypatch.setattr(tier_builder, "resolved_view", lambda server_args: server_args)
    monkeypatch.setattr(tier_builder, "use_mla_backend", lambda _server_args: True)
    builder({1: [PLAIN_TIER]}, 256).provide_workspace()
    assert not buffers


@pytest.mark.parametrize(
    ("num_bytes", "why"), [(HOSTS_BYTES, "FlashInfer's workspace"), (2**31, "memory")]
)
def test_packed_rounds_are_left_out_where_the_workspace_does_not_hold_their_plan(
    monkeypatch: pytest.MonkeyPatch, num_bytes: int, why: str
) -> None:
    """Tiers of at most 64 requests are that deep; packed rounds would be so for 128."""
    from sglang_adaptive_spec.host.startup import tier_builder

    built = builder({1: [chain_tier(15)], 65: [chain_tier(3)]}, 128)
    backend = SimpleNamespace(
        workspace_buffer=torch.empty(num_bytes, dtype=torch.uint8, device="meta")
    )
    built._engine.target_runner.attn_backend = backend
    monkeypatch.setattr(tier_builder, "packing_unsupported_reason", lambda _engine: None)
    monkeypatch.setattr(built, "_has_room", lambda *_args: False)  # what is asked next
    assert built.build_packed(drafter=None) is None
    assert built.why_not_packed == why
