"""A PD node without a GPU, whose KV travels through NIXL all the same.

SGLang tells NIXL that its pools lie in a GPU's memory. On the CPU host they lie in the machine's.
"""

import sys
from pathlib import Path
from typing import Any

PACKAGES = Path(__file__).resolve().parents[4] / ".cache" / "nixl"  # tests/hosts.py puts it there
NAMED = ("register_memory", "get_xfer_descs", "prep_xfer_dlist")  # take a kind of memory


def register() -> None:
    sys.path[:0] = [str(PACKAGES / name) for name in ("nixl", "nixl_cu13")]
    from nixl._api import nixl_agent

    for name in NAMED:
        setattr(nixl_agent, name, in_host_memory(getattr(nixl_agent, name)))


def in_host_memory(method: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        named = {key: dram(value) for key, value in kwargs.items()}
        return method(*map(dram, args), **named)

    return call


def dram(value: Any) -> Any:
    return "DRAM" if isinstance(value, str) and value == "VRAM" else value
