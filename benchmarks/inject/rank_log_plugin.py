"""Logs every rank's decisions and what agreeing costs it; the other ranks' times are askew.

A bench-only plugin, silent unless BENCH_RANK_LOG names a folder. Each rank writes a line per decode
round to `decisions-RANK.log` (batch size, tier, catch-up) and at the end of each block of rounds
the microseconds of its sharing to `ticks-RANK.log`.

All that a rank measures by itself is askew on every rank but the first, so that ranks which believe
it part: a round time, of the start-up or of a served round, grows with every draft step and has a
jitter (the plugin gives these ranks a timer: only the first has one), and the time that a batch
bears comes from a clock 1.5 times as fast that started an hour earlier.
"""

import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from sglang_adaptive_spec.loop.round import Round
from sglang_adaptive_spec.loop.timing import RoundTimer
from sglang_adaptive_spec.tiers import Plan, Tier

LOG_ENV = "BENCH_RANK_LOG"
DECIDE = "sglang_adaptive_spec.loop.controller.AdaptiveController.before_decode"
SHARE = "sglang_adaptive_spec.loop.sharing.SharedTimes.tick"
SEED = "sglang_adaptive_spec.host.startup.seeding.Seeder._times_ms"
BLOCK_ROUNDS = 500
CLOCK_RATE, CLOCK_OFFSET_S = 1.5, 3600.0
# Of a round time: one factor for all tiers would leave the choice as it is.
RATE_PER_STEP, JITTER = 1.2, 0.2


class Skew:
    """What a rank's times are multiplied with."""

    def __init__(self) -> None:
        self._random = random.Random(1)

    def of(self, tier: Tier) -> float:
        """Returns the factor on a time of ``tier``; another one each time."""
        jitter = self._random.uniform(1.0 - JITTER, 1.0 + JITTER)
        return float(jitter * RATE_PER_STEP**tier.num_steps)


class SkewedTimer(RoundTimer):
    """Times the rounds of a rank other than the first, askew."""

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self._skew = Skew()

    def poll(self, done: Round) -> Round | None:
        """Returns a round as the timer does, but for the length of its period."""
        found = super().poll(done)
        if found is not None and found.period is not None:
            found.period = found.period._replace(ms=found.period.ms * self._skew.of(found.tier))
        return found


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
        self._skew = Skew()

    @property
    def log(self) -> RankLog:
        """The log of this rank."""
        if self._log is None:
            self._log = RankLog(self._folder, tp_rank())
        return self._log

    def around_decide(self, decide: Callable[..., Any], controller: Any, batch: Any) -> Any:
        """Logs what was decided."""
        if self._log is None and tp_rank() > 0:
            skew_clock()
            controller.clock = SkewedTimer(device())
        log = self.log
        launch = decide(controller, batch)
        log.decided(batch.size, launch.tier.label, launch.plan.is_catch_up)
        return launch

    def around_share(self, share: Callable[..., Any], times: Any) -> Any:
        """Times the sharing."""
        start_ns = time.perf_counter_ns()
        result = share(times)
        self.log.ticked((time.perf_counter_ns() - start_ns) / 1e3)
        return result

    def around_seed(
        self, times_ms: Callable[..., list[float]], seeder: Any, plan: Plan, *args: Any
    ) -> list[float]:
        """Puts round times of the start-up askew."""
        found = times_ms(seeder, plan, *args)
        return [ms * self._skew.of(plan.tier) for ms in found] if tp_rank() > 0 else found


def tp_rank() -> int:
    """Returns which rank this process is."""
    from sglang.srt.runtime_context import get_parallel

    return int(get_parallel().tp_rank)


def device() -> str:
    """Returns where this process runs its rounds."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def skew_clock() -> None:
    """Gives this process's worker another clock than its neighbours'."""
    from sglang_adaptive_spec.host.serving import worker

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
    HookRegistry.register(SEED, logger.around_seed, HookType.AROUND)
