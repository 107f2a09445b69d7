"""Where the tokens of the next decodes go, looked up once for several of them.

Before a round the scheduler has reserved slots for the largest round, and what it wrote into
`req_to_token` stays: so the slots of as many decodes are known when a round begins. A look-up is
three small kernels in the forward's stream, where nothing runs beside them.
"""

import torch


class NextSlots:
    """Knows the slots of the next tokens of a batch.

    Args:
        req_to_token: [rows, slots] of the target.
        num_ahead: Tokens of a request that are reserved when a round begins.
    """

    def __init__(self, req_to_token: torch.Tensor, num_ahead: int) -> None:
        self._req_to_token, self._num_ahead = req_to_token, num_ahead
        self._offsets = torch.arange(num_ahead, device=req_to_token.device).unsqueeze(1)
        self._rows: torch.Tensor | None = None
        self._slots: torch.Tensor | None = None  # [num_ahead, bs] int64
        self._num_taken = 0

    def forget(self) -> None:
        """Takes note that another round moves rows on: the next decode looks up anew."""
        self._rows = None

    def look_up(self, rows: torch.Tensor, seq_lens: torch.Tensor, num_left: int) -> torch.Tensor:
        """Returns the slot of the next token of every request: [bs] int64.

        Args:
            rows: [bs], of `req_to_token`; the host's tensor is another one as soon as a request
                joins or leaves.
            seq_lens: [bs] int64, tokens with KV. After a call for the same rows each has one more.
            num_left: Decodes of the round, this one included. Those of a round must be found when
                it begins: what lies beyond its reserve is written before the next one.
        """
        most_taken = self._num_ahead - num_left
        if rows is not self._rows or self._slots is None or self._num_taken > most_taken:
            slots = self._req_to_token[rows, seq_lens + self._offsets]
            self._rows, self._slots, self._num_taken = rows, slots.to(torch.int64), 0
        self._num_taken += 1
        return self._slots[self._num_taken - 1]
