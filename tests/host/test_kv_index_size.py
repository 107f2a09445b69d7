"""How much all tiers keep together to find KV slots, as it follows from a server's arguments."""

from types import SimpleNamespace

import pytest

from sglang_adaptive_spec.host.attention.kv_index_size import Extent, IndexShape, triton_row_bytes
from sglang_adaptive_spec.host.sizes import OF_A_DRAFT, OF_A_TABLE
from sglang_adaptive_spec.tiers import PLAIN_TIER, Tier, chain_tier

CONTEXT, PAGES = 1000, 100
EXTENT = Extent(requests=64, tokens=960, draft_rows=192)


def shape(*backends: str, num_pools: int = 1) -> IndexShape:
    return IndexShape(backends, CONTEXT, page_size=10, num_pools=num_pools, row_bytes=100)


@pytest.mark.parametrize(
    ("largest", "extent"),
    [
        ({}, (0, 0, 0)),
        ({PLAIN_TIER: 256}, (256, 256 * 15, 0)),  # a catch-up of 15 tokens a request
        ({chain_tier(1): 64}, (64, 64 * 2, 64)),
        ({chain_tier(3): 64}, (64, 64 * 4, 64 * 3)),
        ({Tier(3, 4, 16): 8}, (8, 8 * 16, 8 * 4 * 3)),
        # Each is the most of any tier, and no tier need have them all.
        (
            {PLAIN_TIER: 128, chain_tier(10): 8, Tier(2, 8, 24): 100},
            (128, 100 * 24, 100 * 8 * 2),
        ),
    ],
)
def test_the_most_that_a_graph_of_any_tier_holds(
    largest: dict[Tier, int], extent: tuple[int, int, int]
) -> None:
    assert Extent.of(largest, OF_A_DRAFT) == extent


def test_a_tables_graphs_verify_and_nothing_else() -> None:
    largest = {PLAIN_TIER: 128, chain_tier(7): 32}
    assert Extent.of(largest, OF_A_TABLE) == (128, 32 * 8, 0)


@pytest.mark.parametrize(
    ("backend", "is_tree", "num_bytes"),
    [
        # Entries for requests and draft rows, then the mask of a verify.
        ("flashinfer", False, CONTEXT * (4 * (64 + 192) + 960 // 8)),
        ("triton", False, CONTEXT * (8 * (64 + 192) + 960) + 100 * 960),
        ("fa3", False, 4 * 64 * PAGES),
        ("fa3", True, 4 * 64 * PAGES + CONTEXT * (4 * 64 + 960)),
        ("intel_amx", False, 0),
    ],
)
def test_what_the_graphs_of_all_tiers_take(backend: str, is_tree: bool, num_bytes: int) -> None:
    assert shape(backend).gb(EXTENT, is_tree) == num_bytes / 2**30


def test_target_and_draft_on_different_backends_keep_both() -> None:
    each = [shape(name).gb(EXTENT) for name in ("fa3", "triton")]
    assert shape("fa3", "triton").gb(EXTENT) == sum(each)
    assert min(each) > 0


def test_a_sliding_window_has_a_table_beside_that_of_whole_contexts() -> None:
    assert shape("fa3", num_pools=2).gb(EXTENT) == 2 * shape("fa3").gb(EXTENT)


@pytest.mark.parametrize(
    ("page_size", "is_hybrid_swa", "found"), [(None, False, (1, 1)), (64, True, (64, 2))]
)
def test_the_shape_is_read_from_arguments_and_model(
    page_size: int | None, is_hybrid_swa: bool, found: tuple[int, int]
) -> None:
    view = SimpleNamespace(triton_attention_num_kv_splits=8, page_size=page_size)
    model = SimpleNamespace(context_len=131072, is_hybrid_swa=is_hybrid_swa)
    heads = [(32, 8, 128), (16, 8, 128), (32, 4, 128)]  # a buffer for each number of query heads
    made = IndexShape.of(view, ["triton"], model, heads)
    assert made == (["triton"], 131072, *found, 132_096 + 132_096 // 2)


def test_tritons_partial_results_of_8b_take_132_kb_a_token() -> None:
    assert triton_row_bytes(num_heads=32, head_dim=128, num_kv_splits=8) == 132_096
