"""The ranks that decide together: all run the same rounds, and the first of them is believed.

With attention data parallelism they are split into attention groups: each has requests of its own,
which the ranks of the group share.
"""

from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from sglang.srt.runtime_context import get_parallel
from sglang.srt.utils import get_available_gpu_memory

T = TypeVar("T")


class Group(Protocol):
    """The host's group of processes (``GroupCoordinator``)."""

    world_size: int
    cpu_group: object

    def broadcast_object(self, obj: Any, src: int) -> Any:
        """Returns what rank ``src`` of the group passed."""

    def broadcast(self, input_: torch.Tensor, src: int) -> torch.Tensor:
        """Overwrites ``input_`` with that of rank ``src``."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """The group of this rank, and its place in it."""

    group: Group
    is_first: bool
    num_shards: int  # that attention heads are split among
    attention: Group  # the ranks with this one's requests
    num_replicas: int = 1  # of the attention, each with requests of its own

    @classmethod
    def of_server(cls) -> "Ranks":
        """Returns those of this process, once the host has made its groups."""
        parallel = get_parallel()
        return cls(
            parallel.tp_group,
            parallel.tp_rank == 0,
            parallel.attn_tp_size,
            parallel.attn_tp_group,
            parallel.attn_dp_size,
        )

    @property
    def are_several(self) -> bool:
        """Whether there is more than one."""
        return self.group.world_size > 1

    def broadcast(self, value: T) -> T:
        """Returns the first rank's ``value``; all ranks must call it."""
        agreed: T = self.group.broadcast_object(value, src=0)
        return agreed

    def broadcast_values(self, values: torch.Tensor) -> None:
        """Puts the first rank's values in place: what is drawn, or a last bit, may differ."""
        if self.attention.world_size > 1:
            self.attention.broadcast(values, src=0)

    def min_free_gb(self, device: str, gpu_id: int) -> float:
        """Returns the least free device memory of all ranks."""
        group = self.group
        return float(
            get_available_gpu_memory(
                device, gpu_id, distributed=self.are_several, cpu_group=group.cpu_group
            )
        )
