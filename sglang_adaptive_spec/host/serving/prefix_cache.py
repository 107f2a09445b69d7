"""Of a request that ends, the prefix cache keeps what the draft has KV for.

The host asks the request how many of its tokens the cache may have, and frees the rest: so it
leaves a model's thinking out (sglang 0.5.23 managers/schedule_batch.py:Req.owned_kv_len).
`loop/draft_prefixes.py` says how many that are.
"""

from sglang.srt.managers.schedule_batch import Req

from sglang_adaptive_spec.host.batch import Request, RequestPool, row_key
from sglang_adaptive_spec.host.hooks import AFTER, hook_now
from sglang_adaptive_spec.loop.draft_prefixes import DraftPrefixes

OWNED = "Req.owned_kv_len"
OWNED_BEFORE = "Req.effective_kv_committed_len"  # up to 0.5.20


class CachedPrefixes:
    """Answers for the requests of a scheduler."""

    def __init__(self, prefixes: DraftPrefixes, req_to_token_pool: RequestPool) -> None:
        self._prefixes, self._req_to_token_pool = prefixes, req_to_token_pool

    def install(self) -> None:
        """Hooks the question."""
        hook_now({OWNED if hasattr(Req, "owned_kv_len") else OWNED_BEFORE: self.owned}, AFTER)

    def owned(self, num_tokens: int, req: Request, *_args: object, **_kwargs: object) -> int:
        """Returns how many of ``num_tokens`` the cache may have."""
        if not req.finished():  # retracted: nothing of it is cached
            return num_tokens
        key = row_key(self._req_to_token_pool, req.kv.req_pool_idx)
        num_cached = req.kv.cache_protected_len
        return self._prefixes.end(key, num_tokens, len(req.output_ids), num_cached)
