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
from sglang.srt.mem_cache.allocation_sizing import get_alloc_reserve_per_decode
from sglang.srt.speculative.eagle_worker_v2 import EAGLEWorkerV2
from sglang.srt.speculative.standalone_worker_v2 import StandaloneWorkerV2

from sglang_adaptive_spec.host.attention.kv_index import SharedIndex
from sglang_adaptive_spec.host.attention.lengths import LateLengths, may_be_late
from sglang_adaptive_spec.host.batch import Batch, row_keys
from sglang_adaptive_spec.host.drafters.catch_up import decoding_rows
from sglang_adaptive_spec.host.drafters.registry import DRAFTERS
from sglang_adaptive_spec.host.engine import HostEngine
from sglang_adaptive_spec.host.host_round import HostRound, current_round, open_round
from sglang_adaptive_spec.host.launch.options import AdaptiveOptions, options_of
from sglang_adaptive_spec.host.ranks import Ranks
from sglang_adaptive_spec.host.reporting.control import Control
from sglang_adaptive_spec.host.reporting.telemetry import Telemetry
from sglang_adaptive_spec.host.server_args import Scheduler
from sglang_adaptive_spec.host.serving.agreement import Agreement
from sglang_adaptive_spec.host.serving.assemble import assemble
from sglang_adaptive_spec.host.serving.decode_batches import DecodeBatches
from sglang_adaptive_spec.host.serving.exact import ExactRequests
from sglang_adaptive_spec.host.serving.plain_round import (
    PlainRounds,
    plain_round_unsupported_reason,
)
from sglang_adaptive_spec.host.startup.build_hooks import install_build_hooks, install_gpu_hooks
from sglang_adaptive_spec.host.startup.capture import (
    CaptureLists,
    GarbageHold,
    StartupCapture,
    logits_gb,
)
from sglang_adaptive_spec.host.startup.lora import lora_places
from sglang_adaptive_spec.host.startup.tier_builder import TierBuilder
from sglang_adaptive_spec.loop.controller import AdaptiveController
from sglang_adaptive_spec.loop.joint import JointController
from sglang_adaptive_spec.runtime.pool import RuntimePool
from sglang_adaptive_spec.tiers import PLAIN_TIER, CatchUp, DecodeBatch, Tier

logger = logging.getLogger(__name__)


def worker_class(host_class: type[Any]) -> type[Any]:
    """Returns the worker that serves instead of ``host_class``.

    Raises:
        RuntimeError: Another plugin or platform serves EAGLE with a class of its own.
    """
    ours = WORKERS.get(host_class)
    if ours is None:
        needed = " or ".join(each.__name__ for each in WORKERS)
        raise RuntimeError(
            f"ADAPTIVE_EAGLE needs the host's {needed} and got {host_class.__name__}: "
            "remove the plugin that replaces it, or serve with SGLang's own algorithm."
        )
    return ours


class AdaptiveEagleWorker(EAGLEWorkerV2):
    """Chooses, activates and observes around the host's rounds."""

    controller: AdaptiveController  # made when all tiers are built, as what follows
    control: Control
    exact_requests: ExactRequests
    decode_batches: DecodeBatches
    telemetry: Telemetry
    agreement: Agreement | None = None  # of ranks with requests of their own

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        options = options_of(self.server_args)
        assert isinstance(options, AdaptiveOptions), "create_worker checked this"
        assert options.initial_steps is not None, "resolution set it"
        config, runner = options.config, self._target_worker.model_runner
        is_thinned = config.policy == "goodput"
        captures = CaptureLists(runner, config.ladder, is_thinned, options.larger_sizes)
        runners = runner, self._draft_worker.draft_runner
        self._index, self._garbage_hold = SharedIndex(), GarbageHold()
        self._startup = StartupCapture(
            captures, options.startup_tier, runner, lambda: logits_gb(runners) + self._index.gb
        )
        install_build_hooks(self._startup, self._garbage_hold)
        if self.device != "cpu":
            install_gpu_hooks(self.server_args, self._index)
        ranks = Ranks.of_server()
        self.drafter = DRAFTERS[options.base](self, captures, self._startup, ranks)
        lora = lora_places(runner)
        self.engine = HostEngine(
            self.server_args,
            options,
            self.device,
            self.gpu_id,
            ranks,
            self._target_worker,
            self._draft_worker.draft_runner,
            RuntimePool((*self.drafter.places, *lora), options.startup_tier),
            self._run_alone,
        )
        self._tier_builder = TierBuilder(self.engine, captures, self._startup, self.drafter, lora)
        self._plain_rounds: PlainRounds | None = None

    # -- until the server is ready, in this order --

    def alloc_memory_pool(self, *args: object, **kwargs: object) -> None:
        """Before any attention backend, once it is known how many requests may run."""
        super().alloc_memory_pool(*args, **kwargs)
        self._tier_builder.provide_workspace()
        req_to_token = self._target_worker.model_runner.req_to_token_pool.req_to_token
        self._index.plan(self._tier_builder.extent(), req_to_token)

    def init_attention_backends(self, *args: object, **kwargs: object) -> None:
        """The last step before the first capture, the target's."""
        super().init_attention_backends(*args, **kwargs)
        self._garbage_hold.hold()

    def init_cuda_graphs(self, *args: object, **kwargs: object) -> None:
        """Builds all tiers; the host calls the builder back where it would build its own."""
        self._prepare_plain_rounds()
        self.adaptive_controller: TierBuilder | None = self._tier_builder
        super().init_cuda_graphs(*args, **kwargs)
        self._tier_builder.build_others()
        self.adaptive_controller = None
        self._startup.is_over = True
        self._garbage_hold.release()
        view, runner = resolved_view(self.server_args), self._target_worker.model_runner
        is_late = may_be_late(view, runner.attn_backend, self._draft_worker)
        self._late_lengths = LateLengths(is_late)
        assembled = assemble(self.engine, self._tier_builder, self.drafter)
        self.controller, self.control, self.telemetry = assembled
        exact, ladder = self.engine.options.config.exact, self.controller.policy.ladder
        self.exact_requests = ExactRequests(exact, ladder, self._plain_rounds is not None)
        self.exact_requests.install()
        self.decode_batches = DecodeBatches(
            runner.model_config.context_len,
            get_alloc_reserve_per_decode(),
            self.exact_requests.exact,
            1 if self._plain_rounds is None else self._plain_rounds.most_decodes,
        )
        if isinstance(self.controller, JointController):
            self.agreement = Agreement(self.controller, self._describe)
            self.agreement.install()
        self.telemetry.log_start()

    def connect(self, scheduler: Scheduler) -> None:
        """Takes the scheduler whose worker this is, before it serves."""
        self.decode_batches.waiting = lambda: scheduler.waiting_queue
        self._late_lengths.connect(scheduler.future_map)

    def _prepare_plain_rounds(self) -> None:
        """Makes zero-step rounds of our own, where the ladder and the model have them."""
        options = self.engine.options
        if 0 not in options.config.candidate_steps:
            return
        reason = plain_round_unsupported_reason(self.engine.target_runner)
        if reason is not None:
            logger.warning("ADAPTIVE_EAGLE keeps the host's zero-step round: %s.", reason)
            return
        if envs.SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND.get():
            logger.warning(
                "ADAPTIVE_EAGLE ignores SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND=1: its zero-step "
                "rounds put the draft-extend off by themselves, and it must come in the end."
            )
            envs.SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND.set(False)
        self._tier_builder.prepare_catch_ups()
        most_decodes = options.startup_tier.num_draft_tokens
        self._plain_rounds = PlainRounds(self.engine, self.drafter, most_decodes)

    @contextlib.contextmanager
    def _override_worker_state(self, *args: object, **kwargs: object) -> Iterator[None]:
        with self.drafter.building(super()._override_worker_state(*args, **kwargs)):
            yield

    def _run_alone(self, tier: Tier, batch: Batch, is_catch_up: bool = False) -> None:
        """Runs one round that no controller chose and nobody waits for: start-up measurements."""
        current = open_round(())
        if self._plain_rounds is not None and tier == PLAIN_TIER:
            current.plain = self._plain_rounds.begin_alone(batch.seq_lens.shape[0], is_catch_up)
        try:
            super().forward_batch_generation(batch)
        finally:
            current.plain = None

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
                current.plain = self._plain_rounds.begin(launched, on_publish)
                current.num_decodes = launched.plan.num_decodes
                current.ends_with_target = launched.plan.catch_up is CatchUp.NONE
                on_publish = None  # published inside `verify`, before the target runs
        try:
            return super().forward_batch_generation(batch, on_publish, *args, **kwargs)
        finally:
            current.plain = None

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
        return super().verify(batch, *args, **kwargs)

    def on_verify_complete_cpu(
        self, num_correct_drafts_per_req: list[int], *args: object, **kwargs: object
    ) -> None:
        """Hands a processed result to the controller."""
        super().on_verify_complete_cpu(num_correct_drafts_per_req, *args, **kwargs)
        self.controller.observe(num_correct_drafts_per_req, len(num_correct_drafts_per_req))

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

    # -- what the controller is told --

    def _describe(self, batch: Batch) -> DecodeBatch:
        # The first round of a stay at zero steps runs one decode.
        may_run = self.controller.decode_tier == PLAIN_TIER and (
            self._target_worker.model_runner.sampling_observer is None
        )
        return self.decode_batches.of(batch, may_run)

    def _before_extend(self, batch: Batch, current: HostRound) -> None:
        """Runs a catch-up of a mixed batch's decode rows first, before they move on."""
        plain = self._plain_rounds
        if plain is None:
            self.controller.before_extend()
            return
        plain.slots.forget()  # a mixed batch moves those on that decode
        requests = row_keys(batch)
        num_decoding = len(batch.decoding_reqs) if batch.forward_mode.is_mixed() else 0
        first = len(requests) - num_decoding  # rows that decode come last
        # With attention data parallel the whole batch is padded, and no part of it can run alone.
        can_catch_up = batch.global_num_tokens is None
        debts = self.controller.before_extend(requests[:first], requests[first:], can_catch_up)
        if not debts:
            return
        current.plain = plain.begin_catch_up(requests[first:], debts)
        self.engine.pool.activate(PLAIN_TIER)
        try:
            super().forward_batch_generation(decoding_rows(batch, first))
        finally:
            current.plain = None
            self.engine.pool.activate(self.controller.startup_tier)
            # Up to 0.5.21 its mark would stand for the reads of the extend that follows.
            self._draft_worker.draft_runner.shared_read_done_event = None


class AdaptiveStandaloneWorker(AdaptiveEagleWorker, StandaloneWorkerV2):
    """`AdaptiveEagleWorker` over `StandaloneWorkerV2`, which comes before `EAGLEWorkerV2`."""


WORKERS: dict[type[Any], type[Any]] = {
    EAGLEWorkerV2: AdaptiveEagleWorker,
    StandaloneWorkerV2: AdaptiveStandaloneWorker,
}
