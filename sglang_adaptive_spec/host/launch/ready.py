"""The server is ready only if its schedulers show our worker.

A scheduler tells the launching process that it is ready; its message also names the worker class.
Unpickling the options registers the plugin in every child (`options.py`), so a missing name means
that the hooks were not applied there: such a server would serve a static depth in silence.
"""

from typing import Any

from sglang_adaptive_spec.host.launch.options import options_of
from sglang_adaptive_spec.host.server_args import Scheduler, ServerArgs

INFO_KEY = "adaptive_spec_worker"
# Named here without loading them.
WORKERS = ("AdaptiveEagleWorker", "AdaptiveStandaloneWorker", "AdaptiveNgramWorker")


def add_worker_name(info: dict[str, Any], scheduler: Scheduler) -> dict[str, Any]:
    """Adds the worker's class name to a scheduler's ready message (AFTER get_init_info).

    A worker of ours is connected to its scheduler then.
    """
    if (connect := getattr(scheduler.draft_worker, "connect", None)) is not None:
        connect(scheduler)
    return {**info, INFO_KEY: type(scheduler.draft_worker).__name__}


def require_adaptive_workers(launched: Any, server_args: ServerArgs) -> Any:
    """Makes ``wait_for_ready`` of freshly launched schedulers fail without our worker.

    A data-parallel controller reports for its schedulers in words of its own, so with more than
    one replica the options' own check in each child is what holds.
    """
    result, processes = launched
    if server_args.dp_size > 1:
        return launched
    wait_for_ready = result.wait_for_ready

    def wait_for_adaptive_workers() -> None:
        wait_for_ready()
        workers = [info.get(INFO_KEY) for info in result.scheduler_infos]
        if any(worker not in WORKERS for worker in workers):
            for process in processes or ():
                process.terminate()
            options = options_of(server_args)
            raise RuntimeError(
                f"ADAPTIVE_EAGLE was asked for, and the schedulers run {workers} instead of "
                "the plugin's own: sglang_adaptive_spec is not active in the scheduler process. "
                "Install it in the scheduler's environment and look for plugin errors in its log, "
                f"or serve with --speculative-algorithm {options.base if options else 'EAGLE'}."
            )

    result.wait_for_ready = wait_for_adaptive_workers
    return launched
