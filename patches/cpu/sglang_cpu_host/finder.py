"""Imports of `sgl_kernel` and `triton` that nothing else can answer.

The idea: SGLang needs both names before it loads plugins, but a folder of that name would shadow
the real package. So a finder stands at the very END of `sys.meta_path`: Python asks it only after
every installed package, and it answers only inside a process that is importing SGLang.
A second finder declares two torchvision operators just in time; it never answers an import.
`install()` runs at every interpreter start (from a .pth file), so this module imports no torch.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec

TYPE_CHECKING = False  # `typing` would double the start-up cost of this module.
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    from torch.library import Library

STAND_INS = frozenset({"sgl_kernel", "triton"})


class StandInLoader:
    """Creates the stand-in module once Python found no real one."""

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        if spec.name.partition(".")[0] != "triton":
            return None
        stub = import_module("sglang_cpu_host.triton_stub")
        module: ModuleType = stub.create(spec.name)
        return module

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ == "sgl_kernel":
            import_module("sglang_cpu_host.kernels").fill(module)


class StandInFinder:
    """Answers for `sgl_kernel` and `triton` (and its submodules) when all other finders gave up."""

    def __init__(self) -> None:
        self.loader = StandInLoader()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        root, _, submodule = fullname.partition(".")
        if root not in STAND_INS or "sglang" not in sys.modules:
            return None
        if submodule and (root != "triton" or not is_stand_in(root)):
            return None  # A real package that lacks a submodule must say so itself.
        return ModuleSpec(fullname, self.loader, is_package=root == "triton")  # type: ignore[arg-type]  # duck-typed loader


class TorchvisionOpsFinder:
    """Declares `torchvision::nms` and `qnms` when torchvision could not load its own library.

    The wheel on PyPI is a CUDA build; under a CPU torch its library does not load, and
    torchvision/_meta_registrations.py then registers fakes for operators nobody declared.
    """

    library: Library | None = None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> None:
        if fullname == "torchvision._meta_registrations" and self.library is None:
            self.library = declare_torchvision_ops()


def declare_torchvision_ops() -> Library:
    """Declares what torchvision's own library did not; the result must be kept alive."""
    import torch

    library: Library = torch.library.Library("torchvision", "FRAGMENT")
    for op in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, op):
            library.define(f"{op}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


def is_stand_in(name: str) -> bool:
    """Says whether an already imported module came from this package."""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return spec is not None and isinstance(spec.loader, StandInLoader)


def install() -> None:
    """Installs both finders once per interpreter."""
    if any(isinstance(finder, StandInFinder) for finder in sys.meta_path):
        return
    # First in line only because a later finder is never asked about a module that exists.
    sys.meta_path.insert(0, TorchvisionOpsFinder())
    sys.meta_path.append(StandInFinder())
