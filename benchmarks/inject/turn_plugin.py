"""Lets a server wait, its imports done, until it is its turn to use the GPU.

Ours measure rounds at their start and must be alone then. But a server's imports, 40 s on an H200's
host, need no GPU: those of all servers may pass at once.
"""

import os
import time
from pathlib import Path
from typing import Any

TURN_ENV = "BENCH_TURN"  # names the file that says so
WORKER = "sglang.srt.managers.scheduler.Scheduler.init_model_worker"
POLL_S = 0.1


def register() -> None:
    """Installs the hook; does nothing in a server that need not wait."""
    turn = os.environ.get(TURN_ENV)
    if turn is None:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    def wait(*_args: Any, **_kwargs: Any) -> None:
        wait_for(Path(turn))

    HookRegistry.register(WORKER, wait, HookType.BEFORE)


def wait_for(turn: Path) -> None:
    """Waits until the file is there; whoever started the server ends it where it never is."""
    while not turn.exists():
        time.sleep(POLL_S)
