"""One forward of the host's worker, from its head until the next one: what its parts share.

A process runs one forward at a time, and the host calls back in places that know no worker. They
ask `current_round`. In order:

1. `open_round` at the head of ``forward_batch_generation``, for any batch. From here on attention
   may be planned for ``reqs``.
2. A decode round: the controller chooses; ``has_bounds`` if the draft runs on bounds of lengths.
3. A zero-step round: ``plain`` stands in for the host's steps until the worker takes it away again,
   also after an error. ``num_decodes`` and ``ends_with_target`` are known by then, ``relayed`` once
   the target has run.
4. Afterwards, before the next one: the scheduler asks who read the shared buffers last, which
   drafts are relayed already, and how many slots the round may have used.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sglang_adaptive_spec.host.batch import Batch, Request


class HostSteps(Protocol):
    """What stands in for steps of the host's round (plain_round.py:PlainRound)."""

    def trivial_verify_input(self, batch: Batch) -> object:
        """Returns what is verified."""

    def verify(self, batch: Batch, grammar_barrier: Callable[[], None] | None) -> object:
        """Runs the target; returns the host's result."""

    def draft_extend(self, extend: Callable[..., Any], batch: Batch, result: object) -> None:
        """Extends the draft through the host's ``extend``, or not."""


@dataclass(slots=True)
class HostRound:
    """The newest forward; the module says who sets what."""

    reqs: Sequence[Request] = ()
    has_bounds: bool = False
    plain: HostSteps | None = None
    num_decodes: int | None = None  # of a zero-step round; None: as many tokens as any round
    ends_with_target: bool = False  # no draft-extend follows
    relayed: object = None  # drafts that a round without a draft-extend hands on as it got them

    def longest(self) -> int:
        """Returns how many tokens the longest of the requests may have; 0 without requests."""
        return max((req.kv.kv_allocated_len for req in self.reqs), default=0)


_newest = HostRound()


def open_round(reqs: Sequence[Request]) -> HostRound:
    """Returns a new round, which is the current one from now on."""
    global _newest
    _newest = HostRound(reqs)
    return _newest


def current_round() -> HostRound:
    """Returns the round in progress, or the newest if there is none."""
    return _newest
