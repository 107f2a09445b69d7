"""How much the graphs of a tier keep per request: what the host's backends allocate."""

import pytest

from sglang_adaptive_spec.host.indices import GraphIndex, triton_row_bytes
from sglang_adaptive_spec.policy.tiers import PLAIN_TIER, Tier, chain_tier

THREE, ONE, TREE = chain_tier(3), chain_tier(1), Tier(3, 4, 16)
CONTEXT = 1000


@pytest.mark.parametrize(
    ("backend", "tier", "request_bytes"),
    [
        # Verify and draft-extend with a mask byte, then the drafts.
        ("flashinfer", THREE, CONTEXT * (5 * (4 + 4) + 4 * 3)),
        ("flashinfer", ONE, CONTEXT * 5 * (2 + 2)),  # a single draft is not captured
        ("flashinfer", PLAIN_TIER, CONTEXT * 5 * (1 + 15)),
        ("flashinfer", TREE, CONTEXT * (5 * (16 + 16) + 4 * 3 * 4)),
        ("triton", THREE, CONTEXT * (4 + 8 * (4 + 4 + 3)) + 100 * (4 + 4 + 3)),
        # Four tables in each of target, draft-extend and all but the last draft step.
        ("fa3", THREE, 4 * 4 * 4 * (CONTEXT // 10)),
        ("fa3", PLAIN_TIER, 2 * 4 * 4 * (CONTEXT // 10)),
        ("fa3", TREE, 4 * 4 * (4 * (CONTEXT // 10) + 2 * CONTEXT)),
        ("intel_amx", THREE, 0),
    ],
)
def test_what_a_request_takes(backend: str, tier: Tier, request_bytes: int) -> None:
    index = GraphIndex([backend], CONTEXT, page_size=10, catch_up_width=15, row_bytes=100)
    assert index.gb(tier, 64) == 64 * request_bytes / 2**30


def test_where_target_and_draft_differ_the_larger_counts() -> None:
    index = GraphIndex(["fa3", "triton"], CONTEXT, 1, 15, row_bytes=100)
    assert index.gb(THREE, 8) == index._replace(backends=["triton"]).gb(THREE, 8) > 0


def test_tritons_partial_results_of_8b_take_132_kb_a_token() -> None:
    assert triton_row_bytes(num_heads=32, head_dim=128, num_kv_splits=8) == 132_096
