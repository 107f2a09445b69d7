"""What packed rounds may verify, where such can be, and whose places they take."""

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_adaptive_spec.config.schema import load_config, parse_config
from sglang_adaptive_spec.ladder import Ladder
from sglang_adaptive_spec.tiers import Tier, chain_tier

LADDER = load_config(None).ladder
ASKS = parse_config("test", b'{"policy": "goodput", "packing": true}')
FLASHINFER = {"backend": "flashinfer"}


class FlashInferAttention:
    """FlashInfer's, as far as it says what it takes."""

    supports_ragged_verify_graph = False
    dispatch_reason: str | None = None


class LatentAttention(FlashInferAttention):
    """FlashInfer's for latent attention."""

    supports_ragged_verify_graph = True


class Fa3Attention(LatentAttention):
    """FA3's."""


class HybridAttention(FlashInferAttention):
    """What a model puts around the one that was asked for."""


REFUSES = parse_config("test", b'{"policy": "goodput", "packing": false}')


@pytest.fixture
def graphs(plugins_loaded: None) -> Any:
    from sglang_adaptive_spec.host.startup import packed_graphs

    return packed_graphs


def test_the_window_is_that_of_the_deepest_chain_of_larger_batches(graphs: Any) -> None:
    assert graphs.packed_window(LADDER, 256) == 8  # ten steps are for batches up to 32
    assert graphs.packed_window(LADDER, 32) == 11
    chains = [chain_tier(steps) for steps in (0, 1, 3, 5, 7)]
    for larger in (chains[:1], chains[:2], chains[:3]):  # smaller batches pack up to 7 steps
        assert graphs.packed_window(Ladder({1: chains, 33: larger}), 128) == 8
        assert graphs.packed_window(Ladder({1: chains, 17: larger}), 32) == 8
    few = Ladder({1: chains, 9: chains[:2]})  # batches up to 8 are not packed
    assert graphs.packed_window(few, 128) == 2
    trees = Ladder({1: [chain_tier(0), chain_tier(1), Tier(3, 2, 6)]})
    assert graphs.packed_window(trees, 64) == 2


def test_four_numbers_of_tokens_an_octave_up_to_all_windows_of_the_largest_batch(
    graphs: Any,
) -> None:
    widths = [8 * size for size in graphs.capture_sizes(256)]
    assert widths[:9] == [64, 80, 96, 112, 128, 160, 192, 224, 256]
    assert widths[-2:] == [1792, 2048]
    assert len(widths) == 21
    assert graphs.capture_sizes(100)[-1] == 100
    assert list(graphs.capture_sizes(5)) == [5]


@pytest.mark.parametrize("most", range(1, 200))
def test_numbers_ascend_and_end_with_the_last(graphs: Any, most: int) -> None:
    numbers = graphs.sizes_by_octave(most)
    assert numbers == sorted(set(numbers))
    assert (numbers[0], numbers[-1]) == (1, most)
    assert all(later <= 1.5 * size + 1 for size, later in itertools.pairwise(numbers))


@pytest.mark.parametrize(
    ("rows", "window", "is_of_use"), [(1, 8, False), (8, 8, False), (9, 8, True), (256, 2, True)]
)
def test_graphs_are_of_use_where_some_drafts_are_verified_and_not_all(
    graphs: Any, rows: int, window: int, is_of_use: bool
) -> None:
    widths = [window * size for size in graphs.capture_sizes(rows)]
    assert graphs.is_of_use(widths, window, rows) == is_of_use


def test_the_places_are_taken_for_a_verify_and_given_back_also_after_an_error(graphs: Any) -> None:
    packed = graphs.PackedTarget(8, 64, (64,), ("packed backend", "packed graphs"))
    runner = SimpleNamespace(attn_backend="backend", decode_cuda_graph_runner="graphs")
    before = dict(vars(runner))
    in_place = packed.in_place(runner)
    in_place.__enter__()
    assert list(vars(runner).values()) == ["packed backend", "packed graphs"]
    assert not in_place.__exit__(ValueError, ValueError("planted"), None)
    assert vars(runner) == before
    with graphs.PackedTarget(8, 64, (64,), None).in_place(runner):  # rounds without graphs
        assert vars(runner) == before


def test_chains_up_to_the_window_are_packed(graphs: Any) -> None:
    packed = graphs.PackedTarget(8, 64, (64,), None)
    held = [steps for steps in (0, 1, 3, 7, 8, 10) if packed.holds(chain_tier(steps))]
    assert held == [1, 3, 7]
    assert not packed.holds(Tier(3, 2, 6))


def engine(monkeypatch: pytest.MonkeyPatch, graphs: Any, **changes: Any) -> Any:
    found = {
        **{"config": ASKS, "has_draft": True, "num_replicas": 1, "state": None, "mrope": False},
        **{"lora": None, "device": "cuda", "backend": "fa3", "has_graphs": True},
        **{"prefill": None, "watermark": None, "is_unpadded": False, "is_gathered": False},
        **{"is_block": False, "is_drawn": False, "num_sharing": 2},
        **{"attention": None, "has_windows": False, "are_plans_ours": True},
        **changes,
    }
    monkeypatch.setattr(graphs, "mambaish_config", lambda _config: found["state"])
    monkeypatch.setattr(graphs, "has_decode_graphs", lambda: found["has_graphs"])
    view = SimpleNamespace(
        attention_backend=found["backend"],
        decode_attention_backend=None,
        prefill_attention_backend=found["prefill"],
    )
    graph = SimpleNamespace(disable_cuda_graph_padding=found["is_unpadded"])
    monkeypatch.setattr(graphs, "get_exec", lambda: SimpleNamespace(graph=graph))
    monkeypatch.setattr(graphs, "require_gathered_buffer", lambda: found["is_gathered"])
    monkeypatch.setattr(graphs, "resolved_view", lambda _args: view)
    monkeypatch.setattr(graphs, "has_uniform_plans", lambda _backend: found["are_plans_ours"])
    monkeypatch.setattr(graphs, "FlashInferAttnBackend", FlashInferAttention)
    usual = FlashInferAttention if found["backend"] == "flashinfer" else Fa3Attention
    attention = (found["attention"] or usual)()
    attention.dispatch_reason = "windows" if found["has_windows"] else None
    model_config = SimpleNamespace(model_is_mrope=found["mrope"])
    return SimpleNamespace(
        options=SimpleNamespace(
            config=found["config"], stages=SimpleNamespace(has_draft=found["has_draft"])
        ),
        ranks=SimpleNamespace(
            num_replicas=found["num_replicas"],
            group=SimpleNamespace(world_size=2),
            attention=SimpleNamespace(world_size=found["num_sharing"]),
        ),
        target_runner=SimpleNamespace(
            model_config=model_config,
            lora_manager=found["lora"],
            attn_backend=attention,
            watermark_state=found["watermark"],
        ),
        device=found["device"],
        server_args=SimpleNamespace(
            speculative_use_block_verification=found["is_block"],
            speculative_use_rejection_sampling=found["is_drawn"],
        ),
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"config": load_config(None)}, None),
        ({"device": "cpu", "backend": "intel_amx", "has_graphs": False}, None),
        ({"device": "cpu", "config": load_config(None)}, "rounds run without graphs"),
        ({"config": REFUSES}, "the config turns it off"),
        ({"config": load_config("conservative")}, "policy ema"),
        ({"has_draft": False}, "a table drafts trees"),
        ({"num_replicas": 2}, "ranks have requests of their own"),
        ({"state": object()}, "the model keeps recurrent state"),
        ({"mrope": True}, "the model has positions in several dimensions"),
        ({"lora": object()}, "adapters"),
        ({"backend": "triton"}, "attention backend triton"),
        ({"has_graphs": False}, "rounds run without graphs"),
        ({"prefill": "triton"}, "attention backend triton"),  # which may verify then
        (FLASHINFER, None),
        ({"prefill": "flashinfer"}, "attention backends fa3 and flashinfer"),
        ({**FLASHINFER, "attention": LatentAttention}, "attention backend LatentAttention"),
        ({**FLASHINFER, "attention": HybridAttention}, "attention backend HybridAttention"),
        ({"attention": HybridAttention}, "attention backend HybridAttention"),
        ({**FLASHINFER, "has_windows": True}, "attention backend flashinfer, with sliding windows"),
        ({**FLASHINFER, "are_plans_ours": False}, "FlashInfer's plans are left to SGLang"),
        ({"has_windows": True, "are_plans_ours": False}, None),  # FA3
        ({"watermark": object()}, "watermarks"),
        ({"is_block": True}, "--speculative-use-block-verification"),
        ({"is_unpadded": True}, "--disable-cuda-graph-padding"),
        ({"is_gathered": True}, "ranks gather tokens in equal parts"),
    ],
)
def test_why_no_round_can_be_packed(
    graphs: Any, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], reason: str | None
) -> None:
    assert graphs.packing_unsupported_reason(engine(monkeypatch, graphs, **changes)) == reason


CONFIDENT = parse_config("test", b'{"policy": "goodput", "confidence": true}')


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"config": load_config(None)}, "the config does not ask for it"),
        ({"backend": "triton"}, "no packed rounds: attention backend triton"),
        (FLASHINFER, None),
        (
            {"num_sharing": 1},
            "ranks that share no requests, and lengths are those of the first",
        ),
        ({"is_drawn": True}, "--speculative-use-rejection-sampling, which draws drafts"),
    ],
)
def test_why_confidence_chooses_nothing(
    graphs: Any, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], reason: str | None
) -> None:
    asked = engine(monkeypatch, graphs, **{"config": CONFIDENT, **changes})
    assert graphs.confidence_unsupported_reason(asked) == reason
