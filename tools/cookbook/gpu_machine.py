"""Lets SGLang resolve arguments as on a machine with eight H200s, where there is none.

For a process of its own, before it imports SGLang: torch says that it sees the GPUs, and packages
with GPU code can be imported, but hold nothing. Arguments resolve; nothing could be served.
"""

import importlib.abc
import os
import sys
import types
from importlib.machinery import ModuleSpec
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import MagicMock

import torch

PACKAGES = ("cutlass", "deep_ep", "deep_gemm", "flash_mla", "flashinfer", "quack", "sgl_kernel")
NUM_GPUS = 8
TOTAL_BYTES = 141 * 10**9
H200 = SimpleNamespace(
    name="NVIDIA H200", major=9, minor=0, total_memory=TOTAL_BYTES, multi_processor_count=132
)


class HollowModule(types.ModuleType):
    """Has every name that is asked for: a class where it is written as one, else a mock."""

    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        is_class = name[0].isupper() and name[1:2].islower()
        found = type(name, (), {}) if is_class else MagicMock(name=name)
        setattr(self, name, found)
        return found


class HollowPackages(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds packages with GPU code, and all in them."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Returns where a module of one of `PACKAGES` comes from."""
        del path, target
        is_ours = fullname.partition(".")[0] in PACKAGES
        return ModuleSpec(fullname, self, is_package=True) if is_ours else None

    def create_module(self, spec: ModuleSpec) -> HollowModule:
        """Returns the module."""
        return HollowModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Leaves it hollow."""


def pretend() -> None:
    """Makes this process see the GPUs."""
    os.environ.pop("SGLANG_USE_CPU_ENGINE", None)
    answers: dict[str, Any] = {
        "is_available": True,
        "device_count": NUM_GPUS,
        "current_device": 0,
        "set_device": None,
        "get_device_capability": (H200.major, H200.minor),
        "get_device_name": H200.name,
        "get_device_properties": H200,
        "mem_get_info": (TOTAL_BYTES, TOTAL_BYTES),
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, lambda *_args, answer=answer, **_kwargs: answer)
    torch.version.cuda = "13.0"
    sys.meta_path.insert(0, HollowPackages())
