"""What may go wrong while a server serves: a policy that raises, a broken round, a jumping clock.

Requests named so bring it about (``choose-fails-``, ``observe-fails-``, ``round-fails-``), so that
one server shows more than one fault. /server_info shows what was done as ``e2e_faults``.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from e2e_plugins.forced_switch import WalkAllTiers
from e2e_plugins.stand_in import SCHEDULER, build_instead, note_ids, rids

WORKER = "sglang.srt.speculative.eagle_worker_v2.EAGLEWorkerV2"
ROUND = f"{WORKER}.forward_batch_generation"
SEED = 22
JUMP_SHARE = 0.1  # of all readings
MAX_JUMP_S = 5 * 3600.0

done: Counter[str] = Counter()


def is_meant(requests: Iterable[str], fault: str) -> bool:
    return any(rid.startswith(f"{fault}-fails") for rid in requests)


class FailingWalk(WalkAllTiers):
    """Raises in every second choice and every result of the requests that are to meet it."""

    def choose(self, batch: Any) -> Any:
        plan = super().choose(batch)
        if is_meant(rids(batch.requests), "choose") and self._random.random() < 0.5:
            done["choose"] += 1
            raise ZeroDivisionError("e2e: choose fails")
        return plan

    def observe(self, observation: Any) -> None:
        if is_meant(rids(observation.requests), "observe"):
            done["observe"] += 1
            raise KeyError("e2e: observe fails")


def run_round(run: Callable[..., Any], worker: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
    """Raises inside a decode round: its tier is in force, the target has not run."""
    if batch.forward_mode.is_decode() and is_meant([req.rid for req in batch.reqs], "round"):
        raise RuntimeError("e2e: the round fails")
    return run(worker, batch, *args, **kwargs)


def run_alone(run: Callable[..., Any], worker: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
    """Raises in rounds of start-up measurements, which have no requests."""
    from sglang_adaptive_spec.host.host_round import current_round

    if not current_round().reqs:
        raise AttributeError("e2e: the batch has no such thing")
    return run(worker, batch, *args, **kwargs)


class JumpingClock:
    """Stands where the module `time` does; jumps hours forward and backward."""

    def __init__(self) -> None:
        self._random = random.Random(SEED)
        self._offset_s = 0.0

    def monotonic(self) -> float:
        return self._jump() + time.monotonic()

    def perf_counter(self) -> float:
        return self._jump() + time.perf_counter()

    def _jump(self) -> float:
        if self._random.random() < JUMP_SHARE:
            jump_s = self._random.uniform(-MAX_JUMP_S, MAX_JUMP_S)
            done["forward" if jump_s > 0 else "backward"] += 1
            self._offset_s += jump_s
        return self._offset_s


def let_time_jump(info: dict[str, Any], *_args: Any, **_kw: Any) -> dict[str, Any]:
    """Takes the clock of a ready server's rounds; start-up was timed by a good one."""
    from sglang_adaptive_spec.host.serving import worker
    from sglang_adaptive_spec.loop import timing

    worker.time = timing.time = JumpingClock()
    return info


def show_done(result: Any, *_args: Any, **_kw: Any) -> Any:
    """Adds how often each fault came about to /server_info."""
    result.internal_state["e2e_faults"] = dict(done)
    return result


def fail() -> None:
    """The plugin with the failing policy and the failing round."""
    note_ids()
    build_instead(FailingWalk)
    HookRegistry.register(f"{SCHEDULER}.get_internal_state", show_done, HookType.AFTER)
    HookRegistry.register(ROUND, run_round, HookType.AROUND)


def lift_limit(result: Any, *_args: Any, **_kw: Any) -> Any:
    """Lets seeding, which follows, measure every tier: only then round times are kept on disk."""
    from sglang_adaptive_spec.host.startup import seeding

    seeding.LIMIT_S = float("inf")
    return result


def fail_alone() -> None:
    HookRegistry.register(ROUND, run_alone, HookType.AROUND)


def seed_to_the_end() -> None:
    """The plugin for a busy machine, which would run out of time."""
    HookRegistry.register(f"{WORKER}.init_cuda_graphs", lift_limit, HookType.AFTER)


def jump() -> None:
    """The plugin with the jumping clock."""
    HookRegistry.register(f"{SCHEDULER}.get_init_info", let_time_jump, HookType.AFTER)
    HookRegistry.register(f"{SCHEDULER}.get_internal_state", show_done, HookType.AFTER)
