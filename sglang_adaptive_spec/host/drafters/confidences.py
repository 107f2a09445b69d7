"""How sure the draft is of its drafts: the probability that it gave each of them.

The host takes the likeliest token of a chain and no probability (sglang 0.5.23 speculative/
eagle_worker_v2.py:draft_forward). So what the draft's forwards return is read on the way: those of
a draft give all its tokens but the first, and are captured with its graph; that of a draft-extend
gives the first one of the next draft, and takes the place of the 1.0 that the host relays with it.
"""

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch

from sglang_adaptive_spec.host.ranks import Ranks

try:
    from sglang_adaptive_spec.host.drafters import kernels
except ImportError:  # no Triton: a CPU
    kernels = None  # type: ignore[assignment]

# Requests up to which no draft is asked: verifying all of their drafts costs little.
MOST_UNASKED = 16


class Confidences:
    """Owns the confidence in the newest drafts, where graphs write it."""

    def __init__(self, most_rows: int, most_steps: int, device: str, ranks: Ranks) -> None:
        # Behind each row's, its length where the device chose one: both travel at once.
        self._values = torch.zeros((most_rows, most_steps + 1), device=device)
        self._most_steps, self._ranks = most_steps, ranks

    @property
    def most_rows(self) -> int:
        """Rows of the largest batch that is asked."""
        return len(self._values)

    def holds(self, num_rows: int, num_steps: int = 1) -> bool:
        """Returns whether so many drafts of so many rows are asked."""
        return MOST_UNASKED < num_rows <= self.most_rows and num_steps <= self._most_steps

    def of(self, num_rows: int, num_steps: int) -> torch.Tensor:
        """Returns the newest: [rows, steps] float32; the next draft overwrites them."""
        return self._values[:num_rows, :num_steps]

    def agreed(self, lens: torch.Tensor) -> torch.Tensor:
        """Returns the first rank's ``lens``: [rows]; its confidence is in place then, too.

        Ranks whose logits differ in a last bit would else verify other drafts each.
        """
        if not self._ranks.are_several:
            return lens
        rows = self._values[: len(lens)]
        rows[:, -1] = lens
        self._ranks.broadcast_values(rows)
        return rows[:, -1].to(lens.dtype)

    def agreed_of(self, num_rows: int, num_steps: int) -> torch.Tensor:
        """Returns the first rank's newest: [rows, steps] float32; all learn from the same."""
        self._ranks.broadcast_values(self._values[:num_rows])
        return self.of(num_rows, num_steps)

    @contextlib.contextmanager
    def reading_draft(self, runner: Any, first: torch.Tensor) -> Iterator[None]:
        """Reads the forwards of a draft; ``first`` [rows] is of its first tokens."""
        values = self._values[: len(first)]
        values[:, 0] = first
        step = 0

        def read(output: Any) -> None:
            nonlocal step
            step += 1
            values[:, step] = top_probability(output.logits_output.next_token_logits)

        with watched(runner, read):
            yield


def top_probability(logits: torch.Tensor) -> torch.Tensor:
    """Returns the probability of the likeliest token of each row of [rows, V]: float32."""
    if kernels is None or not logits.is_cuda or logits.stride(1) != 1:
        return torch.softmax(logits, dim=-1, dtype=torch.float32).amax(dim=-1)
    return kernels.top_probability(logits)


@contextlib.contextmanager
def watched(runner: Any, see: Callable[[Any], None]) -> Iterator[None]:
    """Shows ``see`` what a model runner returns; it is as before afterwards."""
    host = SimpleNamespace(forward=runner.forward)

    def forward(*args: object, **kwargs: object) -> Any:
        output = host.forward(*args, **kwargs)
        see(output)
        return output

    runner.forward = forward
    try:
        yield
    finally:
        del runner.forward


@contextlib.contextmanager
def reading_extend(draft: Any) -> Iterator[list[Any]]:
    """Collects the logits output of a draft-extend, in a graph or not.

    The host leaves in it the rows that propose a first draft.
    """
    outputs: list[Any] = []
    graphs = draft.cuda_graph_runner_for_draft_extend
    with watched(draft.draft_runner, lambda output: outputs.append(output.logits_output)):
        if graphs is None:
            yield outputs
            return
        host = SimpleNamespace(execute=graphs.execute)

        def execute(*args: object, **kwargs: object) -> Any:
            output = host.execute(*args, **kwargs)
            outputs.append(output)
            return output

        graphs.execute = execute
        try:
            yield outputs
        finally:
            del graphs.execute
