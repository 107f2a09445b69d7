"""NGRAM: a table of what was written before drafts, and the CPU looks it up.

The host's ``NGRAMWorker`` verifies a tree of as many nodes as it is wide, whatever the look-up
found. A tier is how many of them are verified: the likeliest, which are a tree, too. It changes the
worker's buffers and the target's backend and graphs; there is no draft model, and nothing lags
behind.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from sglang.srt.model_executor.runner.decode_cuda_graph_runner import DecodeCudaGraphRunner
from sglang.srt.runtime_context import get_context, get_spec
from sglang.srt.speculative.ngram_info import NgramVerifyInput

from sglang_adaptive_spec.host.drafters.drafter import CatchUps
from sglang_adaptive_spec.host.drafters.target import (
    TARGET_PLACES,
    has_decode_graphs,
    plain_graphs,
)
from sglang_adaptive_spec.host.ranks import Ranks
from sglang_adaptive_spec.host.startup.capture import CaptureLists, StartupCapture
from sglang_adaptive_spec.runtime.pool import Place, read_places, restored
from sglang_adaptive_spec.tiers import PLAIN_TIER, Tier

WIDTHS = ("draft_token_num", "speculative_num_draft_tokens")
# What the host's worker makes for its width (sglang 0.5.20 to 0.5.23
# ngram_worker.py:_init_preallocated_tensors).
BUFFERS = (
    *("draft_tokens", "retrieve_indexes", "retrieve_next_token", "retrieve_next_sibling"),
    *("positions", "tree_mask", "draft_tokens_batch", "tree_mask_batch", "retrieve_indexes_batch"),
    *("retrieve_next_token_batch", "retrieve_next_sibling_batch", "positions_batch"),
)


REMARK = (
    "rounds are planned before the table is asked: with --speculative-ngram-external-sam-budget "
    "above 0 ranks may see a corpus in different rounds. 0 plans by what the table has"
)


class NgramDrafter:
    """Builds tiers of the host's worker."""

    hidden_mode = None
    reads_requests = True
    catch_ups: CatchUps | None = None

    def __init__(
        self, worker: Any, captures: CaptureLists, _startup: StartupCapture, ranks: Ranks
    ) -> None:
        # A corpus that is added while serving is loaded on a thread of every rank and is there when
        # that is done (sglang 0.5.20 to 0.5.23 speculative/external_corpus_manager.py:add). Ranks
        # that found unlike drafts would run unlike tiers, and the server would hang.
        self.finds_alike = not (
            ranks.are_several and get_spec().speculative_ngram_external_sam_budget > 0
        )
        self.remark = None if self.finds_alike else REMARK
        self._worker, self._captures = worker, captures
        self._target_runner = worker.target_worker.model_runner
        self.places: Sequence[Place] = (
            *(Place(worker, name) for name in WIDTHS + BUFFERS),
            *(Place(self._target_runner, name) for name in TARGET_PLACES),
        )

    def prepare(self, max_batch_size: int, part_size: int, ranks: Ranks) -> None:
        """Zero-step rounds keep nothing."""

    def build(self, tier: Tier) -> tuple[object, ...]:
        """Makes the worker's buffers and the target's backend and graphs; values of the places."""
        width, runner = tier.num_draft_tokens, self._target_runner
        with self._at_width(width):
            backend, graphs = runner._get_attention_backend(init_new_workspace=False), None
            if tier == PLAIN_TIER and self._worker.has_plain_rounds:
                graphs = plain_graphs(runner, backend, self.hidden_mode, self._captures)
            elif has_decode_graphs():
                graphs = DecodeCudaGraphRunner(
                    runner,
                    attn_backend=backend,
                    speculative_num_steps=tier.num_steps,
                    speculative_num_draft_tokens=width,
                )
            values = read_places(self.places)
        return (*values[: -len(TARGET_PLACES)], backend, graphs)

    def made_up_input(self, size: int) -> NgramVerifyInput:
        """Returns the newest tokens of ``size`` rows that no request owns."""
        device = self._worker.device
        width = self._worker.full_width
        return NgramVerifyInput(
            draft_token_num=width,
            new_seq_lens=torch.zeros(size, dtype=torch.int64, device=device),
            accept_tokens=torch.zeros(size * width, dtype=torch.int32, device=device),
            accept_lens=torch.ones(size, dtype=torch.int32, device=device),
        )

    @contextlib.contextmanager
    def _at_width(self, width: int) -> Iterator[None]:
        """Makes worker and settings ``width`` wide inside the block."""
        worker, before = self._worker, get_spec().speculative_num_draft_tokens
        with restored(self.places[: -len(TARGET_PLACES)]):
            worker.draft_token_num = worker.speculative_num_draft_tokens = width
            worker._init_preallocated_tensors()
            _override(width)
            try:
                yield
            finally:
                _override(before)


def _override(width: int) -> None:
    get_context().override("adaptive_spec.capture_override", speculative_num_draft_tokens=width)
