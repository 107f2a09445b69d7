"""What ranks of attention data parallelism ran, and what agreeing cost them.

A bench-only plugin. BENCH_JOINT_LOG names a folder: each rank writes a line per decode round there
(tier, decodes, catch-up; `plans-RANK.log`), and the microseconds that its rows took by round, a
block of rounds at a time (`rows-RANK.log`).
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.inject.rank_log_plugin import BLOCK_ROUNDS, tp_rank

LOG_ENV = "BENCH_JOINT_LOG"
DECIDE = "sglang_adaptive_spec.loop.controller.AdaptiveController.before_decode"
TAKE = "sglang_adaptive_spec.loop.joint.JointController.take"
OFFER = "sglang_adaptive_spec.loop.joint.JointController.offer"


class JointLog:
    """Collects what one rank ran and writes it a block at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._plans: list[str] = []
        self._took_ns = 0  # by rows, since the last block

    def around_decide(self, decide: Callable[..., Any], controller: Any, batch: Any) -> Any:
        """Logs what a round runs."""
        launched = decide(controller, batch)
        plan = launched.plan
        self._plans.append(f"{plan.tier.label} {plan.num_decodes} {int(plan.catch_up)}\n")
        if len(self._plans) == BLOCK_ROUNDS:
            self._append("plans", "".join(self._plans))
            self._append("rows", f"{self._took_ns / 1e3 / BLOCK_ROUNDS:.3f}\n")
            self._plans.clear()
            self._took_ns = 0
        return launched

    def timed(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Adds up what a row takes: this rank's is made, added to the host's, and others' read."""
        start_ns = time.perf_counter_ns()
        try:
            return call(*args, **kwargs)
        finally:
            self._took_ns += time.perf_counter_ns() - start_ns

    def _append(self, name: str, text: str) -> None:
        with (self._folder / f"{name}-{tp_rank()}.log").open("a") as file:
            file.write(text)


def register() -> None:
    """Installs the hooks; does nothing in a server that no benchmark told to log."""
    folder = os.environ.get(LOG_ENV)
    if folder is None:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    log = JointLog(Path(folder))
    HookRegistry.register(DECIDE, log.around_decide, HookType.AROUND)
    for target in (OFFER, TAKE):
        HookRegistry.register(target, log.timed, HookType.AROUND)
