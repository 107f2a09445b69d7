"""How many requests run at once where nobody names a number.

SGLang stops at 48 where it speculates, and at memory alone where it does not. A server that may run
zero steps would queue requests that no speculation serves at once. So where the config lets batches
above the decode graphs run zero steps alone, the cap is the one that SGLang has without
speculation. Elsewhere it is the largest batch with decode graphs, up to `GRAPH_REQUESTS`.

Without a graph a decode waits for the CPU to launch it, so zero steps alone have some for batches
beyond the host's largest, too, unless the user named the sizes.

Every graph up to there must fit: on FlashInfer its plan into the workspace, and the index that all
tiers share beside the tiers (host/attention/flashinfer/workspace.py, kv_index_size.py).
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sglang.srt.arg_groups.model_override_base import model_config_of, use_mla_backend
from sglang.srt.arg_groups.overrides import declare_resolution, resolving_view
from sglang.srt.configs.hybrid_arch import mambaish_config
from sglang.srt.model_executor.cuda_graph_config import Backend

from sglang_adaptive_spec.config.schema import AdaptiveConfig
from sglang_adaptive_spec.host.attention.kv_index_size import KNOWN, Extent, IndexShape
from sglang_adaptive_spec.host.launch.options import ATTRIBUTE, AdaptiveOptions, options_of
from sglang_adaptive_spec.host.launch.unsupported import resolved_reason
from sglang_adaptive_spec.host.server_args import ServerArgs, num_replicas
from sglang_adaptive_spec.host.sizes import (
    GRAPH_REQUESTS,
    Stages,
    attention_backends,
    heads,
    largest_workspace_bytes,
    plan_bytes,
)
from sglang_adaptive_spec.tiers import PLAIN_TIER

logger = logging.getLogger(__name__)

INDEX_SHARE = 0.5  # of the tiers' memory, and on top of it
# Batches beyond the host's largest graph that zero steps decode with one. A choice: a batch pads up
# by a fourth at most.
LARGER_SIZES = (320, 384, 448, 512, 640, 768)
GRAPH_FLAGS = ("cuda_graph_bs_decode", "cuda_graph_max_bs_decode", "cuda_graph_config")
# No number: SGLang counts as without speculation, by the KV slots (sglang 0.5.23
# kv_cache_configurator.py:resolve_max_num_reqs).
AS_WITHOUT_SPECULATION = None


def raise_request_cap(server_args: ServerArgs, handle_speculative: Callable[[Any], None]) -> None:
    """Wraps the host's step that caps running requests with speculation: raises its cap.

    What the user, or the model, has set before stays.
    """
    before = resolving_view(server_args).max_running_requests
    handle_speculative(server_args)
    cap = resolving_view(server_args).max_running_requests
    options = options_of(server_args)
    if cap is None or options is None or options.static_reason is not None:
        return
    if resolved_reason(server_args) is not None:  # static, once all is resolved
        return
    why = _why_kept(server_args)
    raised: int | None = cap
    if not why and _has_graphs(server_args):
        room = _Room.of(server_args, options)
        options = replace(options, larger_sizes=_larger_sizes(server_args, room))
        setattr(server_args, ATTRIBUTE, options)
        raised = _raised(server_args, room, cap)
    if before is not None:
        return
    if raised != cap:
        declare_resolution(server_args, __name__, max_running_requests=raised)
        setattr(server_args, ATTRIBUTE, replace(options, is_cap_raised=True))
        logger.warning(
            "ADAPTIVE_EAGLE serves %s instead of SGLang's %d with speculation. "
            "--max-running-requests sets another number.",
            "as many running requests as SGLang does without speculation"
            if raised is AS_WITHOUT_SPECULATION
            else f"up to {raised} running requests",
            cap,
        )
        return
    logger.warning(
        "ADAPTIVE_EAGLE serves up to %d running requests, SGLang's cap with speculation where none "
        "is set (%s); without speculation SGLang has no cap. --max-running-requests sets another "
        "number.",
        cap,
        why
        or "larger batches have no decode graphs, or their plans and indices take too much memory: "
        "SGLANG_FLASHINFER_WORKSPACE_SIZE, --context-length, memory_budget_gb",
    )


def _why_kept(server_args: ServerArgs) -> str | None:
    """Returns what rules out a higher cap whatever the batch, or None."""
    view, model = resolving_view(server_args), model_config_of(server_args)
    if other := attention_backends(view).difference(KNOWN):
        return f"attention backend {min(other)}"
    if mambaish_config(model) is not None:
        return "a model with recurrent state, which SGLang keeps per request and draft token"
    if view.moe_a2a_backend != "none":
        return f"MoE all-to-all backend {view.moe_a2a_backend}, whose buffers hold so many tokens"
    return None


def _has_graphs(server_args: ServerArgs) -> bool:
    view = resolving_view(server_args)
    return view.device != "cpu" and view.cuda_graph_config.decode.backend != Backend.DISABLED


def _raised(server_args: ServerArgs, room: "_Room", cap: int) -> int | None:
    """Returns how many requests may run, at least ``cap``, or `AS_WITHOUT_SPECULATION`."""
    view, fitting = resolving_view(server_args), _fitting(server_args, room)
    largest = max((size for size in fitting if size <= GRAPH_REQUESTS), default=0)
    do_all_fit = max(view.cuda_graph_config.decode.bs) in fitting
    raised = max(cap, num_replicas(view) * largest)  # the host's cap is one of all replicas
    if not do_all_fit or not _is_plain_above(room.config, largest):
        return raised
    if view.speculative_use_rejection_sampling:
        return raised  # the host keeps a row of vocabulary per request that may run
    return AS_WITHOUT_SPECULATION


def _is_plain_above(config: AdaptiveConfig, batch_size: int) -> bool:
    """Returns whether batches above ``batch_size`` may choose zero steps alone."""
    ladder = config.ladder
    first = ladder.bound(batch_size + 1)
    return all(tiers == (PLAIN_TIER,) for bound, tiers in ladder.ranges.items() if bound >= first)


@dataclass(frozen=True, slots=True)
class _Room:
    """What limits graphs beside the host's list; read from the arguments once."""

    config: AdaptiveConfig
    stages: Stages
    index: IndexShape
    planned: Sequence[tuple[int, int, int]]  # heads whose plans FlashInfer keeps in its workspace

    @classmethod
    def of(cls, server_args: ServerArgs, options: AdaptiveOptions) -> "_Room":
        view, model = resolving_view(server_args), model_config_of(server_args)
        backends = attention_backends(view)
        shapes = heads(server_args, view.tp_size // num_replicas(view))
        index = IndexShape.of(view, backends, model, shapes)
        # Its plans for MLA are small.
        is_planned = "flashinfer" in backends and not use_mla_backend(server_args)
        return cls(options.config, options.stages, index, shapes if is_planned else ())

    def holds_index(self, batch_size: int, num_decoded: int = 0) -> bool:
        """Returns whether the index fits; arguments as of `index_gb`."""
        budget_gb = INDEX_SHARE * self.config.memory_budget_gb
        return index_gb(self.config, self.stages, self.index, batch_size, num_decoded) <= budget_gb

    def holds_plans(self, batch_size: int, width: int) -> bool:
        """Returns whether plans of ``width`` tokens a request fit into FlashInfer's workspace."""
        most = largest_workspace_bytes()
        return all(plan_bytes(batch_size, width, *shape) <= most for shape in self.planned)


def _larger_sizes(server_args: ServerArgs, room: _Room) -> tuple[int, ...]:
    """Returns those of `LARGER_SIZES` for which there is room; none where the user chose sizes."""
    if any(getattr(server_args, name) is not None for name in GRAPH_FLAGS):
        return ()
    largest = max(resolving_view(server_args).cuda_graph_config.decode.bs)
    num_logits = largest * room.config.largest_tier.num_draft_tokens  # of the largest verify
    return tuple(
        size
        for size in LARGER_SIZES
        if largest < size <= num_logits
        and room.holds_index(largest, size)
        and room.holds_plans(size, width=1)
    )


def _fitting(server_args: ServerArgs, room: _Room) -> list[int]:
    """Returns the captured batch sizes whose index and plans find room."""
    sizes = sorted(resolving_view(server_args).cuda_graph_config.decode.bs)
    # Any tier may be captured above its own slot, because batches pad up.
    width = max(map(room.stages.extend_width, (room.config.largest_tier, PLAIN_TIER)))
    return [size for size in sizes if room.holds_index(size) and room.holds_plans(size, width)]


def index_gb(
    config: AdaptiveConfig,
    stages: Stages,
    index: IndexShape,
    batch_size: int,
    num_decoded: int = 0,
) -> float:
    """Returns the GB of the index that all tiers share.

    Args:
        config: Which batches may choose which tiers.
        stages: Those that have graphs.
        index: What a request takes.
        batch_size: The largest with graphs.
        num_decoded: The largest with a graph at zero steps, which catches up in smaller parts.
    """
    largest = config.ladder.largest_batches(batch_size)
    is_tree = stages.has_trees or any(tier.topk > 1 for tier in largest)
    extent = Extent.of(largest, stages)
    extent = extent._replace(requests=max(extent.requests, num_decoded))
    return index.gb(extent, is_tree)
