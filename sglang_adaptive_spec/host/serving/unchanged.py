"""What a zero-step round leaves as it was, and so need not be done again.

Before every decode round the host reserves slots for twice the largest round, request by request,
in case the round in flight gained as much as it could (sglang 0.5.23 eagle_utils.py:
eagle_prepare_for_decode). A zero-step round is known to gain its decodes and no more, so several of
them fit what was reserved once. After a round it relays the drafts of every request (managers/
overlap_utils.py:FutureMap.stash); without a draft-extend those are the ones it was relayed.
"""

from collections.abc import Callable
from typing import Any

from sglang.srt.mem_cache.allocation_sizing import get_alloc_reserve_per_decode

from sglang_adaptive_spec.host.hooks import hook_now


class Unchanged:
    """Knows which rows have slots for another round, and the drafts that were handed on."""

    def __init__(self) -> None:
        self._rows: Any = None  # of the batch that slots were reserved for: the host's tensor
        self._gained = 0  # tokens that a request may have gained since, and in the round before
        self._newest: int | None = None  # the same of the newest round; None: not told
        self._drafts: Any = None

    def launch(self, num_decodes: int) -> None:
        """Takes a zero-step round; of any other nothing is told."""
        self._newest = num_decodes

    def relay(self, drafts: Any) -> None:
        """Takes the drafts that a round without a draft-extend hands on, as it got them."""
        self._drafts = drafts

    def are_relayed(self, drafts: Any) -> bool:
        """Returns whether ``drafts`` are those that were relayed already."""
        return drafts is not None and drafts is self._drafts

    def has_slots(self, batch: Any, largest: int) -> bool:
        """Returns whether any round fits what is reserved; else it must be reserved now.

        Called before every decode round. The host's tensor of rows is another one as soon as a
        request joins or leaves.

        Args:
            batch: The host's, about to decode.
            largest: Tokens that the largest round may write; half of what is reserved.
        """
        newest = largest if self._newest is None else self._newest
        self._newest = None
        self._gained += newest
        if batch.req_pool_indices_cpu is self._rows and self._gained <= largest:
            return True
        self._rows, self._gained = batch.req_pool_indices_cpu, newest
        return False


# One per process, as a process runs one round at a time.
unchanged = Unchanged()


# -- the host's functions, hooked --


def reserve_when_needed(prepare: Callable[..., Any], batch: Any, *args: Any, **kwargs: Any) -> Any:
    """Around eagle_prepare_for_decode, which reserves anew before every round."""
    has_slots = unchanged.has_slots(batch, get_alloc_reserve_per_decode() // 2)
    if not has_slots or batch.sampling_info.penalizer_orchestrator.is_required:
        return prepare(batch, *args, **kwargs)
    batch.maybe_evict_swa()
    for req in batch.reqs:
        req.decode_batch_idx += 1
    return None


def relay_changes(
    stash: Callable[..., Any], relay: Any, indices: Any, payload: Any, *args: Any, **kwargs: Any
) -> Any:
    """Around FutureMap.stash: drafts that lie there already are not written again."""
    if unchanged.are_relayed(payload.topk_index):
        return relay.stash_bonus_tokens(indices, payload.bonus_tokens)
    return stash(relay, indices, payload, *args, **kwargs)


def install_unchanged_hooks() -> None:
    """Hooks both; for a process whose zero-step rounds are ours."""
    hook_now(
        {
            "sglang.srt.speculative.eagle_utils.eagle_prepare_for_decode": reserve_when_needed,
            "sglang.srt.managers.overlap_utils.FutureMap.stash": relay_changes,
        }
    )
