"""Builds the tiers inside the host's own start-up sequence.

The host's worker offers its controller two calls at the end of ``init_cuda_graphs``: `register`
with the start-up state, and `init_states`, inside the tensor-parallel and MoE contexts that
building needs (sglang 0.5.23 eagle_worker_v2.py:EAGLEWorkerV2.init_cuda_graphs). `TierBuilder`
stands there while the server starts and is gone when it serves.
"""

import contextlib
import logging
import math
from collections.abc import Iterator
from typing import Any

from sglang.srt.arg_groups.model_override_base import use_mla_backend
from sglang.srt.arg_groups.overrides import resolved_view
from sglang.srt.runtime_context import get_parallel
from sglang.srt.utils import get_available_gpu_memory

from sglang_adaptive_spec.host.attention.indices import Extent, extend_width
from sglang_adaptive_spec.host.attention.shared_index import shared_index
from sglang_adaptive_spec.host.attention.workspaces import provide_workspace
from sglang_adaptive_spec.host.shapes import (
    GRAPH_REQUESTS,
    attention_backends,
    plan_bytes,
    plan_heads,
)
from sglang_adaptive_spec.host.startup.capture import CaptureLists, Consumption, OutOfMemoryGuard
from sglang_adaptive_spec.ladder import Ladder
from sglang_adaptive_spec.runtime.builder import build_tiers
from sglang_adaptive_spec.runtime.memory import MemoryModel
from sglang_adaptive_spec.runtime.pool import RuntimePool, TierState
from sglang_adaptive_spec.tiers import CATCH_UP_ROUNDS, PLAIN_TIER, Tier

logger = logging.getLogger(__name__)

# A further tier has a target backend of its own beside the draft's, which is what the start-up
# measurement holds (sglang 0.5.23 eagle_worker_v2.py:build_adaptive_runtime_state).
BACKENDS_PER_TIER = 2


class TierBuilder:
    """Stands in for the host's AdaptiveController while the tiers are built."""

    def __init__(self, worker: Any, captures: CaptureLists, pool: RuntimePool, startup: Tier):
        self._worker, self._captures, self._pool = worker, captures, pool
        self._startup = startup
        self.backends = Consumption(worker.device, worker.gpu_id, self._shared_gb)
        self.graphs = Consumption(worker.device, worker.gpu_id, self._shared_gb)
        self.left_out: dict[Tier, str] = {}

    def provide_workspace(self) -> None:
        """Makes room for FlashInfer's plans of the largest graphs; before any attention backend."""
        worker, tp_size = self._worker, get_parallel().tp_size
        view = resolved_view(worker.server_args)
        if "flashinfer" not in attention_backends(view) or use_mla_backend(worker.server_args):
            return
        target, draft = (plan_heads(runner.model_config, tp_size) for runner in self._runners())
        needs = [0]
        for tier, size in self._largest_graphs().items():
            decoded = max(self._captures.decode_sizes(tier))
            needs += [plan_bytes(decoded, tier.num_draft_tokens, *target)]
            needs += [plan_bytes(size, extend_width(tier, CATCH_UP_ROUNDS), *draft)]
        provide_workspace(max(needs), worker.device)

    def extent(self) -> Extent:
        """Returns the most that a graph of any tier will hold."""
        extent = Extent.of(self._largest_graphs(), CATCH_UP_ROUNDS)
        decoded = max(self._captures.decode_sizes(PLAIN_TIER), default=0)
        return extent._replace(requests=max(extent.requests, decoded))

    @contextlib.contextmanager
    def startup_capture(self) -> Iterator[None]:
        """Around the target's capture of the start-up tier."""
        narrowed = self._captures.narrowed(self._captures.sizes(self._startup))
        with self.graphs.running(), OutOfMemoryGuard(self._startup), narrowed:
            yield

    @contextlib.contextmanager
    def draft_capture(self) -> Iterator[None]:
        """Around the draft's captures; those of later tiers are narrowed and measured already."""
        if self._pool.states:
            yield
            return
        with self.startup_capture():
            yield

    def max_catch_up_size(self) -> int:
        """Returns how many requests a zero-step round's catch-up may take at once."""
        limit = self.max_batch_size
        return min(max(self._captures.sizes(PLAIN_TIER), default=GRAPH_REQUESTS), limit)

    def max_listed_size(self) -> int:
        """Returns the largest batch that a graph of the host's list serves, or that may run."""
        limit = self.max_batch_size
        tiers = self.ladder.largest_batches(limit)
        sizes = {size for tier in tiers for size in self._captures.sizes(tier)}
        return min(max(sizes, default=limit), limit)

    # -- called by the host --

    def register(self, _state: Any) -> None:
        """Keeps the start-up tier: the host has just built it."""
        sizes = self._captures.sizes(self._startup)
        seconds = self.backends.seconds + self.graphs.seconds
        used_gb = self.backends.gb + self.graphs.gb
        values = self._pool.read_places()
        self._pool.add(TierState(self._startup, values, sizes, seconds, used_gb))

    def init_states(self, cuda_graph_bs: Any = None) -> None:
        """Builds every other tier that some batch may choose."""
        del cuda_graph_bs  # the host passes the raw command-line list, which is usually None
        memory = MemoryModel(BACKENDS_PER_TIER * self.backends.gb)
        sizes = self._pool.states[0].graph_batch_sizes
        memory.learn(self._startup, sizes, memory.fixed_gb + self.graphs.gb)
        config = self._worker.adaptive_options.config
        budget_gb = config.memory_budget_gb if config.policy == "goodput" else math.inf
        build_tiers(self._pool, self, memory, budget_gb)

    # -- TierHost --

    @property
    def ladder(self) -> Ladder:
        """What a batch may choose, given the tiers left out so far."""
        return self._captures.ladder

    @property
    def max_batch_size(self) -> int:
        """Largest batch the scheduler can form."""
        return self._captures.max_batch_size

    def graph_batch_sizes(self, tier: Tier) -> tuple[int, ...]:
        """Returns the batch sizes to capture for ``tier``."""
        return self._captures.decode_sizes(tier)

    def catch_ups(self) -> contextlib.AbstractContextManager[None]:
        """Around the capture of zero steps' draft-extends, of which fewer do."""
        return self._captures.narrowed(self._captures.catch_up_sizes())

    def larger_decodes(self) -> contextlib.AbstractContextManager[None]:
        """Around the capture of zero-step decodes, of which there are more than the host lists."""
        return self._captures.narrowed(self._captures.decode_sizes(PLAIN_TIER))

    def vocab_size(self) -> int:
        """Returns how many logits the target has per token."""
        return int(self._worker.target_worker.model_runner.model_config.vocab_size)

    def num_penalized(self) -> int:
        """Returns how many requests with penalties must find room: the largest of the host's list.

        More of them may run out of memory, as without speculation. Where a user named the
        number of requests, nothing is kept for them.
        """
        is_ours = self._worker.adaptive_options.is_cap_raised
        return self.max_listed_size() if is_ours else 0

    def lower_cap_size(self) -> int | None:
        """Returns the largest of the host's list, where the plugin let more run; else None."""
        largest = self.max_listed_size()
        is_ours = self._worker.adaptive_options.is_cap_raised
        can_go = is_ours and largest < self.max_batch_size
        return largest if can_go else None

    def lower_cap(self, largest: int) -> None:
        """Lets no more than ``largest`` requests run."""
        runner = self._worker.target_worker.model_runner
        logger.warning(
            "ADAPTIVE_EAGLE serves up to %d running requests, not %d: sampling for more would take "
            "memory that the tiers need. --max-running-requests sets another number.",
            largest,
            runner.max_running_requests,
        )
        runner.max_running_requests = largest
        self._worker.prepare_plain_rounds()

    def free_gb(self) -> float:
        """Returns this rank's free device memory plus the logits buffers that all graphs share."""
        return self.graphs.free_gb()

    def min_free_gb(self) -> float:
        """Returns the least free device memory of all ranks."""
        worker, group = self._worker, get_parallel().tp_group
        return float(
            get_available_gpu_memory(
                worker.device,
                worker.gpu_id,
                distributed=group.world_size > 1,
                cpu_group=group.cpu_group,
            )
        )

    def agree(self, verdict: bool) -> bool:
        """Returns rank 0's verdict on every rank."""
        return bool(get_parallel().tp_group.broadcast_object(verdict, src=0))

    def build(self, tier: Tier) -> tuple[object, ...]:
        """Builds ``tier`` through the host; returns what its objects hold for it."""
        with OutOfMemoryGuard(tier), self._captures.narrowed(self._captures.sizes(tier)):
            return self._worker.build_tier(tier)

    def leave_out(self, tier: Tier) -> None:
        """Withdraws ``tier`` from the ladder."""
        self.left_out[tier] = "memory"
        self._captures.ladder = self._captures.ladder.without([tier])

    # -- what the host keeps --

    def _runners(self) -> tuple[Any, Any]:
        worker = self._worker
        return worker.target_worker.model_runner, worker.draft_worker.draft_runner

    def _largest_graphs(self) -> dict[Tier, int]:
        tiers = self.ladder.largest_batches(self.max_batch_size)
        captured = {tier: self._captures.sizes(tier) for tier in {*tiers, self._startup}}
        return {tier: max(sizes) for tier, sizes in captured.items() if sizes}

    def _shared_gb(self) -> float:
        """Returns the GB that the graphs of all tiers share: logits buffers and indices."""
        outputs = {
            id(out): out for runner in self._runners() if (out := runner.graph_shared_output)
        }
        buffers = [buffer for out in outputs.values() for buffer in out._logits_buffers.values()]
        return sum(buffer.nbytes for buffer in buffers) / 2**30 + shared_index.gb
