"""Processes of a server that begin as copies of its first one, so that they import nothing anew.

The host starts them afresh, which takes 13 s of CPU time each: most of what a test run took.
"""

import multiprocessing
from typing import Any


def fork_children(_none: Any, *_args: Any, **_kwargs: Any) -> None:
    """After the host's ``_set_envs_and_config``, which asks for fresh ones."""
    multiprocessing.set_start_method("fork", force=True)


def register() -> None:
    """Installs the hook."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    target = "sglang.srt.entrypoints.engine._set_envs_and_config"
    HookRegistry.register(target, fork_children, HookType.AFTER)
