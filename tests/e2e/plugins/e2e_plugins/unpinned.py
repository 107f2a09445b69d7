"""Adapters on a CPU: SGLang's LoRA asks for pinned memory, which exists beside GPUs alone."""

import functools
from typing import Any

import torch

MAKERS = ("tensor", "empty", "zeros")


def register() -> None:
    for name in MAKERS:
        setattr(torch, name, without_pinning(getattr(torch, name)))
    torch.Tensor.pin_memory = lambda tensor, *_: tensor  # type: ignore[method-assign, assignment]


def without_pinning(make: Any) -> Any:
    @functools.wraps(make)
    def made(*args: Any, pin_memory: bool = False, **kwargs: Any) -> torch.Tensor:
        tensor: torch.Tensor = make(*args, **kwargs)
        return tensor

    return made
