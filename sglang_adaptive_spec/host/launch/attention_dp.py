"""Attention data parallelism: ranks with requests of their own, whose rounds run together.

They agree before every round (loop/joint.py). Where that cannot be, or was never run, the server is
static EAGLE.
"""

import os
from typing import Any

from sglang.srt.environ import envs

from sglang_adaptive_spec.config.schema import AdaptiveConfig
from sglang_adaptive_spec.host.server_args import num_replicas

# Ranks would not gather before a round, or decode while others read prompts. The second one came
# with 0.5.21.
REFUSED_VARIABLES = (
    "SGLANG_SCHEDULER_SKIP_ALL_GATHER",
    "SGLANG_ENABLE_DP_SPEC_PREFILL_COORDINATION",
)
DEEPEP = "deepep"
TRUE = ("true", "1", "yes", "y")  # as the host reads them (sglang 0.5.23 environ.py:EnvBool)


def joint_reason(view: Any, config: AdaptiveConfig) -> str | None:
    """Returns why a server with attention DP must be static, or None."""
    for name in REFUSED_VARIABLES:
        if os.environ.get(name, "").lower() in TRUE:
            return f"with attention DP ranks agree before each round, and {name}=1 stops that"
    if any(tier.topk > 1 for tier in config.tiers):
        return "with attention DP ranks agree on chains, and this config lists trees"
    if config.policy != "goodput":
        return f"policy {config.policy} decides for one batch, and attention DP has several"
    if view.disaggregation_mode == "decode":
        return "a PD decode node with attention DP was never run adaptive"
    for name in ("moe_a2a_backend", "speculative_moe_a2a_backend"):
        if (backend := getattr(view, name)) not in (None, "none", DEEPEP):
            return f"attention DP with --{name.replace('_', '-')} {backend} was never run adaptive"
    return None


def most_tokens(view: Any) -> int | None:
    """Returns how many tokens a rank may send to experts in a decode round; None: any number.

    DeepEP's buffers for low latency hold so many of each rank (sglang 0.5.23 layers/moe/
    token_dispatcher/deepep.py). Written by what is read there, and never run.
    """
    backends = (view.moe_a2a_backend, view.speculative_moe_a2a_backend)
    if num_replicas(view) == 1 or DEEPEP not in backends:
        return None
    limit: int = envs.SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK.get()
    return limit


def within_limit(config: AdaptiveConfig, limit: int | None) -> AdaptiveConfig:
    """Returns ``config`` with the tiers of which no round has more tokens than ``limit``."""
    return config if limit is None else config.on(config.ladder.within(limit))
