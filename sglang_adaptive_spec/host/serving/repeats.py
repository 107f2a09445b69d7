"""Skips two host steps whose result would not change after a zero-step round.

Before every decode round the host reserves slots for twice the largest round, request by request,
in case the round in flight gained as much as it could (sglang 0.5.23 eagle_utils.py:
eagle_prepare_for_decode). A zero-step round is known to gain its decodes and no more, so several of
them fit what was reserved once. After a round it relays the drafts of every request (managers/
overlap_utils.py:FutureMap.stash); without a draft-extend those are the ones it was relayed.
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from sglang.srt.mem_cache.allocation_sizing import get_alloc_reserve_per_decode

from sglang_adaptive_spec.host.batch import Batch, DraftInput
from sglang_adaptive_spec.host.hooks import hook_now
from sglang_adaptive_spec.host.host_round import current_round


class Relay(Protocol):
    """What rounds hand on by (``FutureMap``)."""

    def stash_bonus_tokens(self, indices: object, bonus_tokens: torch.Tensor) -> object:
        """Writes the newest tokens alone."""


class Repeats:
    """Knows which rows have slots for another round; for a process whose zero steps are ours."""

    def __init__(self) -> None:
        self._rows: object = None  # of the batch that slots were reserved for: the host's tensor
        self._gained = 0  # tokens that a request may have gained since, and in the round before

    def install(self) -> None:
        """Hooks both steps."""
        hook_now(
            {
                "eagle_prepare_for_decode": self.reserve,
                "FutureMap.stash": relay_changes,
            }
        )

    def has_slots(self, batch: Batch, largest: int) -> bool:
        """Returns whether any round fits what is reserved; else it must be reserved now.

        Called before every decode round. The host's tensor of rows is another one as soon as a
        request joins or leaves.

        Args:
            batch: The host's, about to decode.
            largest: Tokens that the largest round may write; half of what is reserved.
        """
        newest = current_round().num_decodes
        gained = largest if newest is None else newest
        self._gained += gained
        if batch.req_pool_indices_cpu is self._rows and self._gained <= largest:
            return True
        self._rows, self._gained = batch.req_pool_indices_cpu, gained
        return False

    def reserve(
        self, prepare: Callable[..., Any], batch: Batch, *args: object, **kwargs: object
    ) -> Any:
        """Around eagle_prepare_for_decode, which reserves anew before every round."""
        has_slots = self.has_slots(batch, get_alloc_reserve_per_decode() // 2)
        if not has_slots or batch.sampling_info.penalizer_orchestrator.is_required:
            return prepare(batch, *args, **kwargs)
        batch.maybe_evict_swa()
        for req in batch.reqs:
            req.decode_batch_idx += 1
        return None


def relay_changes(
    stash: Callable[..., Any],
    relay: Relay,
    indices: object,
    payload: DraftInput,
    *args: object,
    **kwargs: object,
) -> Any:
    """Around FutureMap.stash: drafts that lie there already are not written again."""
    drafts = payload.topk_index
    if drafts is not None and drafts is current_round().relayed:
        return relay.stash_bonus_tokens(indices, payload.bonus_tokens)
    return stash(relay, indices, payload, *args, **kwargs)
