"""Puts together what decides, once: tiers built -> costs measured -> policy -> controller.

Nothing replaces or wraps a policy afterwards.
"""

import atexit
from typing import NamedTuple

from sglang.srt.runtime_context import get_serving

from sglang_adaptive_spec.host.drafters import confidences
from sglang_adaptive_spec.host.drafters.drafter import Drafter
from sglang_adaptive_spec.host.engine import HostEngine
from sglang_adaptive_spec.host.reporting.control import Control
from sglang_adaptive_spec.host.reporting.host_figures import HostFigures
from sglang_adaptive_spec.host.reporting.telemetry import Telemetry
from sglang_adaptive_spec.host.serving.ends import install_end_hooks
from sglang_adaptive_spec.host.serving.prefix_cache import CachedPrefixes
from sglang_adaptive_spec.host.serving.repeats import Repeats
from sglang_adaptive_spec.host.startup.packed_graphs import PackedTarget
from sglang_adaptive_spec.host.startup.seeding import measured_costs, measured_widths
from sglang_adaptive_spec.host.startup.tier_builder import TierBuilder
from sglang_adaptive_spec.loop.controller import AdaptiveController
from sglang_adaptive_spec.loop.joint import JointController
from sglang_adaptive_spec.loop.meter import RoundMeter, open_recorder
from sglang_adaptive_spec.loop.minutes import Minutes
from sglang_adaptive_spec.loop.sharing import SharedTimes
from sglang_adaptive_spec.loop.timing import RoundTimer
from sglang_adaptive_spec.policy.build import build_policy
from sglang_adaptive_spec.policy.costs.table import CostTable
from sglang_adaptive_spec.policy.costs.widths import WidthCosts
from sglang_adaptive_spec.policy.packing import Packing
from sglang_adaptive_spec.trace.record import TraceRecorder


class Assembled(NamedTuple):
    """What decides on a server, what an operator tells it, and what it says of itself."""

    controller: AdaptiveController
    control: Control
    telemetry: Telemetry


def assemble(
    engine: HostEngine, builder: TierBuilder, drafter: Drafter, packed: PackedTarget | None
) -> Assembled:
    """Returns what decides on a server whose tiers are built, and what packed rounds need.

    Raises:
        ConfigError: The file to record to cannot be written.
    """
    options, ranks, catch_ups = engine.options, engine.ranks, drafter.catch_ups
    config, costs, seeding = options.config, None, None
    if config.policy == "goodput":
        costs, seeding = measured_costs(engine, builder, drafter)
    # Ranks with requests of their own tell each other what they know (loop/joint.py); ranks that
    # share theirs know the same, but for round times.
    is_joint = ranks.num_replicas > 1
    is_alone = is_joint or not ranks.are_several
    packing = None
    if packed is not None and costs is not None:
        packing = _packing(engine, builder, drafter, packed, costs)
    start = options.starting_steps
    policy = build_policy(
        *(config, start, builder.ladder, costs, is_alone),
        is_joint=is_joint,
        packing=packing,
        are_runs_cut=not ranks.are_several,
    )
    tiers = [state.tier for state in engine.pool.states]
    # Ranks must choose alike and would time their rounds differently: rank 0's times count.
    clock = RoundTimer(str(engine.device)) if ranks.is_first else None
    schedule = None if catch_ups is None else catch_ups.schedule
    meter, recorder = RoundMeter(tiers, policy.knows_costs), _recorder(engine)
    parts = policy, engine.pool, options.startup_tier, clock, schedule, meter, recorder
    if is_joint:
        controller: AdaptiveController = JointController(
            *parts, is_first=ranks.is_first, is_overlapping=engine.has_overlap
        )
    else:
        controller = AdaptiveController(*parts)
    if recorder is not None:
        atexit.register(controller.learn)  # before the file is closed: the last one goes first
    figures = HostFigures(lambda: controller.decode_tier)
    controller.minutes = Minutes(
        controller.counters, meter, policy.totals, lambda: figures.num_retractions
    )
    if policy.knows_costs and not is_alone:
        controller.shared_times = SharedTimes(policy.learn_time, ranks.broadcast)
    figures.install(controller.minutes.idle)
    install_end_hooks()
    if catch_ups is not None:
        Repeats().install()
    if schedule is not None and schedule.prefixes is not None:
        CachedPrefixes(schedule.prefixes, engine.target_runner.req_to_token_pool).install()
    control = Control(engine.pool, controller)
    telemetry = Telemetry(engine, controller, policy, meter, control, seeding, builder)
    return Assembled(controller, control, telemetry)


def _packing(
    engine: HostEngine,
    builder: TierBuilder,
    drafter: Drafter,
    packed: PackedTarget,
    costs: CostTable,
) -> Packing | None:
    """Returns what chooses packed rounds, by what start-up measures of them; None if nothing."""
    widths = WidthCosts(costs, measured_widths(engine, builder, drafter, packed))
    if not len(widths.widths):
        builder.why_not_packed = "no such round could be measured"
        return None
    most_unasked = confidences.MOST_UNASKED
    return Packing(widths, packed.window, packed.most_rows, most_unasked=most_unasked)


def _recorder(engine: HostEngine) -> TraceRecorder | None:
    """Returns the recorder of rank 0, if the config asks for one; its file is closed at exit.

    Raises:
        ConfigError: The file cannot be written.
    """
    if not engine.ranks.is_first:
        return None
    replica = engine.gpu_id if engine.server_args.dp_size > 1 else None
    name = get_serving().served_model_name
    recorder = open_recorder(engine.options.config, name, replica)
    if recorder is not None:
        atexit.register(recorder.close)
    return recorder
