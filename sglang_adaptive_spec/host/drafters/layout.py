"""The ranks that a draft runs on, where attention data parallelism gives it fewer than the target.

An EAGLE-3 draft is dense and runs within an attention group; experts of the target need all ranks.
SGLang enters that layout around everything that it builds of its adaptive tiers (sglang 0.5.20 to
0.5.23 eagle_worker_v2.py:init_cuda_graphs), the target's graphs included. So tiers are built
outside, and the draft's part of them enters it here.
"""

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from sglang.srt.distributed.parallel_state import patch_tensor_parallel_group
from sglang.srt.layers.moe.utils import (
    speculative_moe_a2a_backend_context,
    speculative_moe_backend_context,
)

from sglang_adaptive_spec.host.engine import DraftWorker
from sglang_adaptive_spec.host.ranks import Group, Ranks


def own_ranks(draft: DraftWorker, ranks: Ranks) -> Group | None:
    """Returns the group that the host made ``draft`` for, None where it is the target's."""
    layout = getattr(draft, "parallel_layout", None)  # since 0.5.23
    if layout is not None:
        group: Group | None = layout.tp_group
        return group
    has_own = ranks.num_replicas > 1 and draft.speculative_algorithm.is_eagle3()
    return ranks.attention if has_own else None


def draft_layout(group: Group | None) -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Returns what puts a draft's ranks in force, and its way to run experts.

    Args:
        group: Of the host, that the draft runs within; None: the target's.
    """
    # Since 0.5.21; before, a draft's ranks replaced the target's without more.
    has_owner = "owns_attention" in inspect.signature(patch_tensor_parallel_group).parameters

    @contextlib.contextmanager
    def layout() -> Iterator[None]:
        ranks: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        if group is not None and has_owner:
            ranks = patch_tensor_parallel_group(group, owns_attention=True)
        elif group is not None:
            ranks = patch_tensor_parallel_group(group)
        with ranks, speculative_moe_backend_context(), speculative_moe_a2a_backend_context():
            yield

    return layout
