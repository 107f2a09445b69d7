"""Builds the tiers inside the host's own start-up sequence.

The host's worker offers its controller two calls at the end of ``init_cuda_graphs``: `register`
with the start-up state, and `init_states`, among the ranks and experts of the draft (sglang 0.5.23
eagle_worker_v2.py:EAGLEWorkerV2.init_cuda_graphs). `TierBuilder` stands there while the server
starts, builds right after, and is gone when it serves.
"""

import logging
import math
from collections.abc import Sequence

from sglang.srt.arg_groups.model_override_base import use_mla_backend
from sglang.srt.arg_groups.overrides import resolved_view

from sglang_adaptive_spec.host.attention.flashinfer.workspace import (
    holds_plan,
    provide_workspace,
)
from sglang_adaptive_spec.host.attention.kv_index_size import Extent
from sglang_adaptive_spec.host.drafters.drafter import Drafter, EagleRoundDrafter
from sglang_adaptive_spec.host.engine import HostEngine
from sglang_adaptive_spec.host.sizes import (
    GRAPH_REQUESTS,
    attention_backends,
    plan_bytes,
    plan_heads,
)
from sglang_adaptive_spec.host.startup.capture import (
    CaptureLists,
    OutOfMemoryGuard,
    StartupCapture,
)
from sglang_adaptive_spec.host.startup.packed_graphs import (
    PackedTarget,
    capture_sizes,
    is_of_use,
    packed_window,
    packing_unsupported_reason,
    widths_without_graphs,
)
from sglang_adaptive_spec.ladder import Ladder
from sglang_adaptive_spec.runtime.builder import build_tiers, room_gb
from sglang_adaptive_spec.runtime.memory import MemoryModel
from sglang_adaptive_spec.runtime.pool import Place, TierState, read_places, restored
from sglang_adaptive_spec.tiers import CATCH_UP_ROUNDS, PLAIN_TIER, Tier, chain_tier

logger = logging.getLogger(__name__)

# A further tier has a target backend of its own beside the draft's, which is what the start-up
# measurement holds (sglang 0.5.23 eagle_worker_v2.py:build_adaptive_runtime_state).
BACKENDS_PER_TIER = 2
LOGIT_BYTES = 4


class TierBuilder:
    """Stands in for the host's AdaptiveController while the tiers are built."""

    def __init__(
        self,
        engine: HostEngine,
        captures: CaptureLists,
        startup: StartupCapture,
        drafter: Drafter,
        lora: Sequence[Place],
    ) -> None:
        self._engine, self._captures, self._drafter = engine, captures, drafter
        self._startup, self._startup_tier = startup, engine.options.startup_tier
        self._lora = lora  # behind the drafter's places
        self._memory = MemoryModel(0.0, engine.options.stages.num_forwards)
        self.left_out: dict[Tier, str] = {}
        self.why_not_packed: str | None = None  # why no round can be packed
        self.why_no_confidence: str | None = None  # why the draft's confidence chooses no lengths

    def provide_workspace(self) -> None:
        """Makes room for FlashInfer's plans of the largest graphs; before any attention backend."""
        engine = self._engine
        backends = attention_backends(resolved_view(engine.server_args))
        if "flashinfer" not in backends or use_mla_backend(engine.server_args):
            return
        num_shards = engine.ranks.num_shards
        target, *drafts = (plan_heads(runner.model_config, num_shards) for runner in engine.runners)
        needs = [0]
        for tier, size in self._largest_graphs().items():
            decoded = max(self._captures.decode_sizes(tier))
            needs += [plan_bytes(decoded, tier.num_draft_tokens, *target)]
            width = engine.options.stages.extend_width(tier)
            needs += [plan_bytes(size, width, *draft) for draft in drafts]
        provide_workspace(max(needs), engine.device)

    def extent(self) -> Extent:
        """Returns the most that a graph of any tier will hold."""
        extent = Extent.of(self._largest_graphs(), self._engine.options.stages)
        decoded = max(self._captures.decode_sizes(PLAIN_TIER), default=0)
        return extent._replace(requests=max(extent.requests, decoded))

    def max_catch_up_size(self) -> int:
        """Returns how many requests a zero-step round's catch-up may take at once."""
        limit = self.max_batch_size
        num_tokens = self._engine.options.most_tokens
        if num_tokens is not None:
            limit = min(limit, num_tokens // CATCH_UP_ROUNDS)
        return min(max(self._captures.sizes(PLAIN_TIER), default=GRAPH_REQUESTS), limit)

    def max_listed_size(self) -> int:
        """Returns the largest batch that a graph of the host's list serves, or that may run."""
        limit = self.max_batch_size
        tiers = self.ladder.largest_batches(limit)
        sizes = {size for tier in tiers for size in self._captures.sizes(tier)}
        return min(max(sizes, default=limit), limit)

    # -- called by the host --

    def register(self, _state: object) -> None:
        """Keeps the start-up tier: the host has just built it."""
        tier, took = self._startup_tier, (self._startup.backends, self._startup.graphs)
        seconds, used_gb = sum(each.seconds for each in took), sum(each.gb for each in took)
        pool, sizes = self._engine.pool, self._captures.sizes(tier)
        pool.add(TierState(tier, pool.read(), sizes, seconds, used_gb))
        self._startup.is_measured = True

    def init_states(self, cuda_graph_bs: object = None) -> None:
        """Leaves the other tiers for later (`build_others`): here the draft's ranks are in force.

        A target's graph that was captured among them would send its experts' tokens to nobody.
        """

    # -- called by the worker --

    def build_others(self) -> None:
        """Builds every tier that some batch may choose, but for the start-up tier."""
        pool, config = self._engine.pool, self._engine.options.config
        fixed_gb = BACKENDS_PER_TIER * self._startup.backends.gb
        memory = MemoryModel(fixed_gb, num_forwards=self._engine.options.stages.num_forwards)
        self._memory = memory
        sizes, graphs_gb = pool.states[0].graph_batch_sizes, self._startup.graphs.gb
        memory.learn(self._startup_tier, sizes, fixed_gb + graphs_gb)
        budget_gb = config.memory_budget_gb if config.policy == "goodput" else math.inf
        build_tiers(pool, self, memory, budget_gb)

    def build_packed(self, drafter: EagleRoundDrafter) -> PackedTarget | None:
        """Builds what packed rounds need, behind all tiers; None, and why, where none can be."""
        self.why_not_packed = packing_unsupported_reason(self._engine)
        if self.why_not_packed is not None:
            return None
        rows, is_cpu = self.max_listed_size(), self._engine.device == "cpu"
        window, sizes = packed_window(self.ladder, rows), capture_sizes(rows)
        widths = tuple(window * size for size in sizes)
        widths = widths_without_graphs(window, rows) if is_cpu else widths
        if not is_of_use(widths, window, rows):
            self.why_not_packed = "batches are too small, or draft no chain"
            return None
        if is_cpu:
            return PackedTarget(window, rows, widths, None)
        target = self._engine.target_runner
        heads = plan_heads(target.model_config, self._engine.ranks.num_shards)
        if not holds_plan(target.attn_backend, rows, window, heads):
            self.why_not_packed = "FlashInfer's workspace"
            return None
        if not self._has_room(widths, len(sizes)):
            self.why_not_packed = "memory"
            return None
        with self._startup.packed.running(), OutOfMemoryGuard(chain_tier(window - 1)):
            state, captured = drafter.build_packed(window, sizes)
        return PackedTarget(window, rows, tuple(sorted(captured)), state)

    def _has_room(self, widths: Sequence[int], num_graphs: int) -> bool:
        """Returns whether graphs of ``widths`` tokens, and logits for sampling, find room."""
        memory, engine = self._memory, self._engine
        needed_gb = memory.fixed_gb / BACKENDS_PER_TIER + memory.unit_gb * num_graphs
        # Beside those of the graphs: a packed round spreads them over whole windows.
        needed_gb += LOGIT_BYTES * max(widths) * self.vocab_size() / 2**30
        budget_gb = engine.options.config.memory_budget_gb
        return self.agree(needed_gb <= room_gb(engine.pool, self, budget_gb))

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

    def vocab_size(self) -> int:
        """Returns how many logits the target has per token."""
        return self._engine.target_runner.model_config.vocab_size

    def num_penalized(self) -> int:
        """Returns how many requests with penalties must find room: the largest of the host's list.

        More of them may run out of memory, as without speculation. Where a user named the
        number of requests, nothing is kept for them.
        """
        is_ours = self._engine.options.is_cap_raised
        return self.max_listed_size() if is_ours else 0

    def lower_cap_size(self) -> int | None:
        """Returns the largest of the host's list, where the plugin let more run; else None."""
        largest = self.max_listed_size()
        is_ours = self._engine.options.is_cap_raised
        can_go = is_ours and largest < self.max_batch_size
        return largest if can_go else None

    def lower_cap(self, largest: int) -> None:
        """Lets no more than ``largest`` requests run."""
        runner = self._engine.target_runner
        logger.warning(
            "ADAPTIVE_EAGLE serves up to %d running requests, not %d: sampling for more would take "
            "memory that the tiers need. --max-running-requests sets another number.",
            largest,
            runner.max_running_requests,
        )
        runner.max_running_requests = largest
        if self._drafter.catch_ups is not None:
            self.prepare_catch_ups()

    def prepare_catch_ups(self) -> None:
        """Makes what zero-step rounds keep for the draft, for as many requests as may run."""
        ranks = self._engine.ranks
        with self._startup.catch_ups.running():
            self._drafter.prepare(self.max_batch_size, self.max_catch_up_size(), ranks)

    def free_gb(self) -> float:
        """Returns this rank's free device memory plus what all tiers share."""
        return self._startup.graphs.free_gb()

    def min_free_gb(self) -> float:
        """Returns the least free device memory of all ranks."""
        return self._engine.ranks.min_free_gb(self._engine.device, self._engine.gpu_id)

    def agree(self, verdict: bool) -> bool:
        """Returns rank 0's verdict on every rank."""
        return self._engine.ranks.broadcast(verdict)

    def build(self, tier: Tier) -> tuple[object, ...]:
        """Builds ``tier`` through the host; returns what its objects hold for it."""
        narrowed = self._captures.narrowed(self._captures.sizes(tier))
        with OutOfMemoryGuard(tier), narrowed, restored(self._lora):
            return (*self._drafter.build(tier), *read_places(self._lora))

    def leave_out(self, tier: Tier) -> None:
        """Withdraws ``tier`` from the ladder."""
        self.left_out[tier] = "memory"
        self._captures.ladder = self._captures.ladder.without([tier])

    # -- for the start-up block --

    def kept(self) -> dict[str, tuple[float, float]]:
        """Returns GB and seconds of what belongs to no tier, by what it is."""
        catch_ups, shared_gb = self._startup.catch_ups, self._startup.shared_gb()
        packed = self._startup.packed
        return {
            "kept for the draft at zero steps": (catch_ups.gb, catch_ups.seconds),
            "shared by all tiers": (shared_gb, 0.0),
            **({"packed rounds": (packed.gb, packed.seconds)} if packed.seconds else {}),
        }

    # -- what the host keeps --

    def _largest_graphs(self) -> dict[Tier, int]:
        tiers = self.ladder.largest_batches(self.max_batch_size)
        captured = {tier: self._captures.sizes(tier) for tier in {*tiers, self._startup_tier}}
        return {tier: max(sizes) for tier, sizes in captured.items() if sizes}
