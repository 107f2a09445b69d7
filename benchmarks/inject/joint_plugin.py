"""What ranks of attention data parallelism ran, and what agreeing cost them.

A bench-only plugin. BENCH_JOINT_LOG names a folder: each rank writes a line per decode round there
(tier, decodes, catch-up; `plans-RANK.log`). Once for a block of rounds it writes how many
microseconds a round its rows took: to be written, added to the host's, and taken (`rows-RANK.log`).

SGLang gathers twice before a decode round: those two count. While nobody has requests it gathers
without end: those do not. Nor do rounds of a planted policy, which works out more in a gather.
"""

import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.inject.engine import ForcedPolicy
from benchmarks.inject.rank_log_plugin import BLOCK_ROUNDS, tp_rank

LOG_ENV = "BENCH_JOINT_LOG"
DECIDE = "sglang_adaptive_spec.loop.controller.AdaptiveController.before_decode"
OFFER = "sglang_adaptive_spec.loop.joint.JointController.offer"
AGREEMENT = "sglang_adaptive_spec.host.serving.agreement.Agreement"
GATHERS = 2  # before a decode round: does anybody read prompts, and who decodes


class JointLog:
    """Collects what one rank ran and writes it a block at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._plans: list[str] = []
        self._gathers_ns: deque[int] = deque([0], maxlen=GATHERS)  # the newest last
        self._took_ns, self._num_timed = 0, 0  # by the rows of rounds, since the last block

    def around_decide(self, decide: Callable[..., Any], controller: Any, batch: Any) -> Any:
        """Logs what a round runs, and what was gathered before it."""
        if not isinstance(controller.policy, ForcedPolicy):
            self._took_ns += sum(self._gathers_ns)
            self._num_timed += 1
        launched = decide(controller, batch)
        plan = launched.plan
        self._plans.append(f"{plan.tier.label} {plan.num_decodes} {int(plan.catch_up)}\n")
        if len(self._plans) == BLOCK_ROUNDS:
            self._append("plans", "".join(self._plans))
            self._plans.clear()
        if self._num_timed == BLOCK_ROUNDS:
            self._append("rows", f"{self._took_ns / 1e3 / BLOCK_ROUNDS:.3f}\n")
            self._took_ns, self._num_timed = 0, 0
        return launched

    def around_gather(self, gather: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Begins to time the next."""
        self._gathers_ns.append(0)
        return gather(*args, **kwargs)

    def timed(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Adds what a call took to the newest gather."""
        start_ns = time.perf_counter_ns()
        try:
            return call(*args, **kwargs)
        finally:
            self._gathers_ns[-1] += time.perf_counter_ns() - start_ns

    def around_hook(
        self,
        hook: Callable[..., Any],
        agreement: Any,
        host: Callable[..., Any],
        *args: Any,
        **kw: Any,
    ) -> Any:
        """Adds what a hook took to the newest gather, without the method of the host in it."""

        def of_host(*args: Any, **kwargs: Any) -> Any:
            start_ns = time.perf_counter_ns()
            try:
                return host(*args, **kwargs)
            finally:
                self._gathers_ns[-1] -= time.perf_counter_ns() - start_ns

        return self.timed(hook, agreement, of_host, *args, **kw)

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
    around = {
        DECIDE: log.around_decide,
        f"{AGREEMENT}.prepare": log.around_gather,
        OFFER: log.timed,
        f"{AGREEMENT}.add_row": log.around_hook,
        f"{AGREEMENT}.add_nothing": log.around_hook,
        f"{AGREEMENT}.take": log.timed,
    }
    for target, hook in around.items():
        HookRegistry.register(target, hook, HookType.AROUND)
