"""How many requests run at once where the user names no number.

SGLang stops at 48 for EAGLE, where it stops at memory alone without speculation. A server that may
run zero steps needs no such cap: it would queue requests that no speculation serves at once. Decode
rounds stay captured as long as the batch is one of the graphs' sizes, so those are the limit, and
FlashInfer's workspace, which holds the plans of wide rounds for so many requests only.
"""

import logging
from collections.abc import Callable
from itertools import takewhile
from typing import Any

from sglang.srt.arg_groups.model_override_base import model_config_of, use_mla_backend
from sglang.srt.arg_groups.overrides import declare_resolution, resolving_view
from sglang.srt.environ import envs
from sglang.srt.model_executor.cuda_graph_config import Backend

from sglang_adaptive_spec.config import AdaptiveConfig
from sglang_adaptive_spec.host.request import request_of
from sglang_adaptive_spec.host.unsupported import ATTENTION_FLAGS
from sglang_adaptive_spec.host.workspaces import plan_bytes
from sglang_adaptive_spec.policy.slots import Slots
from sglang_adaptive_spec.policy.tiers import CATCH_UP_ROUNDS

logger = logging.getLogger(__name__)


def around_speculative(handle: Callable[..., Any], server_args: Any, *args: Any, **kw: Any) -> Any:
    """Wraps the host's ``handle_speculative_decoding`` (AROUND hook): raises the cap that it sets.

    What the user, or the model, has set before stays.
    """
    before = resolving_view(server_args).max_running_requests
    result = handle(server_args, *args, **kw)
    request = request_of(server_args)
    if before is not None or request is None or request.static_reason is not None:
        return result
    cap = resolving_view(server_args).max_running_requests
    if cap is not None:
        _raise(server_args, request.config, cap)
    return result


def _raise(server_args: Any, config: AdaptiveConfig, cap: int) -> None:
    fits = _workspace_check(server_args, config)
    larger = (size for size in _captured(server_args) if size > cap)
    raised = max(takewhile(fits, larger), default=cap)
    if raised == cap:
        logger.warning(
            "ADAPTIVE_EAGLE serves up to %d running requests, SGLang's cap for EAGLE when none is "
            "set; without speculation it would not stop there. Pass --max-running-requests to "
            "serve larger batches.",
            cap,
        )
        return
    declare_resolution(server_args, __name__, max_running_requests=raised)
    logger.warning(
        "ADAPTIVE_EAGLE serves up to %d running requests instead of SGLang's %d for EAGLE: that "
        "many have decode graphs of all stages. --max-running-requests sets another number.",
        raised,
        cap,
    )


def _captured(server_args: Any) -> list[int]:
    """Returns the batch sizes of the decode graphs, ascending; none where nothing is captured."""
    view = resolving_view(server_args)
    decode = view.cuda_graph_config.decode
    if view.device == "cpu" or decode.backend == Backend.DISABLED:
        return []
    return sorted(decode.bs)


def _workspace_check(server_args: Any, config: AdaptiveConfig) -> Callable[[int], bool]:
    """Returns whether the plans of a batch of a size fit FlashInfer's workspace.

    A smaller workspace would make catch-ups of zero-step rounds narrow, and end the start at the
    capture of wide tiers.
    """
    view = resolving_view(server_args)
    backends = {getattr(view, name) for name in ATTENTION_FLAGS}
    if "flashinfer" not in backends or use_mla_backend(server_args):
        return lambda _batch_size: True
    model, tp_size = model_config_of(server_args), view.tp_size
    shape = (
        model.num_attention_heads // tp_size,
        model.get_num_kv_heads(tp_size),
        model.head_dim,
    )
    slots = Slots({bound: slot.tiers for bound, slot in config.slots.items()})
    workspace_bytes = envs.SGLANG_FLASHINFER_WORKSPACE_SIZE.get()

    def fits(batch_size: int) -> bool:
        widest = max(tier.num_draft_tokens for tier in slots.of(batch_size))
        return plan_bytes(batch_size, max(widest, CATCH_UP_ROUNDS), *shape) <= workspace_bytes

    return fits
