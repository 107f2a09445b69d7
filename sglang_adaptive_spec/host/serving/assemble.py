"""Puts the brain together, once: ladder -> tiers built -> costs measured -> policy -> controller.

Nothing replaces or wraps a policy afterwards.
"""

import atexit
from typing import Any

from sglang.srt.runtime_context import get_parallel, get_serving

from sglang_adaptive_spec.host.serving.counts import counts
from sglang_adaptive_spec.host.serving.ends import install_end_hooks
from sglang_adaptive_spec.host.serving.retractions import retractions
from sglang_adaptive_spec.host.startup.seeding import Seeding, measured_costs
from sglang_adaptive_spec.loop.controller import AdaptiveController
from sglang_adaptive_spec.loop.meter import RoundMeter, open_recorder
from sglang_adaptive_spec.loop.minutes import Minutes
from sglang_adaptive_spec.loop.sharing import SharedTimes
from sglang_adaptive_spec.loop.timing import RoundTimer
from sglang_adaptive_spec.policy.build import build_policy
from sglang_adaptive_spec.trace.record import TraceRecorder


def assemble(worker: Any) -> tuple[AdaptiveController, Seeding | None]:
    """Returns the controller of a worker whose tiers are built, and how costs were measured.

    Raises:
        ConfigError: The file to record to cannot be written.
    """
    options, builder = worker.adaptive_options, worker.tier_builder
    config, costs, seeding = options.config, None, None
    if config.policy == "goodput":
        costs, seeding = measured_costs(worker, config.tiers, builder.max_listed_size())
    group = get_parallel().tp_group
    is_alone = group.world_size == 1
    policy = build_policy(config, options.initial_steps, builder.ladder, costs, is_alone)
    tiers = [state.tier for state in worker.pool.states]
    # Ranks must choose alike and would time their rounds differently: rank 0's times count.
    clock = RoundTimer(str(worker.device)) if get_parallel().tp_rank == 0 else None
    schedule = None if worker.plain_rounds is None else worker.plain_rounds.schedule
    meter, recorder = RoundMeter(tiers, policy.knows_costs), _recorder(worker)
    controller = AdaptiveController(
        policy, worker.pool, options.startup_tier, clock, schedule, meter, recorder
    )
    retractions.install()
    counts.install()
    install_end_hooks()
    controller.minutes = Minutes(
        controller.counters, meter, policy.totals, lambda: retractions.total
    )
    if policy.knows_costs and not is_alone:
        controller.shared_times = SharedTimes(
            policy.learn_time, lambda times: group.broadcast_object(times, src=0)
        )
    return controller, seeding


def _recorder(worker: Any) -> TraceRecorder | None:
    """Returns the recorder of rank 0, if the config asks for one; its file is closed at exit.

    Raises:
        ConfigError: The file cannot be written.
    """
    if get_parallel().tp_rank != 0:
        return None
    replica = worker.gpu_id if worker.server_args.dp_size > 1 else None
    name = get_serving().served_model_name
    recorder = open_recorder(worker.adaptive_options.config, name, replica)
    if recorder is not None:
        atexit.register(recorder.close)
    return recorder
