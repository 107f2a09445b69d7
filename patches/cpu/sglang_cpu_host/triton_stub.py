"""An import-only `triton`: kernels can be defined, a launch raises.

SGLang defines its Triton kernels at import, but its CPU branches launch none of them. So every
name exists here (an unknown lower-case name is a submodule that also works as a decorator, an
unknown upper-case name is an empty class), and a launch that no CPU branch guards is found at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any, NoReturn

# The Triton that torch 2.13 is built for: version checks in torch and SGLang read it.
VERSION = "3.7.0+cpu.host"


class Kernel:
    """What `@triton.jit` makes of a function: an object that keeps it and cannot be launched."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn
        self.__name__ = getattr(fn, "__name__", "kernel")
        self.__doc__ = None

    def __getitem__(self, grid: object) -> Callable[..., NoReturn]:
        return self

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        raise RuntimeError(
            f"Triton kernel {self.__name__} was launched, but this machine has no Triton: "
            "sglang-cpu-host only lets it be imported. The host has no CPU branch here."
        )


class Config:
    """`triton.Config`: keeps what an autotuned kernel lists."""

    def __init__(self, kwargs: dict[str, Any] | None = None, **options: Any) -> None:
        self.kwargs = kwargs or {}
        self.__dict__.update(options)


class Constexpr:
    """`triton.language.constexpr`: a boxed compile-time value."""

    def __init__(self, value: Any = None) -> None:
        self.value = value


class StubModule(ModuleType):
    """A module in which every public name can be imported."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = KNOWN.get(name)
        if value is None:
            value = self._make_class(name) if name[0].isupper() else self._import(name)
        setattr(self, name, value)
        return value

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Passes a function through, as a decorator with or without options."""
        is_bare = len(args) == 1 and callable(args[0]) and not options
        return args[0] if is_bare else lambda fn: fn

    def _make_class(self, name: str) -> type:
        bases = (Exception,) if "Error" in name or name.startswith("OutOf") else ()
        return type(name, bases, {"__module__": self.__name__})

    def _import(self, name: str) -> ModuleType:
        return import_module(f"{self.__name__}.{name}")


def jit(fn: Callable[..., Any] | None = None, **options: Any) -> Any:
    return Kernel if fn is None else Kernel(fn)


def cdiv(numerator: int, denominator: int) -> int:
    return -(numerator // -denominator)


def next_power_of_2(n: int) -> int:
    return 1 << (n - 1).bit_length() if n > 0 else 1


KNOWN: dict[str, Any] = {
    "jit": jit,
    "cdiv": cdiv,
    "next_power_of_2": next_power_of_2,
    "Config": Config,
    "constexpr": Constexpr,
    "triton_key": lambda: VERSION,
}


def create(name: str) -> StubModule:
    """Creates the stand-in for `triton` or one of its submodules."""
    module = StubModule(name)
    if name == "triton":
        module.__dict__["__version__"] = VERSION
        _disable_dynamo()
    return module


def _disable_dynamo() -> None:
    """Switches `torch.compile` off: Dynamo looks into Triton and fails on a stub."""
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    config = sys.modules.get("torch._dynamo.config")
    if config is not None:
        setattr(config, "disable", os.environ["TORCHDYNAMO_DISABLE"] == "1")  # noqa: B010  # not declared on ModuleType
