"""Gives the schedulers of a fleet one core, which nobody else uses once they serve.

On an H200's host, a virtual machine of 16 cores, rounds that the CPU bounds took 5.2 or 7.4 ms for
seconds on end. Which of the two depends on the core and on what its sibling does. One server is
busy at a time, the others sleep: on one core all arms meet the same. A server takes it when it is
ready, since starts need all cores.
"""

import os
from typing import Any

CORE_ENV = "BENCH_CORE"  # its number
READY = "sglang.srt.managers.scheduler.Scheduler.get_init_info"


def register() -> None:
    """Installs the hook; does nothing in a server that has no core of its own."""
    core = os.environ.get(CORE_ENV)
    if core is None:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    def take(*_args: Any, **_kwargs: Any) -> None:
        os.sched_setaffinity(0, {int(core)})  # this thread, which runs all rounds

    HookRegistry.register(READY, take, HookType.BEFORE)
