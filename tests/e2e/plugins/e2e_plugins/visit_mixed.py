"""The visit to zero steps, with a guest whose prefill is mixed with the visitors' decode rounds.

A request whose id begins with ``guest`` waits until the visit, or the round at which it would be
paid, is well under way. /server_info shows as ``e2e_starts`` what every decode round of a request
began with: [output position, steps of its tier, values of the draft's hidden state], and as
``e2e_mixed`` the debts of the draft, row by row, that each mixed batch met.
"""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from e2e_plugins.stand_in import SCHEDULER, stand_in_of, take_over
from e2e_plugins.visit_zero import FIRST_ROUND, NUM_VALUES, ROUND, VisitZero
from sglang_adaptive_spec.host.batch import row_keys

ADMITTED_ROUND = FIRST_ROUND + 6

starts: dict[str, list[list[float]]] = defaultdict(list)
mixed: list[list[int]] = []


class VisitMixed(VisitZero):
    """Counts rounds where a scheduler can see them."""

    @property
    def has_room_for_guests(self) -> bool:
        return self._num_rounds >= ADMITTED_ROUND


def hold_guests(get_batch: Callable[..., Any], scheduler: Any, *args: Any, **kwargs: Any) -> Any:
    """Hides guests from the scheduler until it is their time."""
    if stand_in_of(scheduler).has_room_for_guests:
        return get_batch(scheduler, *args, **kwargs)
    queue = scheduler.waiting_queue
    guests = [req for req in queue if req.rid.startswith("guest")]
    queue[:] = [req for req in queue if req not in guests]
    try:
        return get_batch(scheduler, *args, **kwargs)
    finally:
        scheduler.waiting_queue += guests


def keep_start(run: Callable[..., Any], worker: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
    """Keeps what a decode round begins with."""
    if batch.forward_mode.is_decode() and batch.spec_info.hidden_states is not None:
        steps = worker.controller.decode_tier.num_steps
        values = batch.spec_info.hidden_states[:, :NUM_VALUES].tolist()
        for request, length, row in zip(batch.reqs, batch.seq_lens.tolist(), values, strict=True):
            starts[request.rid].append([length - len(request.origin_input_ids), steps, *row])
    return run(worker, batch, *args, **kwargs)


def keep_debts(run: Callable[..., Any], scheduler: Any, batch: Any, *args: Any, **kw: Any) -> Any:
    """Keeps what the draft lacks of the rows of a mixed batch, before it runs."""
    if batch.forward_mode.is_mixed():
        schedule = scheduler.draft_worker.controller.draft_schedule
        mixed.append(schedule.debts(row_keys(batch)))
    return run(scheduler, batch, *args, **kw)


def shown(visit: VisitMixed) -> dict[str, Any]:
    return {"e2e_starts": dict(starts), "e2e_mixed": mixed}


def register() -> None:
    take_over(VisitMixed, shown)
    HookRegistry.register(ROUND, keep_start, HookType.AROUND)
    HookRegistry.register(f"{SCHEDULER}.get_new_batch_prefill", hold_guests, HookType.AROUND)
    HookRegistry.register(f"{SCHEDULER}.run_batch", keep_debts, HookType.AROUND)
