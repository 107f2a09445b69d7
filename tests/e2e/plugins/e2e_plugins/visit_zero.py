"""Puts a script in the place of the server's policy: three steps, and a visit to zero steps.

Only batches with a request whose id begins with ``visit`` pay the visit; the others never leave
three steps, so one server serves both arms of the comparison. A request's id also says of how many
it is one (``visit-0-of-6``): requests sent together may join over several rounds, and the visit
shall find them all. What every round of a request accepted is shown in /server_info as
``e2e_rounds``, and as ``e2e_relays`` the draft's hidden state that each round began with: what the
last draft-extend computed from the draft's KV. A whole model hands none on; of it the newest KV of
the last layer is shown.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from e2e_plugins.stand_in import StandIn, rids, take_over
from sglang_adaptive_spec.loop import catch_up
from sglang_adaptive_spec.tiers import CATCH_UP_ROUNDS, Plan

ROUND = "sglang.srt.speculative.eagle_worker_v2.EAGLEWorkerV2.forward_batch_generation"
STEPS = 3
FIRST_ROUND, LAST_ROUND = 8, 47  # of the visit: two catch-ups due by then, and one to leave
NUM_VALUES = 4  # of a hidden state: enough to tell two apart

relays: dict[str, list[list[float]]] = defaultdict(list)


class VisitZero(StandIn):
    """Chooses by the round since the batch was complete."""

    last_round = LAST_ROUND

    def __init__(self, policy: Any, tiers: Sequence[Any]) -> None:
        super().__init__(policy, tiers)
        self._by_steps = {tier.num_steps: tier for tier in tiers}
        self._requests: set[str] = set()
        self._num_rounds = 0
        # request id: per round [steps, accepted drafts, whether its first draft is known to hold,
        # decodes]
        self.rounds: dict[str, list[list[Any]]] = defaultdict(list)

    def choose(self, batch: Any) -> Any:
        requests = set(rids(batch.requests))
        if not requests & self._requests:
            self._num_rounds = 0
        self._requests = requests
        if self._num_rounds or len(requests) == _num_together(requests):
            self._num_rounds += 1
        is_visit = any(rid.startswith("visit") for rid in requests)
        is_away = is_visit and FIRST_ROUND <= self._num_rounds <= self.last_round
        return Plan(self._by_steps[0 if is_away else STEPS])

    def observe(self, observation: Any) -> None:
        firsts = observation.first_draft_correct or [None] * observation.batch_size
        names = rids(observation.requests)
        rows = zip(names, observation.num_correct_drafts, firsts, strict=True)
        for rid, num_correct, first in rows:
            steps, num_decodes = observation.tier.num_steps, observation.plan.num_decodes
            self.rounds[rid].append([steps, num_correct, first, num_decodes])


def _num_together(rids: set[str]) -> int:
    """Returns how many requests were sent together, as their ids say; 0 where none says it."""
    return max((int(rid.split("-")[3]) for rid in rids if "-of-" in rid), default=0)


def keep_relay(run: Callable[..., Any], worker: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
    """Keeps what a decode round of every request begins with."""
    if batch.forward_mode.is_decode():
        values = state_of(worker.draft_worker.draft_runner, batch)[:, :NUM_VALUES].tolist()
        for request, row in zip(batch.reqs, values, strict=True):
            relays[request.rid].append(row)
    return run(worker, batch, *args, **kwargs)


def state_of(draft: Any, batch: Any) -> Any:
    """Returns what the last draft-extend left, by request: [bs, values].

    Of a whole model: the mean of the keys, and of the values, that its last layer has of the newest
    positions. Each is one that a catch-up may have written.
    """
    if batch.spec_info.hidden_states is not None:
        return batch.spec_info.hidden_states
    newest = batch.seq_lens[:, None] - 1 - torch.arange(CATCH_UP_ROUNDS)
    rows = batch.req_pool_indices[:, None]
    slots = draft.req_to_token_pool.req_to_token[rows, newest.clamp(min=0)]
    last_layer, pool = draft.model_config.num_hidden_layers - 1, draft.token_to_kv_pool
    buffers = pool.get_key_buffer(last_layer), pool.get_value_buffer(last_layer)
    means = [buffer[slots].float().mean(1).flatten(1) for buffer in buffers]
    return torch.cat([mean[:, : NUM_VALUES // 2] for mean in means], dim=1)


def shown(visit: VisitZero) -> dict[str, Any]:
    """What the rounds accepted, and what they began with."""
    return {"e2e_rounds": dict(visit.rounds), "e2e_relays": dict(relays)}


def register(policy: type[VisitZero] = VisitZero) -> None:
    catch_up.INTERVALS_FOR_ONE = 1  # so that one of two catch-ups of a visit writes KV alone
    take_over(policy, shown)
    HookRegistry.register(ROUND, keep_relay, HookType.AROUND)
