"""What an operator sees: the start-up block, /server_info and the Prometheus counters."""

import logging
from collections.abc import Callable
from typing import Any

from sglang.srt.runtime_context import get_observability, get_serving

from sglang_adaptive_spec import __version__
from sglang_adaptive_spec.contract.versions import versions_report
from sglang_adaptive_spec.host.engine import HostEngine
from sglang_adaptive_spec.host.launch.options import ALGORITHM, AdaptiveOptions, options_of
from sglang_adaptive_spec.host.reporting.control import Control
from sglang_adaptive_spec.host.reporting.metrics import MetricsExporter
from sglang_adaptive_spec.host.server_args import Scheduler
from sglang_adaptive_spec.host.startup.seeding import Seeding
from sglang_adaptive_spec.host.startup.tier_builder import TierBuilder
from sglang_adaptive_spec.loop.controller import AdaptiveController
from sglang_adaptive_spec.loop.meter import RoundMeter, policy_state
from sglang_adaptive_spec.policy.protocol import Policy
from sglang_adaptive_spec.runtime.pool import TierState
from sglang_adaptive_spec.tiers import DecodeBatch, Tier

logger = logging.getLogger(__name__)


class Telemetry:
    """Reads controller, pool and counters for whoever asks.

    Args:
        engine: The host's.
        controller: Of its rounds.
        policy: That it asks.
        meter: Of its rounds' times.
        control: What an operator asked to see.
        seeding: How round times were measured, if they were.
        builder: Of the tiers: what it left out and why, and what belongs to no tier.
    """

    def __init__(
        self,
        engine: HostEngine,
        controller: AdaptiveController,
        policy: Policy,
        meter: RoundMeter,
        control: Control,
        seeding: Seeding | None,
        builder: TierBuilder,
    ) -> None:
        self._engine, self._controller, self._control = engine, controller, control
        self._policy, self._meter = policy, meter
        self._seeding, self._left_out, self._kept = seeding, builder.left_out, builder.kept()
        self._why_not_packed = builder.why_not_packed
        self._why_no_confidence = builder.why_no_confidence
        self._exporter: MetricsExporter | None = None
        if get_observability().enable_metrics and engine.ranks.is_first:
            model_name = get_serving().served_model_name
            self._exporter = MetricsExporter(controller.counters, meter, policy, model_name)
            self._exporter.start()

    def log_start(self, remark: str | None) -> None:
        """Writes the one INFO block of the start, on rank 0, with a remark on what drafts."""
        if not self._engine.ranks.is_first:
            return
        options, pool = self._engine.options, self._engine.pool
        versions = ", ".join(f"{name} {version}" for name, version in versions_report().items())
        lines = [f"ADAPTIVE_EAGLE is on: {versions}; host contract ok."]
        config, startup = options.config, options.startup_tier
        why = f" ({config.why_policy})" if config.why_policy else ""
        initial = config.initial_tier(options.starting_steps)
        lines.append(
            f"  base {options.base}, policy {config.policy}{why}, config {config.source}, "
            f"initial step {initial.label}, start-up tier {startup.label}"
        )
        lines += [f"  {_tier_line(state)}" for state in pool.states]
        total_gb = sum(state.build_gb for state in pool.states)
        total_s = sum(state.build_s for state in pool.states)
        lines.append(f"  all tiers: {total_gb:.2f} GB, {total_s:.1f} s")
        lines += [f"  {what}: {gb:.2f} GB, {s:.1f} s" for what, (gb, s) in self._kept.items()]
        asked = {
            "packed rounds": (config.packing, self._why_not_packed),
            "confidence": (config.confidence, self._why_no_confidence),
        }
        lines += [
            f"  {what}: none, though the config asks: {why}"
            for what, (is_asked, why) in asked.items()
            if is_asked and why is not None
        ]
        if (seeding := self._seeding) is not None:
            lines.append(f"  a first round of every tier: {seeding.warm_up_s:.1f} s")
            at = f"{seeding.source}, {seeding.num_points} points measured"
            lines.append(f"  round times: {at}, {seeding.seconds:.1f} s")
        if self._controller.recorder is not None:
            lines.append(f"  records every decode round to {config.record}")
        if remark is not None:
            lines.append(f"  {remark}")
        logger.info("\n".join(lines))

    def state(self) -> dict[str, Any]:
        """Returns the object ``adaptive_spec`` of /server_info; plain builtins only."""
        engine, controller, counters = self._engine, self._controller, self._controller.counters
        controller.learn()
        newest = controller.newest if controller.newest.size else DecodeBatch(1, ())
        tiers, minutes = self._tiers(), self._control.minutes()
        return {
            **({} if minutes is None else {"minutes": minutes}),
            **_options_state(engine.options),
            "tiers": [_tier_state(state) for state in engine.pool.states],
            "startup_steps": controller.startup_tier.num_steps,
            "current_steps": controller.decode_tier.num_steps,
            "current_tier": controller.decode_tier.label,
            "pinned": None if controller.pinned is None else controller.pinned.label,
            "num_pins": counters.num_pins,
            **policy_state(self._policy, self._meter, newest),
            "seeding": None if self._seeding is None else self._seeding._asdict(),
            "rounds": _by_steps(tiers, lambda tier: counters.num_rounds.get(tier, 0)),
            "packed_rounds": _by_steps(tiers, lambda tier: counters.num_packed.get(tier, 0)),
            "num_request_rounds": _by_steps(tiers, counters.num_request_rounds),
            "num_proposed_drafts": _by_steps(tiers, counters.num_proposed_drafts),
            "num_correct_drafts": _by_steps(tiers, counters.num_correct_drafts),
            "accepted_per_position": _by_steps(tiers, counters.accepted_per_position),
            "zero_step_decodes": {str(k): n for k, n in sorted(counters.num_runs.items())},
            "cut_runs": counters.num_cut_runs,
            "exact_rounds": dict(counters.num_exact_rounds),
            "requests": dict(counters.num_requests),
            "switches": dict(counters.num_switches),
            "prefill_activations": counters.num_prefill_activations,
            "idle_rounds": counters.num_idle_rounds,
            "fallbacks": {
                "policy_error": counters.num_policy_errors,
                "feedback_mismatch": counters.num_feedback_mismatches,
            },
            "disagreements": counters.num_disagreements,
            "why_not_packed": self._why_not_packed,
            "why_no_confidence": self._why_no_confidence,
            "skipped_tiers": {tier.label: why for tier, why in self._left_out.items()},
        }

    def _tiers(self) -> list[Tier]:
        return [state.tier for state in self._engine.pool.states]


def add_internal_state(result: Any, scheduler: Scheduler) -> Any:
    """Adds ``adaptive_spec`` and the tier in force to the host's answer (AFTER hook)."""
    options = options_of(scheduler.server_args)
    assert options is not None, "the hook checked this"
    if options.static_reason is not None:
        result.internal_state["adaptive_spec"] = _options_state(options)
        return result
    telemetry: Telemetry = scheduler.draft_worker.telemetry
    try:
        state = telemetry.state()
    except Exception:  # a broken display must not take the server down
        logger.exception("ADAPTIVE_EAGLE could not describe itself for /server_info")
        return result
    result.internal_state["adaptive_spec"] = state
    result.internal_state["speculative_num_steps"] = state["current_steps"]
    tier = scheduler.draft_worker.controller.decode_tier
    result.internal_state["speculative_num_draft_tokens"] = tier.num_draft_tokens
    return result


def _options_state(options: AdaptiveOptions) -> dict[str, Any]:
    return {
        "version": __version__,
        "requested_algorithm": ALGORITHM,
        "base": options.base,
        "policy": options.config.policy,
        "config": options.config.source,
        "mode": options.mode,
        "reason": options.static_reason,
    }


def _tier_state(state: TierState) -> dict[str, Any]:
    return {
        "num_steps": state.tier.num_steps,
        "topk": state.tier.topk,
        "num_draft_tokens": state.tier.num_draft_tokens,
        "build_s": round(state.build_s, 3),
        "build_gb": round(state.build_gb, 3),
        "graph_batch_sizes": list(state.graph_batch_sizes),
    }


def _tier_line(state: TierState) -> str:
    sizes = ",".join(map(str, state.graph_batch_sizes)) or "none (eager)"
    return (
        f"tier {state.tier.label}: {state.build_gb:.2f} GB, {state.build_s:.1f} s, "
        f"graphs at batch {sizes}"
    )


def _by_steps(tiers: list[Tier], value: Callable[[Tier], Any]) -> dict[str, Any]:
    return {tier.label: value(tier) for tier in tiers}
