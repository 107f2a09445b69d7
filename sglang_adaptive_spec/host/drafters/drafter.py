"""The seam between rounds and what drafts for them."""

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode

from sglang_adaptive_spec.host.batch import Batch, DraftInput
from sglang_adaptive_spec.host.drafters.confidences import Confidences
from sglang_adaptive_spec.host.ranks import Ranks
from sglang_adaptive_spec.loop.catch_up import CatchUpSchedule
from sglang_adaptive_spec.runtime.pool import Place
from sglang_adaptive_spec.tiers import CatchUp, Tier


class CatchUps(Protocol):
    """What zero-step rounds keep for a draft, and how it catches up on that."""

    width: int  # tokens of a request that one catch-up can work off
    part_size: int  # requests that it takes at once
    schedule: CatchUpSchedule | None  # None: a draft without KV, which no zero-step round extends

    def begin(self, requests: Sequence[Hashable]) -> None:
        """Takes the rows of a zero-step round that is about to run."""

    def keep(self, hidden_states: torch.Tensor | None, tokens: torch.Tensor) -> None:
        """Takes the outcome of a decode: [bs, hidden_size] at its input, [bs] the next tokens.

        Without hidden states where the draft reads none.
        """

    def were_level(self, debts: Sequence[int], num_decodes: int) -> list[bool]:
        """Returns per row whether the draft lacked nothing before a round of ``num_decodes``."""

    def extend(
        self,
        kind: CatchUp,
        extend: Callable[..., Any],
        batch: Batch,
        result: object,
        debts: Sequence[int],
    ) -> None:
        """Catches the draft up, through the host's draft-extend if it has one."""


class Drafter(Protocol):
    """What any drafter says: what of the host's objects belongs to a tier, and how it is built."""

    # Which of the target's hidden states a decode keeps; None: those that requests may ask for.
    hidden_mode: CaptureHiddenMode | None
    places: Sequence[Place]
    reads_requests: bool  # whether a round asks more of a batch than its tensors
    remark: str | None  # what an operator should know of its rounds
    catch_ups: CatchUps | None  # made by `prepare`, which is called where zero-step rounds are ours

    def prepare(self, max_batch_size: int, part_size: int, ranks: Ranks) -> None:
        """Makes what zero-step rounds keep; again, if fewer requests may run."""

    def build(self, tier: Tier) -> tuple[object, ...]:
        """Lets the host build ``tier``; returns the values of the places."""

    def made_up_input(self, size: int) -> Any:
        """Returns a draft input of ``size`` rows that no request owns, to measure rounds with."""


class EagleRoundDrafter(Drafter, Protocol):
    """What one says beside that whose rounds are those of the host's EAGLE worker."""

    relayed: Sequence[str]  # of a draft input: what a round without a draft-extend hands on

    def building(self, host_state: AbstractContextManager[None]) -> AbstractContextManager[None]:
        """Surrounds the state that the host puts in place while it builds a tier."""

    def tell_confidence(self, most_rows: int, most_steps: int) -> Confidences:
        """Has chains tell how sure the draft is, from the first capture on.

        Args:
            most_rows: Requests of the largest batch that is asked.
            most_steps: Of the deepest chain that such batches choose.
        """

    def build_packed(
        self, window: int, sizes: Sequence[int]
    ) -> tuple[tuple[object, ...], Sequence[int]]:
        """Builds what verifies up to ``window`` tokens of a request, all in one row.

        Args:
            window: Tokens that a request has at most.
            sizes: Requests whose whole windows are the numbers of tokens that get a graph.

        Returns:
            The values of the target's places, and the numbers of tokens that have a graph.
        """

    def first_drafts(self, draft_input: DraftInput) -> torch.Tensor | None:
        """Returns what the draft would propose next, as the target's tokens: [bs]; or None."""
