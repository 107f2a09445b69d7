"""What a launch command would serve, said before any weight is loaded.

The host itself reads and resolves the arguments, with its plugins, as a server of it would on this
machine; nothing is started.
"""

from collections.abc import Sequence
from typing import Any

from sglang.srt.arg_groups.overrides import resolved_view
from sglang.srt.plugins import load_plugins
from sglang.srt.server_args import prepare_server_args

from sglang_adaptive_spec.host.launch.options import ALGORITHM, options_of


def preview(arguments: Sequence[str]) -> dict[str, Any]:
    """Returns mode, reason, tiers and memory of `python -m sglang.launch_server` with these.

    Raises:
        ValueError: They are refused, by this plugin or by the host.
        AssertionError: They are refused by the host, in words of its own.
        SystemExit: They cannot be parsed; the host has printed why.
    """
    load_plugins()
    server_args = prepare_server_args(list(arguments))
    server_args.resolve_once()
    server_args.check_server_args()  # what the host refuses when its engine starts
    view, options = resolved_view(server_args), options_of(server_args)
    if options is None:
        named = view.speculative_algorithm
        return {
            "mode": "without",
            "reason": f"--speculative-algorithm is {named or 'not given'}, not {ALGORITHM}",
        }
    config = options.config
    answer = {"mode": options.mode, "base": options.base, "config": config.source}
    if options.static_reason is not None:
        shape = (view.speculative_num_steps, view.speculative_eagle_topk)
        names = ("num_steps", "topk")
        return {**answer, "reason": options.static_reason, **dict(zip(names, shape, strict=True))}
    assert options.initial_steps is not None, "resolution set it"
    return {
        **answer,
        "reason": None,
        "policy": config.policy,
        "initial_tier": config.initial_tier(options.initial_steps).label,
        "startup_tier": options.startup_tier.label,
        "tiers": {
            str(bound): [tier.label for tier in tiers]
            for bound, tiers in config.ladder.ranges.items()
        },
        "memory_budget_gb": config.memory_budget_gb if config.policy == "goodput" else None,
        "max_running_requests": view.max_running_requests,
        "record": config.record,
    }


def render(answer: dict[str, Any]) -> str:
    """Returns the same as text."""
    if answer["mode"] == "without":
        return f"would serve without ADAPTIVE_EAGLE: {answer['reason']}"
    head = f"would serve {answer['mode']} {answer['base']}, config {answer['config']}"
    if answer["reason"] is not None:
        steps = "SGLang's default" if answer["num_steps"] is None else answer["num_steps"]
        return f"{head}: {answer['reason']}; steps: {steps}"
    lines = [f"{head}, policy {answer['policy']}"]
    lines += [
        f"  from batch {bound} on: {', '.join(tiers)} steps"
        for bound, tiers in answer["tiers"].items()
    ]
    lines.append(f"  begins at {answer['initial_tier']}; sized by {answer['startup_tier']}")
    if answer["memory_budget_gb"] is not None:
        lines.append(
            f"  graphs and backends of all tiers: at most {answer['memory_budget_gb']:g} GB a GPU "
            "(memory_budget_gb); tiers beyond are left out"
        )
    cap = answer["max_running_requests"]
    lines.append(f"  running requests: {'as memory allows' if cap is None else f'at most {cap}'}")
    if answer["record"] is not None:
        lines.append(f"  records every decode round to {answer['record']}")
    return "\n".join(lines)
