"""One forward of the host's worker, from its head until the next one: what its parts share.

A process runs one forward at a time, and the host calls back in places that know no worker. They
ask `current_round`. The worker alone opens one and sets its fields, but for ``relayed``, which
`PlainRound` sets. NGRAM's worker (serving/ngram_worker.py) sets none; what EAGLE's
(serving/worker.py) does, in order:

1. ``forward_batch_generation``: `open_round`, for any batch. From here on attention may be planned
   for ``reqs``. A start-up measurement (``_run_alone``) opens one without requests.
2. A decode round: ``controller.before_decode``; ``has_bounds`` if the draft runs on bounds of
   lengths, until ``verify`` fetches these.
3. A packed round: ``packed``, which hooks around the target's forward ask (packed_round.py). And
   ``asked``, if ``verify`` shall tell the loop's round how sure the draft is.
4. A zero-step round: ``plain``, ``num_decodes`` and ``ends_with_target``. The host then calls
   ``_build_trivial_verify_input``, ``verify``, which sets ``relayed`` and publishes lengths before
   the target runs (other rounds do so after it), and the draft-extend, which asks
   ``plain.draft_extend`` (drafters/eagle.py). The worker takes ``plain`` away again, also after an
   error.
5. An extend: ``controller.before_extend``. Where decoding rows are behind, ``plain`` for a catch-up
   without a target comes first, for which the worker itself puts zero steps in force. Without
   requests: ``controller.before_idle``.
6. Until the next one the scheduler asks who read the shared buffers last, which drafts are relayed
   already (serving/repeats.py), and how many slots the round may have used. Its result comes, under
   the overlap schedule when the next one has begun: ``controller.observe``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sglang_adaptive_spec.host.batch import Batch, Request
from sglang_adaptive_spec.loop.round import Round


class HostSteps(Protocol):
    """What stands in for steps of the host's round (plain_round.py:PlainRound)."""

    def trivial_verify_input(self, batch: Batch) -> object:
        """Returns what is verified."""

    def verify(self, batch: Batch, grammar_barrier: Callable[[], None] | None) -> object:
        """Runs the target; returns the host's result."""

    def draft_extend(self, extend: Callable[..., Any], batch: Batch, result: object) -> None:
        """Extends the draft through the host's ``extend``, or not."""


class PackedVerify(Protocol):
    """What stands around the target's forward in a packed round (packed_round.py:PackedRound)."""

    def choose(self) -> None:
        """Finds the lengths of rows, where the draft's confidence decides."""

    def kept(self) -> Sequence[int]:
        """Returns the drafts per row that are verified; once the result is on the CPU."""

    def prepare(self, verify_input: Any, req_to_token: Any, batch: Batch, target: Any) -> Any:
        """Prepares the forward; returns its batch, and whether a graph runs it."""

    def unpack(self, logits_output: Any) -> None:
        """Puts the outputs where the host looks for them."""

    def cap(self, accept_lens: Any, accept_index: Any) -> tuple[Any, Any]:
        """Takes away what was accepted beyond the verified tokens."""

    def compare_next(self, drafted: Any, predicted: Any) -> None:
        """Compares the first drafts that were not verified with what the target chose there."""


@dataclass(slots=True)
class HostRound:
    """The newest forward; the docstring of the module says who sets what."""

    reqs: Sequence[Request] = ()
    has_bounds: bool = False
    packed: PackedVerify | None = None
    asked: Round | None = None  # the loop's, that is told how sure the draft is
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
