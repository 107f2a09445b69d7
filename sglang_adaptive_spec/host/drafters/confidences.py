"""How sure the draft is of its drafts: the probability that it gave each of them.

The host takes the likeliest token of a chain and no probability (sglang 0.5.23 speculative/
eagle_worker_v2.py:draft_forward). So what the draft's forwards return is read on the way: those of
a draft give all its tokens but the first, and are captured with its graph; that of a draft-extend
gives the first one of the next draft, and takes the place of the 1.0 that the host relays with it.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

# Requests up to which a round is not packed; nor is its draft asked, where the CPU bounds it.
FEWEST_ROWS = 8


class Confidences:
    """Owns the confidence in the newest drafts, where graphs write it."""

    def __init__(self, most_rows: int, most_steps: int, device: str) -> None:
        self._values = torch.zeros((most_rows, most_steps), device=device)

    def holds(self, num_rows: int, num_steps: int = 1) -> bool:
        """Returns whether so many drafts of so many rows are asked."""
        most_rows, most_steps = self._values.shape
        return FEWEST_ROWS < num_rows <= most_rows and num_steps <= most_steps

    def of(self, num_rows: int, num_steps: int) -> torch.Tensor:
        """Returns the newest: [rows, steps] float32; the next draft overwrites them."""
        return self._values[:num_rows, :num_steps]

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

        with watched(runner, "forward", read):
            yield


def top_probability(logits: torch.Tensor) -> torch.Tensor:
    """Returns the probability of the likeliest token of each row of [rows, V]."""
    return torch.softmax(logits, dim=-1).amax(dim=-1)


@contextlib.contextmanager
def watched(owner: Any, name: str, see: Callable[[Any], None]) -> Iterator[None]:
    """Shows ``see`` what a method of one object returns; the object is as before afterwards."""
    method = getattr(owner, name)

    def call(*args: object, **kwargs: object) -> Any:
        result = method(*args, **kwargs)
        see(result)
        return result

    had_own = name in vars(owner)
    setattr(owner, name, call)
    try:
        yield
    finally:
        if had_own:
            setattr(owner, name, method)
        else:
            delattr(owner, name)


@contextlib.contextmanager
def reading_extend(draft: Any) -> Iterator[list[Any]]:
    """Collects the logits output of a draft-extend, in a graph or not.

    The host leaves in it the rows that propose a first draft.
    """
    outputs: list[Any] = []
    graphs = draft.cuda_graph_runner_for_draft_extend
    with contextlib.ExitStack() as both:
        both.enter_context(
            watched(draft.draft_runner, "forward", lambda out: outputs.append(out.logits_output))
        )
        if graphs is not None:
            both.enter_context(watched(graphs, "execute", outputs.append))
        yield outputs
