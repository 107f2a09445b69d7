"""The host's question how much of a request the cache may have, answered by what the draft has."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch


@pytest.fixture
def module(plugins_loaded: None) -> Any:
    from sglang_adaptive_spec.host.serving import prefix_cache

    return prefix_cache


def request(row: int, num_tokens: int, is_finished: bool = True) -> Any:
    """One that leaves its row, with five tokens in the cache already."""
    from sglang.srt.managers.schedule_batch import ReqKvInfo

    kv = ReqKvInfo(req_pool_idx=row, kv_committed_len=num_tokens, cache_protected_len=5)
    return SimpleNamespace(kv=kv, output_ids=[0] * 20, finished=lambda: is_finished)


def test_the_row_of_a_request_is_that_of_its_batch(module: Any) -> None:
    from sglang_adaptive_spec.host.batch import row_key, row_keys

    pool = SimpleNamespace(req_generation=torch.tensor([0, 3, 1, 7]))
    rows = torch.tensor([3, 1])
    keys = row_keys(SimpleNamespace(req_pool_indices_cpu=rows, req_to_token_pool=pool))
    assert keys == tuple(row_key(pool, row) for row in rows.tolist())


def test_what_the_draft_lacks_is_no_longer_the_cache_s(module: Any) -> None:
    from sglang.srt.managers.schedule_batch import Req

    from sglang_adaptive_spec.loop.draft_prefixes import DraftPrefixes

    pool, prefixes = SimpleNamespace(req_generation=torch.tensor([0, 3, 1, 7])), DraftPrefixes()
    cached = module.CachedPrefixes(prefixes, pool)
    cached.install()
    prefixes.fall_behind((1 + 3 * 4,), (30,))
    owned = getattr(Req, module.OWNED.rpartition(".")[2])
    assert owned.__wrapped__  # hooked in the host
    assert [cached.owned(50, request(row, 50)) for row in (1, 2)] == [30, 50]
    assert cached.owned(20, request(1, 20)) == 20


def test_a_retracted_request_takes_nothing_from_the_allowance(module: Any) -> None:
    from sglang_adaptive_spec.loop.draft_prefixes import DraftPrefixes

    prefixes = DraftPrefixes(most_allowed=25)
    pool = SimpleNamespace(req_generation=torch.tensor([0] * 4))
    cached = module.CachedPrefixes(prefixes, pool)
    prefixes.fall_behind((1, 2), (30, 30))
    assert cached.owned(50, request(1, 50, is_finished=False)) == 50
    assert cached.owned(50, request(2, 50)) == 30
