"""Of a request that ends, the prefix cache keeps what the draft has KV for.

The host asks the request how many of its tokens the cache may have, and frees the rest: so it
leaves a model's thinking out (sglang 0.5.23 managers/schedule_batch.py:Req.owned_kv_len).
`loop/draft_prefixes.py` says how many that are.
"""

from typing import Any

from sglang.srt.managers.schedule_batch import Req

from sglang_adaptive_spec.host.hooks import AFTER, hook_now
from sglang_adaptive_spec.host.serving.rows import row_key
from sglang_adaptive_spec.loop.draft_prefixes import DraftPrefixes

OWNED = "sglang.srt.managers.schedule_batch.Req.owned_kv_len"
OWNED_BEFORE = "sglang.srt.managers.schedule_batch.Req.effective_kv_committed_len"  # up to 0.5.20


class CachedPrefixes:
    """Hooks the question; for the process of a scheduler."""

    def __init__(self) -> None:
        self._prefixes: DraftPrefixes | None = None
        self._req_to_token_pool: Any = None

    def install(self, prefixes: DraftPrefixes, req_to_token_pool: Any) -> None:
        """Hooks the host's method, which asks ``prefixes`` from now on."""
        self._prefixes, self._req_to_token_pool = prefixes, req_to_token_pool
        target = OWNED if hasattr(Req, "owned_kv_len") else OWNED_BEFORE
        hook_now({target: _owned}, AFTER)

    def owned(self, num_tokens: int, req: Any) -> int:
        """Returns how many of ``num_tokens`` the cache may have."""
        if self._prefixes is None or not req.finished():  # retracted: nothing of it is cached
            return num_tokens
        key = row_key(self._req_to_token_pool, req.kv.req_pool_idx)
        num_cached = req.kv.cache_protected_len
        return self._prefixes.end(key, num_tokens, len(req.output_ids), num_cached)


# One per process, as a process runs one scheduler.
cached_prefixes = CachedPrefixes()


def _owned(result: int, req: Any, *_args: Any, **_kwargs: Any) -> int:
    return cached_prefixes.owned(result, req)
