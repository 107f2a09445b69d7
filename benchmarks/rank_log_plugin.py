"""Logs every rank's decisions and what agreeing costs it; the other ranks' clocks run askew.

A bench-only plugin, silent unless BENCH_RANK_LOG names a folder. Each rank writes a line per decode
round to `decisions-RANK.log` (batch size, tier, catch-up) and at the end of each block of rounds
the microseconds of its sharing to `ticks-RANK.log`. What the policy is told as the time comes from
a clock that runs 1.5 times as fast on every rank but the first, and started an hour earlier.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

LOG_ENV = "BENCH_RANK_LOG"
DECIDE = "sglang_adaptive_spec.controller.AdaptiveController.before_decode"
SHARE = "sglang_adaptive_spec.policy.sharing.SharedTimes.tick"
BLOCK_ROUNDS = 500
CLOCK_RATE, CLOCK_OFFSET_S = 1.5, 3600.0


class RankLog:
    """Collects lines of one rank and writes them a block at a time."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder, self._rank = folder, rank
        self._decisions: list[str] = []
        self._ticks_us: list[float] = []

    def decided(self, batch_size: int, label: str, is_catch_up: bool) -> None:
        """Takes a decision."""
        self._decisions.append(f"{batch_size} {label} {int(is_catch_up)}\n")
        if len(self._decisions) == BLOCK_ROUNDS:
            self._append("decisions", "".join(self._decisions))
            self._decisions.clear()
            if self._ticks_us:
                self._append("ticks", f"{sum(self._ticks_us) / len(self._ticks_us):.3f}\n")
                self._ticks_us.clear()

    def ticked(self, took_us: float) -> None:
        """Takes what a call of the sharing took."""
        self._ticks_us.append(took_us)

    def _append(self, name: str, text: str) -> None:
        with (self._folder / f"{name}-{self._rank}.log").open("a") as file:
            file.write(text)


class Logger:
    """Makes the log of its rank when the first round shows which rank this is."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log: RankLog | None = None

    @property
    def log(self) -> RankLog:
        """The log of this rank."""
        if self._log is None:
            from sglang.srt.runtime_context import get_parallel

            rank = int(get_parallel().tp_rank)
            self._log = RankLog(self._folder, rank)
            if rank > 0:
                skew_clock()
        return self._log

    def around_decide(self, decide: Callable[..., Any], controller: Any, batch: Any) -> Any:
        """Logs what was decided."""
        log = self.log
        launch = decide(controller, batch)
        log.decided(batch.size, launch.tier.label, launch.is_catch_up)
        return launch

    def around_share(self, share: Callable[..., Any], times: Any) -> Any:
        """Times the sharing."""
        start_ns = time.perf_counter_ns()
        result = share(times)
        self.log.ticked((time.perf_counter_ns() - start_ns) / 1e3)
        return result


def skew_clock() -> None:
    """Gives this process's worker another clock than its neighbours'."""
    from sglang_adaptive_spec.host import worker

    skewed = SimpleNamespace(monotonic=lambda: time.monotonic() * CLOCK_RATE - CLOCK_OFFSET_S)
    vars(worker)["time"] = skewed


def register() -> None:
    """Installs the hooks; does nothing in a server that no benchmark told to log."""
    folder = os.environ.get(LOG_ENV)
    if folder is None:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    logger = Logger(Path(folder))
    HookRegistry.register(DECIDE, logger.around_decide, HookType.AROUND)
    HookRegistry.register(SHARE, logger.around_share, HookType.AROUND)
