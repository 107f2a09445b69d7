"""The host's EAGLEWorkerV2, and what derives from it, with a tier per decode round.

The base class drafts, verifies and extends as always; this subclass swaps in the chosen tier's
state at the head of a forward and hands every result to the controller. Imported only in a
process that serves ADAPTIVE_EAGLE.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

from sglang.srt.arg_groups.overrides import resolved_view
from sglang.srt.environ import envs
from sglang.srt.speculative.eagle_worker_v2 import EAGLEWorkerV2
from sglang.srt.speculative.standalone_worker_v2 import StandaloneWorkerV2

from sglang_adaptive_spec.host.attention.lengths import may_be_late
from sglang_adaptive_spec.host.batch import Batch, rows_of_extend
from sglang_adaptive_spec.host.drafters.catch_up import decoding_rows
from sglang_adaptive_spec.host.drafters.drafter import EagleRoundDrafter
from sglang_adaptive_spec.host.host_round import HostRound, current_round, open_round
from sglang_adaptive_spec.host.reporting.host_figures import KEPT
from sglang_adaptive_spec.host.serving.adaptive_worker import AdaptiveWorker
from sglang_adaptive_spec.host.serving.first_drafts import CopiedConfidences
from sglang_adaptive_spec.host.serving.packed_round import PackedRounds
from sglang_adaptive_spec.host.serving.plain_round import PlainRounds, has_plain_rounds
from sglang_adaptive_spec.host.startup.packed_graphs import (
    PackedTarget,
    confidence_unsupported_reason,
    packed_window,
)
from sglang_adaptive_spec.loop.round import Round
from sglang_adaptive_spec.policy.acceptance.confidence import ASKED_EVERY
from sglang_adaptive_spec.tiers import PLAIN_TIER, CatchUp, Plan

logger = logging.getLogger(__name__)


class AdaptiveEagleWorker(AdaptiveWorker, EAGLEWorkerV2):
    """Chooses, activates and observes around the host's rounds."""

    drafter: EagleRoundDrafter

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self._plain_rounds: PlainRounds | None = None
        self._packed_rounds = PackedRounds(self.engine, self.drafter.hidden_mode)

    # -- until the server is ready --

    def init_cuda_graphs(self, *args: object, **kwargs: object) -> None:
        """Lets the builder stand where the host would build tiers of its own."""
        self._prepare_plain_rounds()
        self._prepare_confidences()
        self.adaptive_controller = self._tier_builder
        super().init_cuda_graphs(*args, **kwargs)

    def _may_be_late(self) -> bool:
        view, runner = resolved_view(self.server_args), self._target_worker.model_runner
        return may_be_late(view, runner.attn_backend, self._draft_worker)

    def _prepare_plain_rounds(self) -> None:
        """Makes zero-step rounds of our own, where the ladder and the model have them."""
        if not has_plain_rounds(self.engine):
            return
        if envs.SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND.get():
            logger.warning(
                "ADAPTIVE_EAGLE ignores SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND=1: its zero-step "
                "rounds put the draft-extend off by themselves, and it must come in the end."
            )
            envs.SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND.set(False)
        self._tier_builder.prepare_catch_ups()
        self.most_decodes = self.engine.options.startup_tier.num_draft_tokens
        self._plain_rounds = PlainRounds(self.engine, self.drafter, self.most_decodes)
        self._decodes = self._plain_rounds.decodes

    def _prepare_confidences(self) -> None:
        """Has the draft tell how sure it is, before the first capture, where rounds ask that."""
        self._tier_builder.why_no_confidence = confidence_unsupported_reason(self.engine)
        if self._tier_builder.why_no_confidence is None:
            rows = self._tier_builder.max_listed_size()
            steps = packed_window(self._tier_builder.ladder, rows) - 1
            self._packed_rounds.confidences = self.drafter.tell_confidence(rows, steps)

    @contextlib.contextmanager
    def _override_worker_state(self, *args: object, **kwargs: object) -> Iterator[None]:
        with self.drafter.building(super()._override_worker_state(*args, **kwargs)):
            yield

    def _build_packed(self) -> PackedTarget | None:
        packed = self._tier_builder.build_packed(self.drafter)
        if packed is not None:
            self._packed_rounds.install()
        elif self._packed_rounds.confidences is not None:
            self._packed_rounds.confidences = None
            reason = self._tier_builder.why_not_packed
            self._tier_builder.why_no_confidence = f"no packed rounds: {reason}"
        return packed

    def _run_alone(self, plan: Plan, batch: Batch) -> None:
        """Runs one round that no controller chose and nobody waits for: start-up measurements."""
        current = open_round(())
        if self._plain_rounds is not None and plan.tier == PLAIN_TIER:
            size, is_catch_up = batch.seq_lens.shape[0], plan.is_catch_up
            current.plain = self._plain_rounds.begin_alone(size, is_catch_up)
        elif plan.verify_lens is not None:
            current.packed = self._packed_rounds.begin(plan)
        try:
            super().forward_batch_generation(batch)
        finally:
            current.plain = current.packed = None

    # -- a round --

    def forward_batch_generation(
        self,
        batch: Batch,
        on_publish: Callable[..., Any] | None = None,
        *args: object,
        **kwargs: object,
    ) -> Any:
        """Puts the batch's tier in force, then runs the host's round."""
        mode, current = batch.forward_mode, open_round(batch.reqs)
        if mode.is_extend() or batch.is_extend_in_batch:
            self._before_extend(batch, current)
        elif mode.is_idle() and self.agreement is None:
            self.controller.before_idle()
        else:
            agreement = self.agreement
            described = self._describe(batch) if agreement is None else agreement.described
            launched = self.controller.before_decode(described)
            current.has_bounds = self._late_lengths.bound(batch)
            if self._plain_rounds is not None and launched.tier == PLAIN_TIER:
                current.plain = self._plain_rounds.begin(launched, on_publish, self._cut_short)
                current.num_decodes = launched.plan.num_decodes
                current.ends_with_target = launched.plan.catch_up is CatchUp.NONE
                on_publish = None  # published inside `verify`, before the target runs
            elif launched.plan.verify_lens is not None:
                current.packed = self._packed_rounds.begin(launched.plan, launched)
            if self._is_asked(launched):
                current.asked = launched
        try:
            return super().forward_batch_generation(batch, on_publish, *args, **kwargs)
        finally:
            current.plain = current.packed = None

    def _cut_short(self, num_decodes: int) -> None:
        """Takes note that the zero-step round in progress runs fewer decodes than planned."""
        current_round().num_decodes = num_decodes
        self.controller.cut_short(num_decodes)

    def _build_trivial_verify_input(self, batch: Batch, *args: object, **kwargs: object) -> Any:
        plain = current_round().plain
        if plain is not None:
            return plain.trivial_verify_input(batch)
        return super()._build_trivial_verify_input(batch, *args, **kwargs)

    def verify(self, batch: Batch, *args: object, **kwargs: Any) -> Any:
        """Verifies; in a plain round there is nothing to verify and the target decodes."""
        current = current_round()
        if current.has_bounds:
            current.has_bounds = False
            self._late_lengths.fetch(batch)
        if current.plain is not None:
            return current.plain.verify(batch, kwargs.get("grammar_barrier"))
        if current.asked is not None:
            current.asked.confidences = self._told(current.asked)
        if current.packed is None:
            return super().verify(batch, *args, **kwargs)
        assert self.packed_target is not None, "no policy plans lengths without it"
        current.packed.choose()
        with self.packed_target.in_place(self._target_worker.model_runner):
            result = super().verify(batch, *args, **kwargs)
        setattr(result, KEPT, current.packed.kept)
        return result

    def _is_asked(self, launched: Round) -> bool:
        """Returns whether the CPU shall know how sure the draft is of a round's drafts."""
        confidences, tier = self._packed_rounds.confidences, launched.tier
        if confidences is None or tier == PLAIN_TIER or tier.topk > 1:
            return False
        if launched.plan.by_confidence is not None:  # which says it anyway
            return False
        is_told = confidences.holds(launched.batch.size, tier.num_steps)
        return is_told and not launched.number % ASKED_EVERY

    def _told(self, launched: Round) -> CopiedConfidences:
        confidences = self._packed_rounds.confidences
        assert confidences is not None, "else nobody was asked"
        size, num_steps = launched.batch.size, launched.tier.num_steps
        return CopiedConfidences.of(confidences.agreed_of(size, num_steps))

    @property
    def last_shared_read_runner(self) -> Any:
        """The model runner whose last read of shared buffers the scheduler waits for."""
        if current_round().ends_with_target:  # no draft-extend followed
            return self._target_worker.model_runner
        return super().last_shared_read_runner

    @property
    def spec_v2_attn_backends(self) -> tuple[object, ...]:
        """The attention backends for which the scheduler waits for lengths."""
        return () if self._late_lengths.is_on else super().spec_v2_attn_backends

    def _before_extend(self, batch: Batch, current: HostRound) -> None:
        """Runs a catch-up of a mixed batch's decode rows first, before they move on."""
        plain, (prefilled, decoding) = self._plain_rounds, rows_of_extend(batch)
        if plain is None:
            self.controller.before_extend(prefilled, decoding)
            return
        plain.slots.forget()  # a mixed batch moves those on that decode
        # With attention data parallel the whole batch is padded, and no part of it can run alone.
        can_catch_up = batch.global_num_tokens is None
        debts = self.controller.before_extend(prefilled, decoding, can_catch_up)
        if not debts:
            return
        current.plain = plain.begin_catch_up(decoding, debts)
        self.engine.pool.activate(PLAIN_TIER)
        try:
            super().forward_batch_generation(decoding_rows(batch, len(prefilled)))
        finally:
            current.plain = None
            self.engine.pool.activate(self.controller.startup_tier)
            # Up to 0.5.21 its mark would stand for the reads of the extend that follows.
            self._draft_worker.draft_runner.shared_read_done_event = None


class AdaptiveStandaloneWorker(AdaptiveEagleWorker, StandaloneWorkerV2):
    """`AdaptiveEagleWorker` over `StandaloneWorkerV2`, which comes before `EAGLEWorkerV2`."""
