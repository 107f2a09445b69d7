"""What this server's round times depend on: only an equal start may use them again."""

import platform
from collections.abc import Collection

import torch
from sglang.srt.arg_groups.overrides import resolved_view

from sglang_adaptive_spec.contract.cost_settings import COST_SETTINGS
from sglang_adaptive_spec.contract.versions import versions_report
from sglang_adaptive_spec.host.engine import HostEngine
from sglang_adaptive_spec.policy.costs.cache import CostKey
from sglang_adaptive_spec.tiers import Tier


def cost_key(
    engine: HostEngine,
    tiers: Collection[Tier],
    buckets: Collection[int],
    longest_contexts: tuple[int, ...],
) -> CostKey:
    """Returns the key of a server whose tiers are built.

    Args:
        engine: The host's.
        tiers: In the table's order.
        buckets: Captured batch sizes.
        longest_contexts: That could be measured, of one request and of many.
    """
    args, view = engine.server_args, resolved_view(engine.server_args)
    settings = {name: str(getattr(view, name)) for name in COST_SETTINGS}
    settings["confidence"] = str(engine.options.config.confidence)  # read inside the draft's graphs
    for name, runner in zip(
        ("target", "draft"), engine.runners, strict=False
    ):  # a checkpoint and a GPU decide, too
        config = runner.model_config
        in_force = (config.dtype, config.quantization, runner.kv_cache_dtype)
        settings[name] = " ".join(map(str, in_force))
        settings[f"{name} attention"] = type(runner.attn_backend).__name__
    gpu = platform.processor() or platform.machine()
    if engine.device != "cpu":
        gpu = torch.get_device_module(engine.device).get_device_name(engine.gpu_id)
    return CostKey(
        gpu=gpu,
        model=str(args.model_path),
        draft=str(args.speculative_draft_model_path),
        versions=versions_report(),
        settings=settings,
        tiers=tuple((tier.num_steps, tier.topk, tier.num_draft_tokens) for tier in tiers),
        buckets=tuple(sorted(buckets)),
        longest_contexts=longest_contexts,
    )
