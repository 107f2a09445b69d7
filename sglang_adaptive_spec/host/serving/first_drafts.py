"""What a round says for free of drafts that it did not verify.

The target chooses a token behind the last one that it verified. Where the draft had one for that
place, the two are compared: it would have been accepted if they are the same. (Drafts are the
draft's likeliest tokens, so verify accepts one exactly as often as the target draws it.)
"""

from collections.abc import Sequence

import torch


class FirstDrafts:
    """Whether the first drafts that were not verified would have held: known now and then."""

    def __init__(self, is_correct: torch.Tensor, is_known: Sequence[bool]) -> None:
        self._is_correct, self._is_known = is_correct, is_known

    @classmethod
    def copied(cls, is_correct: torch.Tensor, is_known: Sequence[bool]) -> "FirstDrafts":
        """Copies without waiting; the host waits for a later copy before it reads a result."""
        if is_correct.device.type == "cpu":
            return cls(is_correct, is_known)
        copy = torch.empty(is_correct.shape, dtype=is_correct.dtype, pin_memory=True)
        return cls(copy.copy_(is_correct, non_blocking=True), is_known)

    def read(self) -> list[bool | None]:
        """Returns the answer per row; the round's result must have been copied to the CPU."""
        rows = zip(self._is_correct.tolist(), self._is_known, strict=True)
        return [correct if known else None for correct, known in rows]
