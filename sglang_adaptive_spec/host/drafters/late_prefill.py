"""The draft's prefill, put off until the next round has launched its decodes.

Behind the target's prefill the CPU launches the draft's, kernel by kernel, and the GPU idles; on an
H200 a request of a 1.5B model waited 3 ms for it. At zero steps nobody reads what the draft makes
of a prompt before the next draft-extend, so it is launched while the GPU decodes. Until then the
relay holds made-up proposals. A round that drafts launches it first: what it drafts, and where KV
is written, is what it would have been.

What was put off runs in order, before any other forward of the draft, so that whatever took over a
slot is written later. It runs with the tier in force in which the host would have run it.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from sglang.srt.arg_groups.overrides import resolved_view
from sglang.srt.speculative.eagle_info import EagleDraftInput

from sglang_adaptive_spec.host.batch import Batch, DraftInput, Request
from sglang_adaptive_spec.host.drafters.backlog import to_device
from sglang_adaptive_spec.host.drafters.parts import rows_of
from sglang_adaptive_spec.host.engine import HostEngine

# A choice: a prompt's hidden states are copied, 24 KB a token for the EAGLE-3 draft of an 8B model.
# With longer ones the GPU has enough to do while the CPU launches.
MOST_TOKENS, MOST_REQUESTS = 2048, 16
# What a draft's prefill proposes and a round relays, where prefills may be put off.
PROPOSED = ("topk_p", "topk_index", "hidden_states")


class Prefill(NamedTuple):
    """A draft's prefill as the host would have run it."""

    batch: Batch  # a copy, from before the scheduler goes on with the batch
    hidden_states: torch.Tensor | None  # of the target: [tokens, hidden_size]; None: reads none
    next_tokens: torch.Tensor  # [bs]


def may_put_off(engine: HostEngine, draft_worker: Any) -> bool:
    """Returns whether a server's draft may see a prompt one round late.

    What reads the draft's KV or proposals elsewhere must find them when the host says so: other
    machines, a cache behind the GPU's, rejection sampling, sparse attention. Slots of a sliding
    window may be gone by then. A backend that needs lengths on the CPU plans with a wait.
    """
    view, runner = resolved_view(engine.server_args), draft_worker.draft_runner
    return not (
        engine.ranks.are_several
        or view.disaggregation_mode != "null"
        or view.enable_hierarchical_cache
        or view.enable_mixed_chunk
        or view.speculative_use_rejection_sampling
        or runner.is_hybrid_swa
        or draft_worker.seed_dsa_topk_from_draft_extend
        or (engine.device != "cpu" and getattr(runner.attn_backend, "needs_cpu_seq_lens", True))
    )


class LatePrefills:
    """Holds the prefills that the draft has not run, and what those run made of their requests.

    Args:
        run: Runs one as the host would.
        made_up: Proposals of `MOST_REQUESTS` rows, as the host's prefill gives them.
        at_startup_tier: Puts in force the tier in which extends run.
        is_wanted: Whether zero steps are in force.
    """

    def __init__(
        self,
        run: Callable[[Prefill], DraftInput],
        made_up: EagleDraftInput,
        at_startup_tier: Callable[[], contextlib.AbstractContextManager[None]],
        is_wanted: Callable[[], bool],
    ) -> None:
        self._run, self._made_up = run, made_up
        self._at_startup_tier, self._is_wanted = at_startup_tier, is_wanted
        self._put_off: list[Prefill] = []
        self._proposed: list[tuple[Sequence[Request], DraftInput]] = []
        # The device may still read them: as long as the host keeps those of a round.
        self._newest_run: deque[list[Prefill]] = deque(maxlen=2)

    def takes(self, batch: Batch, mm_input_embeds: object) -> bool:
        """Returns whether the draft's prefill of ``batch`` may wait."""
        return (
            self._is_wanted()
            and mm_input_embeds is None
            and not batch.forward_mode.is_idle()
            and batch.chunked_req is None
            and len(batch.reqs) <= MOST_REQUESTS
            and len(batch.input_ids) <= MOST_TOKENS
        )

    def put_off(
        self, batch: Batch, hidden_states: torch.Tensor | None, next_tokens: torch.Tensor
    ) -> DraftInput:
        """Keeps what a draft's prefill takes; returns made-up proposals for its requests."""
        if hidden_states is not None:  # they may lie where the next graph writes
            hidden_states = hidden_states.clone()
        self._put_off.append(Prefill(rows_of(batch, slice(None)), hidden_states, next_tokens))
        size, made_up = len(batch.reqs), self._made_up
        own_hidden = made_up.hidden_states
        return EagleDraftInput(
            topk_p=made_up.topk_p[:size],
            topk_index=made_up.topk_index[:size],
            hidden_states=None if own_hidden is None else own_hidden[:size],
            bonus_tokens=next_tokens,
        )

    def run(self) -> None:
        """Runs all that was put off."""
        put_off, self._put_off = self._put_off, []
        if not put_off:
            return
        with self._at_startup_tier():
            for prefill in put_off:
                batch, _, _ = prefill
                self._proposed.append((batch.reqs, self._run(prefill)))
        self._newest_run.append(put_off)

    def fill(self, reqs: Sequence[Request], draft_input: DraftInput) -> bool:
        """Runs what was put off and puts its proposals in place of those made up.

        Args:
            reqs: Of a decode batch.
            draft_input: Of its rows; gets other tensors.

        Returns:
            Whether there was anything.
        """
        self.run()
        proposed, self._proposed = self._proposed, []
        row_of = {req.rid: row for row, req in enumerate(reqs)}
        for owners, values in proposed:
            here = [idx for idx, req in enumerate(owners) if req.rid in row_of]
            rows = [row_of[owners[idx].rid] for idx in here]
            _put_rows(draft_input, values, rows, here)
        return bool(proposed)


def _put_rows(
    draft_input: DraftInput, values: DraftInput, rows: Sequence[int], here: Sequence[int]
) -> None:
    """Puts rows ``here`` of ``values`` in ``draft_input`` at ``rows``, in new tensors."""
    if not rows:
        return
    device = draft_input.bonus_tokens.device
    at, of = to_device(rows, device), to_device(here, device)
    for name in PROPOSED:
        value = getattr(values, name)
        if value is not None:
            setattr(draft_input, name, getattr(draft_input, name).index_copy(0, at, value[of]))
