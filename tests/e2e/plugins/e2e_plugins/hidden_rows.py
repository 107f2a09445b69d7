"""Hides from a round what it must not rely on: lengths on the CPU, and an id of each request.

Attention backends such as FA3 need no lengths on the CPU, so the host publishes none under the
overlap schedule; with several tokenizer workers, clients may give two running requests one id.
/server_info shows as ``e2e_contexts`` what every round was told of its context, what it had, and
how much of that rounds may have added: one in flight, and those since lengths were read.
"""

from collections.abc import Callable
from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from e2e_plugins.forced_switch import WalkAllTiers, shown
from e2e_plugins.stand_in import SCHEDULER, take_over

NEEDS_LENGTHS = "sglang.srt.managers.overlap_utils.decide_needs_cpu_seq_lens"
ROUND = "sglang.srt.speculative.eagle_worker_v2.EAGLEWorkerV2.forward_batch_generation"

contexts: list[tuple[int, int, int]] = []


def with_one_rid(
    run: Callable[..., Any], scheduler: Any, batch: Any, *args: Any, **kwargs: Any
) -> Any:
    """Runs a batch whose requests all have the same id meanwhile."""
    rids = [req.rid for req in batch.reqs]
    for req in batch.reqs:
        req.rid = "one"
    try:
        return run(scheduler, batch, *args, **kwargs)
    finally:
        for req, rid in zip(batch.reqs, rids, strict=True):
            req.rid = rid


def compare_contexts(
    run: Callable[..., Any], worker: Any, batch: Any, *args: Any, **kwargs: Any
) -> Any:
    """Keeps what the policy was told beside the lengths on the device."""
    if batch.forward_mode.is_decode() and batch.reqs:  # else start-up measures
        assert batch.seq_lens_cpu is None
        told = worker.controller.newest.context_tokens
        num_rounds = 1 + worker.decode_batches._num_rounds
        added = num_rounds * batch.batch_size() * worker.controller.startup_tier.num_draft_tokens
        contexts.append((told, int(batch.seq_lens.sum()), added))
    return run(worker, batch, *args, **kwargs)


def show(walk: WalkAllTiers) -> dict[str, Any]:
    return {**shown(walk), "e2e_contexts": contexts}


def register() -> None:
    take_over(WalkAllTiers, show)
    HookRegistry.register(NEEDS_LENGTHS, lambda *_: False, HookType.REPLACE)
    HookRegistry.register(ROUND, compare_contexts, HookType.AROUND)
    HookRegistry.register(f"{SCHEDULER}.run_batch", with_one_rid, HookType.AROUND)
