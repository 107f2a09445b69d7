"""EAGLE and EAGLE-3: a draft model of a layer or so, which reads the target's hidden states.

It drafts through the host's ``EagleDraftWorker``. A tier is what changes with the depth: shapes,
attention backends and graphs of worker, draft and target. The host builds them one tier after the
other, through the parts of its own adaptive mode.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
from sglang.srt.runtime_context import get_context
from sglang.srt.speculative.eagle_info import EagleDraftInput
from sglang.srt.speculative.eagle_utils import (
    get_draft_input_from_target_hidden_dim,
    get_draft_recurrent_hidden_state_spec,
)
from sglang.srt.speculative.eagle_worker_v2 import EagleDraftWorker

from sglang_adaptive_spec.host.attention.fa3 import capture_missing_extends
from sglang_adaptive_spec.host.attention.flashinfer.windows import for_packed_verifies
from sglang_adaptive_spec.host.batch import Batch, DraftInput
from sglang_adaptive_spec.host.drafters.catch_up import EagleCatchUps
from sglang_adaptive_spec.host.drafters.confidences import (
    Confidences,
    reading_extend,
    top_probability,
)
from sglang_adaptive_spec.host.drafters.drafter import CatchUps
from sglang_adaptive_spec.host.drafters.kv_alone import pairs_of_graphs
from sglang_adaptive_spec.host.drafters.layout import draft_layout, own_ranks
from sglang_adaptive_spec.host.drafters.packed_verify import PackedVerifyGraphRunner
from sglang_adaptive_spec.host.drafters.parts import RELAYED
from sglang_adaptive_spec.host.drafters.target import TARGET_PLACES, plain_graphs
from sglang_adaptive_spec.host.host_round import current_round
from sglang_adaptive_spec.host.ranks import Ranks
from sglang_adaptive_spec.host.startup.capture import CaptureLists, StartupCapture
from sglang_adaptive_spec.runtime.pool import Place, read_places
from sglang_adaptive_spec.tiers import PLAIN_TIER, Tier

INPUT_SEED = 1
TOKEN_STRIDE = 7919  # of tokens made up; prime, and no divisor of a vocabulary
CHAIN_BUFFERS = ("_topk1_parents_prealloc", "_topk1_score_indices_prealloc")


class AdaptiveDraftWorker(EagleDraftWorker):
    """Captures the draft stages where a tier needs them; zero steps put the draft-extend off."""

    startup: StartupCapture
    topk: int
    builds_catch_ups = False  # what is captured now are draft-extends as wide as a catch-up
    layout: Callable[[], contextlib.AbstractContextManager[None]]  # of ranks, that it runs in
    builds_tiers = False  # behind the host's own start, which enters the layout by itself
    relay_topk: int  # proposals that every round hands to the next, whatever tiers the two have
    confidences: Confidences | None = None  # None: nobody asks

    def init_attention_backends(self, *args: object, **kwargs: object) -> None:
        """Measures what the start-up tier's draft backends take."""
        with self.startup.backends.running():
            super().init_attention_backends(*args, **kwargs)

    def init_attention_backend(self, *args: object, **kwargs: object) -> None:
        with self._in_layout():
            super().init_attention_backend(*args, **kwargs)

    def _capture_cuda_graphs(self, *args: object, **kwargs: object) -> None:
        with self._in_layout(), self.startup.of_draft():
            super()._capture_cuda_graphs(*args, **kwargs)
            capture_missing_extends(self)

    def _in_layout(self) -> contextlib.AbstractContextManager[None]:
        return self.layout() if self.builds_tiers else contextlib.nullcontext()

    def capturing(self, runner: object) -> contextlib.AbstractContextManager[None]:
        """Surrounds the capture of a draft-extend by ``runner``."""
        nothing = contextlib.nullcontext()
        return pairs_of_graphs(self, runner) if self.builds_catch_ups else nothing

    def draft(self, batch: Batch, *args: object, **kwargs: object) -> Any:
        """Drafts from as many of the relayed proposals as the tier is wide."""
        draft_input = batch.spec_info
        if draft_input.topk_index.shape[1] > self.topk:
            draft_input.topk_p = draft_input.topk_p[:, : self.topk]
            draft_input.topk_index = draft_input.topk_index[:, : self.topk]
        return super().draft(batch, *args, **kwargs)

    def draft_forward(self, forward_batch: Any, *args: object, **kwargs: object) -> Any:
        """Drafts, in a graph or not; of chains also how sure the draft is."""
        confidences, first = self.confidences, forward_batch.spec_info.topk_p
        if (
            confidences is None
            or self.topk > 1
            or first is None
            or not confidences.holds(len(first), self.speculative_num_steps)
        ):
            return super().draft_forward(forward_batch, *args, **kwargs)
        with confidences.reading_draft(self.draft_runner, first[:, 0]):
            return super().draft_forward(forward_batch, *args, **kwargs)

    def _draft_extend_for_decode(
        self, batch: Batch, batch_result: Any, *args: object, **kwargs: object
    ) -> None:
        topk: int = self.topk
        self.topk = self.relay_topk
        if self.plan_stream:  # up to 0.5.21 it would plan while the verify still reads the index
            self.plan_stream.wait_stream(torch.get_device_module(self.device).current_stream())
        try:
            plain = current_round().plain
            if plain is None:
                self._extend(batch, batch_result, *args, **kwargs)
            else:
                plain.draft_extend(self._extend, batch, batch_result)
        finally:
            self.topk = topk

    def _extend(self, batch: Batch, batch_result: Any, *args: object, **kwargs: object) -> None:
        """Lets the host extend the draft; relays how sure it is of the tokens that it proposes."""
        confidences = self.confidences
        # Rows of small batches, too: they may go on in larger ones.
        if (
            confidences is None
            or self.relay_topk > 1
            or len(batch.seq_lens) > confidences.most_rows
        ):
            super()._draft_extend_for_decode(batch, batch_result, *args, **kwargs)
            return
        with reading_extend(self) as outputs:
            super()._draft_extend_for_decode(batch, batch_result, *args, **kwargs)
        batch_result.next_draft_input.topk_p[:, 0] = top_probability(outputs[-1].next_token_logits)


class EagleDrafter:
    """Builds tiers of the host's worker, and what its draft lags behind."""

    draft_class: type[Any] = AdaptiveDraftWorker
    hidden_mode: CaptureHiddenMode | None = CaptureHiddenMode.FULL
    relayed: Sequence[str] = RELAYED
    reads_requests = False
    remark: str | None = None

    def __init__(
        self, worker: Any, captures: CaptureLists, startup: StartupCapture, ranks: Ranks
    ) -> None:
        self._worker, self._captures = worker, captures
        self._target_runner = worker.target_worker.model_runner
        draft = self._draft = worker.draft_worker
        for name in CHAIN_BUFFERS:  # the host makes them for chains only
            setattr(draft, name, getattr(draft, name, None))
        # The host makes its draft worker inside __init__; the subclass adds no state of its own.
        draft.__class__ = self.draft_class
        draft.startup, draft.relay_topk = startup, worker.topk
        draft.layout = draft_layout(own_ranks(draft, ranks))
        self.catch_ups: CatchUps | None = None
        self.places: Sequence[Place] = self._places()
        self._topk, self._ranks = worker.topk, ranks  # that of the tier in the making
        self._values: tuple[object, ...] = ()  # of the places, for that tier

    def tell_confidence(self, most_rows: int, most_steps: int) -> Confidences:
        """Has chains tell how sure the draft is, from the first capture on."""
        device, ranks = self._worker.device, self._ranks
        self._draft.confidences = Confidences(most_rows, most_steps, device, ranks)
        return self._draft.confidences

    def prepare(self, max_batch_size: int, part_size: int, ranks: Ranks) -> None:
        """Makes what zero-step rounds keep for the draft.

        Args:
            max_batch_size: Requests that the scheduler may run at once.
            part_size: Requests that one draft-extend may catch up.
            ranks: Those of this server.
        """
        req_to_token = self._target_runner.req_to_token_pool.req_to_token
        self.catch_ups = EagleCatchUps(
            self._draft,
            self._hidden_size(),
            req_to_token,
            ranks.num_shards,
            max_batch_size,
            part_size,
            ranks.num_replicas > 1,
        )

    def first_drafts(self, draft_input: DraftInput) -> torch.Tensor | None:
        """Returns what the draft would propose next, in the target's vocabulary: [bs], or None."""
        if draft_input.topk_index is None:
            return None
        drafts: torch.Tensor = draft_input.topk_index[:, 0]
        hot_token_id = self._draft.hot_token_id
        return drafts if hot_token_id is None else hot_token_id[drafts]

    def made_up_input(self, size: int) -> EagleDraftInput:
        """Returns what rows of unlike texts relay: equal ones would all hit the same experts.

        From a seed, so that all ranks have the same.
        """
        draft, device = self._draft, self._worker.device
        vocab_size = self._target_runner.model_config.vocab_size
        known = vocab_size if draft.hot_token_id is None else len(draft.hot_token_id)
        shape = (size, draft.relay_topk)
        probs = None
        if self._worker.server_args.speculative_use_rejection_sampling:
            probs = torch.full((size, vocab_size), 1 / vocab_size, device=device)
        return EagleDraftInput(
            draft_probs=probs,
            topk_p=torch.ones(shape, device=device),
            topk_index=_distinct(shape, known).to(device),
            hidden_states=self._made_up_hidden(size),
            bonus_tokens=_distinct((size,), vocab_size).to(device),
        )

    def _hidden_size(self) -> int:
        """Returns the width of the target's hidden states as a draft-extend reads them, or 0."""
        if self.hidden_mode == CaptureHiddenMode.NULL:
            return 0
        return int(get_draft_input_from_target_hidden_dim(self._draft.draft_runner))

    def _made_up_hidden(self, size: int) -> torch.Tensor | None:
        """Returns hidden states of the draft's own, which a round hands on, if there are any."""
        hidden_size, dtype = get_draft_recurrent_hidden_state_spec(self._draft.draft_runner)
        if hidden_size is None:
            return None
        random = torch.Generator().manual_seed(INPUT_SEED)
        return torch.randn((size, hidden_size), generator=random).to(self._worker.device, dtype)

    def build(self, tier: Tier) -> tuple[object, ...]:
        """Lets the host build ``tier``; returns the values of the places."""
        self._topk = tier.topk
        if tier == PLAIN_TIER and self.catch_ups is not None:
            return self._build_plain(self.catch_ups.width, self.catch_ups.part_size)
        worker = self._worker
        state = worker.build_adaptive_runtime_state(tier.num_steps, tier.num_draft_tokens)
        target = (state.target_attn_backend, state.target_graph_runner)
        return self._values[: -len(TARGET_PLACES)] + target

    @contextlib.contextmanager
    def building(self, host_state: contextlib.AbstractContextManager[None]) -> Iterator[None]:
        """Adds the tier's topk to what the host puts in place; remembers what the places hold."""
        topk = self._worker.topk
        self._draft.builds_tiers = True
        self._put_topk(self._topk)  # before and after the host remakes its chain buffers
        with host_state:
            try:
                yield
                self._values = read_places(self.places)
            finally:
                self._draft.builds_tiers = False
                self._put_topk(topk)

    def _build_plain(self, width: int, most: int) -> tuple[object, ...]:
        """Builds decode graphs for the target and a draft-extend as wide as a catch-up.

        Args:
            width: Of it.
            most: Requests that one takes.
        """
        worker, draft, runner = self._worker, self._draft, self._target_runner
        # The host insists on a chain of that width; the tier itself drafts nothing.
        with worker._override_worker_state(width - 1, width):
            worker.speculative_num_steps = draft.speculative_num_steps = 0
            draft.init_attention_backend()
            draft.builds_catch_ups = True
            sizes = [size for size in self._captures.catch_up_sizes() if size <= most]
            with self._captures.narrowed(tuple(sizes)):
                draft._capture_cuda_graphs()
            draft.builds_catch_ups = False
            backend = runner._get_attention_backend(init_new_workspace=False)
            graphs = plain_graphs(runner, backend, self.hidden_mode, self._captures)
        return (*self._values[: -len(TARGET_PLACES)], backend, graphs)

    def build_packed(
        self, window: int, sizes: Sequence[int]
    ) -> tuple[tuple[object, ...], Sequence[int]]:
        """Builds the target's part of packed rounds; the draft's is that of their tier."""
        self._topk, runner = 1, self._target_runner
        with self._worker._override_worker_state(window - 1, window):
            backend = runner._get_attention_backend(init_new_workspace=False)
            backend = for_packed_verifies(backend, window)
            with self._captures.narrowed(tuple(sizes)):
                graphs = PackedVerifyGraphRunner(
                    runner,
                    attn_backend=backend,
                    speculative_num_steps=window - 1,
                    speculative_num_draft_tokens=window,
                )
        return (backend, graphs), graphs.capture_num_tokens

    def _put_topk(self, topk: int) -> None:
        """Puts a tree's width where backends and captures read it."""
        self._worker.topk = self._draft.topk = topk
        get_context().override("adaptive_spec.capture_override", speculative_eagle_topk=topk)

    def _places(self) -> tuple[Place, ...]:
        """Every attribute that changes with the tier; the target's two come last."""
        draft, runner = self._draft, self._draft.draft_runner
        shape = ("speculative_num_steps", "topk", "speculative_num_draft_tokens")
        stages = (
            "draft_attn_backend",
            "cuda_graph_runner",
            "draft_extend_attn_backend",
            "cuda_graph_runner_for_draft_extend",
            *CHAIN_BUFFERS,
        )
        return (
            *(Place(self._worker, name) for name in shape),
            *(Place(draft, name) for name in shape + stages),
            *(Place(runner, name) for name in ("draft_attn_backend", "attn_backend")),
            *(Place(self._target_runner, name) for name in TARGET_PLACES),
        )


def _distinct(shape: tuple[int, ...], below: int) -> torch.Tensor:
    """Returns numbers from 0 to ``below`` far apart, no two alike as long as there are enough."""
    return (torch.arange(math.prod(shape)) * TOKEN_STRIDE % below).view(shape)
