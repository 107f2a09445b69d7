"""Marks of device work that others wait for."""

from typing import Protocol


class DoneEvent(Protocol):
    """The part of ``torch.cuda.Event`` that is used."""

    def record(self) -> None:
        """Marks the current stream."""

    def query(self) -> bool:
        """Returns whether that work is done."""

    def synchronize(self) -> None:
        """Waits for that work."""
