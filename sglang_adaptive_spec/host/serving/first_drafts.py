"""What a round says for free of its drafts, known when its result is.

Of those that it did not verify: the target chooses a token behind the last one that it verified.
Where the draft had one for that place, the two are compared: it would have been accepted if they
are the same. (Drafts are the draft's likeliest tokens, so verify accepts one exactly as often as
the target draws it.) Of all of them: how sure the draft was, and how many were verified by that.

Copies do not wait: the host waits for a later one before it reads a result.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray


class FirstDrafts:
    """Whether the first drafts that were not verified would have held."""

    def __init__(self, is_correct: torch.Tensor, is_known: Sequence[bool] | None = None) -> None:
        """Takes the answers [bs], of rows for which they are known; None: of all."""
        self._is_correct, self._is_known = is_correct, is_known

    @classmethod
    def copied(
        cls, is_correct: torch.Tensor, is_known: Sequence[bool] | None = None
    ) -> "FirstDrafts":
        """Copies without waiting."""
        return cls(_copied(is_correct), is_known)

    def read(self) -> Sequence[bool | None]:
        """Returns the answer per row; the round's result must have been copied to the CPU."""
        correct: list[bool] = self._is_correct.tolist()
        if self._is_known is None:
            return correct
        rows = zip(correct, self._is_known, strict=True)
        return [correct if known else None for correct, known in rows]


class CopiedConfidences:
    """How sure the draft was of a round's drafts, and how many were verified by that."""

    def __init__(self, confidence: torch.Tensor, lens: torch.Tensor | None) -> None:
        self._confidence, self._lens = confidence, lens

    @classmethod
    def of(cls, confidence: torch.Tensor, lens: torch.Tensor | None = None) -> "CopiedConfidences":
        """Copies without waiting.

        Args:
            confidence: [bs, steps].
            lens: [bs] verified tokens, the roots included, if the device chose them.
        """
        return cls(_copied(confidence), None if lens is None else _copied(lens))

    def kept(self) -> list[int] | None:
        """Returns the drafts per row that are verified, if the device chose them."""
        return None if self._lens is None else (self._lens - 1).tolist()

    def read(self) -> tuple[list[int] | None, NDArray[np.float64]]:
        """Returns these, and [steps, bs] of confidence."""
        return self.kept(), np.nan_to_num(self._confidence.numpy().T.astype(np.float64))


def _copied(values: torch.Tensor) -> torch.Tensor:
    if values.device.type == "cpu":
        return values.clone()
    copy = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    return copy.copy_(values, non_blocking=True)
