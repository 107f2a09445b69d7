"""The host's EAGLEWorkerV2 with a tier per decode round.

The base class drafts, verifies and extends as always; this subclass swaps in the chosen tier's
state at the head of a forward and hands every result to the controller. Imported only in a
process that serves ADAPTIVE_EAGLE.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from sglang.srt.arg_groups.overrides import resolved_view
from sglang.srt.environ import envs
from sglang.srt.mem_cache.allocation_sizing import get_alloc_reserve_per_decode
from sglang.srt.model_executor.cuda_graph_config import Backend, Phase, check_cuda_graph_backend
from sglang.srt.runtime_context import get_context
from sglang.srt.speculative.eagle_worker_v2 import EagleDraftWorker, EAGLEWorkerV2

from sglang_adaptive_spec.host.attention.eager_lengths import eager_lengths
from sglang_adaptive_spec.host.attention.extend_graphs import (
    capture_missing_extends,
)
from sglang_adaptive_spec.host.attention.late_lengths import LateLengths, may_be_late
from sglang_adaptive_spec.host.attention.shared_index import shared_index
from sglang_adaptive_spec.host.launch.options import AdaptiveOptions, options_of
from sglang_adaptive_spec.host.reporting.control import Control
from sglang_adaptive_spec.host.reporting.telemetry import Telemetry
from sglang_adaptive_spec.host.serving.assemble import assemble
from sglang_adaptive_spec.host.serving.cached_prefixes import cached_prefixes
from sglang_adaptive_spec.host.serving.exact import ExactRequests, batch_reason
from sglang_adaptive_spec.host.serving.plain_round import (
    PlainDecodeGraphRunner,
    PlainRounds,
    plain_round_unsupported_reason,
)
from sglang_adaptive_spec.host.serving.rows import context_tokens, row_keys
from sglang_adaptive_spec.host.serving.runs import needs_every_token
from sglang_adaptive_spec.host.serving.unchanged import install_unchanged_hooks, unchanged
from sglang_adaptive_spec.host.startup.build_hooks import (
    CAPTURES_ATTRIBUTE,
    install_build_hooks,
    install_gpu_hooks,
)
from sglang_adaptive_spec.host.startup.capture import CaptureLists, garbage_hold
from sglang_adaptive_spec.host.startup.seeding import Seeding
from sglang_adaptive_spec.host.startup.tier_builder import TierBuilder
from sglang_adaptive_spec.loop.controller import AdaptiveController
from sglang_adaptive_spec.loop.round import Round
from sglang_adaptive_spec.runtime.pool import Place, RuntimePool
from sglang_adaptive_spec.tiers import PLAIN_TIER, DecodeBatch, Tier

logger = logging.getLogger(__name__)

TARGET_PLACES = ("attn_backend", "decode_cuda_graph_runner")
CHAIN_BUFFERS = ("_topk1_parents_prealloc", "_topk1_score_indices_prealloc")


def worker_class(host_class: type[Any]) -> type[Any]:
    """Returns the worker that serves instead of ``host_class``.

    Raises:
        RuntimeError: Another plugin or platform serves EAGLE with a class of its own.
    """
    if host_class is not EAGLEWorkerV2:
        raise RuntimeError(
            f"ADAPTIVE_EAGLE needs the host's EAGLEWorkerV2 and got {host_class.__name__}: "
            "remove the plugin that replaces it, or serve with --speculative-algorithm EAGLE."
        )
    install_build_hooks()
    return AdaptiveEagleWorker


class AdaptiveDraftWorker(EagleDraftWorker):
    """Captures the draft stages where a tier needs them; zero steps put the draft-extend off."""

    tier_builder: TierBuilder
    plain_rounds: PlainRounds | None
    topk: int
    relay_topk: int  # proposals that every round hands to the next, whatever tiers the two have

    def init_attention_backends(self, *args: Any, **kwargs: Any) -> None:
        """Measures what the start-up tier's draft backends take."""
        with self.tier_builder.backends.running():
            super().init_attention_backends(*args, **kwargs)

    def _capture_cuda_graphs(self, *args: Any, **kwargs: Any) -> None:
        with self.tier_builder.draft_capture():
            super()._capture_cuda_graphs(*args, **kwargs)
            capture_missing_extends(self)

    def draft(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Drafts from as many of the relayed proposals as the tier is wide."""
        draft_input = batch.spec_info
        if draft_input.topk_index.shape[1] > self.topk:
            draft_input.topk_p = draft_input.topk_p[:, : self.topk]
            draft_input.topk_index = draft_input.topk_index[:, : self.topk]
        return super().draft(batch, *args, **kwargs)

    def _draft_extend_for_decode(
        self, batch: Any, batch_result: Any, *args: Any, **kwargs: Any
    ) -> None:
        topk: int = self.topk
        self.topk = self.relay_topk
        if self.plan_stream:  # up to 0.5.21 it would plan while the verify still reads the index
            self.plan_stream.wait_stream(torch.get_device_module(self.device).current_stream())
        try:
            plain = self.plain_rounds
            if plain is None or not plain.is_running:
                super()._draft_extend_for_decode(batch, batch_result, *args, **kwargs)
            else:
                plain.draft_extend(super()._draft_extend_for_decode, batch, batch_result)
        finally:
            self.topk = topk


class AdaptiveEagleWorker(EAGLEWorkerV2):
    """Chooses, activates and observes around the host's rounds."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.device != "cpu":
            install_gpu_hooks(self.server_args)
        options = options_of(self.server_args)
        assert isinstance(options, AdaptiveOptions), "create_worker checked this"
        assert options.initial_steps is not None, "resolution set it"
        self.adaptive_options = options
        startup = options.startup_tier
        for name in CHAIN_BUFFERS:  # the host makes them for chains only
            setattr(self._draft_worker, name, getattr(self._draft_worker, name, None))
        self.pool = RuntimePool(self._places(), startup)
        target_runner = self._target_worker.model_runner
        config = options.config
        captures = CaptureLists(
            target_runner, config.ladder, config.policy == "goodput", options.larger_sizes
        )
        self.tier_builder = TierBuilder(self, captures, self.pool, startup)
        setattr(target_runner, CAPTURES_ATTRIBUTE, self.tier_builder)
        # The host makes its draft worker inside __init__; the subclass adds no state of its own.
        self._draft_worker.__class__ = AdaptiveDraftWorker
        self._draft_worker.tier_builder = self.tier_builder
        self._draft_worker.plain_rounds = None
        self._draft_worker.relay_topk = startup.topk
        self._built_topk = startup.topk
        self._built_values: tuple[object, ...] = ()
        self.plain_rounds: PlainRounds | None = None
        self._is_target_last_to_read = False
        self._waiting: Callable[[], Sequence[Any]] = lambda: (True,)  # nobody knows yet
        # Made when all tiers are built, with how the costs were measured, if the policy has any.
        self.controller: AdaptiveController
        self.seeding: Seeding | None

    def alloc_memory_pool(self, *args: Any, **kwargs: Any) -> None:
        """Before any attention backend, once it is known how many requests may run."""
        super().alloc_memory_pool(*args, **kwargs)
        self.tier_builder.provide_workspace()
        req_to_token = self._target_worker.model_runner.req_to_token_pool.req_to_token
        shared_index.plan(self.tier_builder.extent(), row_slots=req_to_token.shape[1])

    def init_attention_backends(self, *args: Any, **kwargs: Any) -> None:
        """The last step before the first capture, the target's."""
        super().init_attention_backends(*args, **kwargs)
        garbage_hold.hold()

    def init_cuda_graphs(self, *args: Any, **kwargs: Any) -> None:
        """Builds all tiers; the host calls the builder back where it would build its own."""
        self.prepare_plain_rounds()
        self.adaptive_controller: TierBuilder | None = self.tier_builder
        super().init_cuda_graphs(*args, **kwargs)
        self.adaptive_controller = None
        view = resolved_view(self.server_args)
        backend = self._target_worker.model_runner.attn_backend
        self._context_len = self._target_worker.model_runner.model_config.context_len
        self._round_reserve = get_alloc_reserve_per_decode()  # tokens of the two largest rounds
        self.late_lengths = LateLengths(may_be_late(view, backend, self._draft_worker))
        garbage_hold.release()
        delattr(self._target_worker.model_runner, CAPTURES_ATTRIBUTE)
        self.controller, self.seeding = assemble(self)
        exact, ladder = self.adaptive_options.config.exact, self.controller.policy.ladder
        self.exact_requests = ExactRequests(exact, ladder, self.plain_rounds is not None)
        self.exact_requests.install()
        self.control = Control(self)
        self.telemetry = Telemetry(self)
        self.telemetry.log_start()

    def forward_batch_generation(
        self, batch: Any, on_publish: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Puts the batch's tier in force, then runs the host's round."""
        mode = batch.forward_mode
        eager_lengths.begin_round(batch.reqs)
        self._is_target_last_to_read = False
        if mode.is_extend() or batch.is_extend_in_batch:
            self._before_extend(batch)
        elif not mode.is_idle():
            launched = self.controller.before_decode(self._decode_batch(batch))
            self.late_lengths.bound(batch)
            if self.plain_rounds is not None and launched.tier == PLAIN_TIER:
                return self._plain_round(launched, batch, on_publish, *args, **kwargs)
        return super().forward_batch_generation(batch, on_publish, *args, **kwargs)

    def on_verify_complete_cpu(
        self, num_correct_drafts_per_req: list[int], *args: Any, **kwargs: Any
    ) -> None:
        """Hands a processed result to the controller."""
        super().on_verify_complete_cpu(num_correct_drafts_per_req, *args, **kwargs)
        self.controller.observe(num_correct_drafts_per_req, len(num_correct_drafts_per_req))

    # -- a zero-step round: the host's, with the steps that plain_round.py replaces --

    def _plain_round(
        self, launched: Round, batch: Any, on_publish: Any, *args: Any, **kwargs: Any
    ) -> Any:
        plain = self.plain_rounds
        assert plain is not None, "the caller checked this"
        requests, num_decodes = launched.batch.requests, launched.num_decodes
        plain.fall_behind(batch, requests)
        plain.begin(on_publish, requests, launched.is_catch_up, num_decodes)
        unchanged.launch(num_decodes)
        try:
            # Published inside `verify`, before the target runs.
            result = super().forward_batch_generation(batch, None, *args, **kwargs)
        finally:
            plain.end()
        launched.first_drafts = plain.first_drafts
        self._is_target_last_to_read = not launched.is_catch_up
        return result

    def run_alone(self, tier: Tier, batch: Any, is_catch_up: bool = False) -> None:
        """Runs one round that no controller chose and nobody waits for: start-up measurements."""
        plain = self.plain_rounds
        if plain is None or tier != PLAIN_TIER:
            super().forward_batch_generation(batch)
            return
        plain.begin(None, range(batch.seq_lens.shape[0]), is_catch_up)
        try:
            super().forward_batch_generation(batch)
        finally:
            plain.end()

    @property
    def last_shared_read_runner(self) -> Any:
        """The model runner whose last read of shared buffers the scheduler waits for."""
        if self._is_target_last_to_read:  # no draft-extend followed
            return self._target_worker.model_runner
        return super().last_shared_read_runner

    def _build_trivial_verify_input(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        if self.plain_rounds is not None and self.plain_rounds.is_running:
            return self.plain_rounds.trivial_verify_input(batch)
        return super()._build_trivial_verify_input(batch, *args, **kwargs)

    def verify(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Verifies; in a plain round there is nothing to verify and the target decodes."""
        self.late_lengths.fetch(batch)
        if self.plain_rounds is not None and self.plain_rounds.is_running:
            return self.plain_rounds.verify(batch, kwargs.get("grammar_barrier"))
        return super().verify(batch, *args, **kwargs)

    def _before_extend(self, batch: Any) -> None:
        self.controller.before_extend()
        plain = self.plain_rounds
        if plain is None:
            return
        requests = row_keys(batch)
        if not batch.forward_mode.is_mixed():
            plain.forget(requests)
            return
        if not self.controller.may_draft(len(requests)):
            plain.leave_behind()
            return
        rows = plain.begin_catch_up(batch, requests)  # they advance past what is kept
        if rows is None:
            return
        self.pool.activate(PLAIN_TIER)
        try:
            super().forward_batch_generation(rows)
        finally:
            plain.end()
            self.pool.activate(self.controller.startup_tier)
            # Up to 0.5.21 its mark would stand for the reads of the extend that follows.
            self._draft_worker.draft_runner.shared_read_done_event = None

    def _decode_batch(self, batch: Any) -> DecodeBatch:
        size, now_s, num_waiting = batch.seq_lens.shape[0], time.monotonic(), len(self._waiting())
        context, longest = context_tokens(batch)
        # Two rounds: one may be in flight, whose tokens are not counted yet.
        is_near_end = longest + self._round_reserve > self._context_len
        most = 1 if is_near_end else self._most_decodes(batch, num_waiting)
        exact = batch_reason(batch, self.exact_requests.exact)
        rows = row_keys(batch)
        return DecodeBatch(size, rows, context, now_s, most, num_waiting, is_near_end, exact)

    def _most_decodes(self, batch: Any, num_waiting: int) -> int:
        """Returns the decodes of a request that the round may run, if it is a zero-step one."""
        if self.plain_rounds is None or self.controller.decode_tier != PLAIN_TIER:
            return 1  # the first of a stay runs one
        if num_waiting or needs_every_token(batch):
            return 1
        if self._target_worker.model_runner.sampling_observer is not None:
            return 1
        return self.plain_rounds.most_decodes

    def meet(self, scheduler: Any) -> None:
        """Takes the scheduler whose worker this is, before it serves."""
        self._waiting = lambda: scheduler.waiting_queue
        self.late_lengths.meet(scheduler.future_map)

    @property
    def spec_v2_attn_backends(self) -> tuple[Any, ...]:
        """The attention backends for which the scheduler waits for lengths."""
        return () if self.late_lengths.is_on else super().spec_v2_attn_backends

    def prepare_plain_rounds(self) -> None:
        """Makes what zero-step rounds keep for the draft, for as many requests as may run."""
        target_runner = self._target_worker.model_runner
        if 0 not in self.adaptive_options.config.candidate_steps:
            return
        reason = plain_round_unsupported_reason(target_runner)
        if reason is not None:
            logger.warning("ADAPTIVE_EAGLE keeps the host's zero-step round: %s.", reason)
            return
        if envs.SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND.get():
            logger.warning(
                "ADAPTIVE_EAGLE ignores SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND=1: its zero-step "
                "rounds put the draft-extend off by themselves, and it must come in the end."
            )
            envs.SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND.set(False)
        part_size = self.tier_builder.max_catch_up_size()
        self.plain_rounds = PlainRounds(self, target_runner.max_running_requests, part_size)
        self.plain_rounds.most_decodes = self.adaptive_options.startup_tier.num_draft_tokens
        install_unchanged_hooks()
        cached_prefixes.install(self.plain_rounds.prefixes, target_runner.req_to_token_pool)
        self._draft_worker.plain_rounds = self.plain_rounds

    # -- building a tier through the host --

    def build_tier(self, tier: Tier) -> tuple[object, ...]:
        """Lets the host build ``tier``; returns the values of the pool's places."""
        self._built_topk = tier.topk
        if tier == PLAIN_TIER and self.plain_rounds is not None:
            return self._build_plain_tier()
        state = self.build_adaptive_runtime_state(tier.num_steps, tier.num_draft_tokens)
        target = (state.target_attn_backend, state.target_graph_runner)
        return self._built_values[: -len(TARGET_PLACES)] + target

    def _build_plain_tier(self) -> tuple[object, ...]:
        """Builds decode graphs for the target and a draft-extend as wide as a catch-up."""
        draft, target_runner = self._draft_worker, self._target_worker.model_runner
        assert self.plain_rounds is not None, "the caller checked this"
        width = self.plain_rounds.width
        # The host insists on a chain of that width; the tier itself drafts nothing.
        with self._override_worker_state(width - 1, width):
            self.speculative_num_steps = draft.speculative_num_steps = 0
            draft.init_attention_backend()
            with self.tier_builder.catch_ups():
                draft._capture_cuda_graphs()
            backend = target_runner._get_attention_backend(init_new_workspace=False)
            graphs = None
            if not check_cuda_graph_backend(Phase.DECODE, Backend.DISABLED):
                with self.tier_builder.larger_decodes():
                    graphs = PlainDecodeGraphRunner(
                        target_runner,
                        attn_backend=backend,
                        speculative_num_steps=0,
                        speculative_num_draft_tokens=1,
                    )
        return (*self._built_values[: -len(TARGET_PLACES)], backend, graphs)

    @contextlib.contextmanager
    def _override_worker_state(self, *args: Any, **kwargs: Any) -> Iterator[None]:
        """Adds the tier's topk to what the host puts in place; remembers what the places hold."""
        topk = self.topk
        self._put_topk(self._built_topk)  # before and after the host remakes its chain buffers
        with super()._override_worker_state(*args, **kwargs):
            try:
                yield
                self._built_values = self.pool.read_places()
            finally:
                self._put_topk(topk)

    def _put_topk(self, topk: int) -> None:
        """Puts a tree's width where backends and captures read it."""
        self.topk = self._draft_worker.topk = topk
        get_context().override("adaptive_spec.capture_override", speculative_eagle_topk=topk)

    def _places(self) -> list[Place]:
        """Every attribute that changes with the tier; the target's two come last."""
        draft, runner = self._draft_worker, self._draft_worker.draft_runner
        shape = ("speculative_num_steps", "topk", "speculative_num_draft_tokens")
        stages = (
            "draft_attn_backend",
            "cuda_graph_runner",
            "draft_extend_attn_backend",
            "cuda_graph_runner_for_draft_extend",
            *CHAIN_BUFFERS,
        )
        return [
            *(Place(self, name) for name in shape),
            *(Place(draft, name) for name in shape + stages),
            *(Place(runner, name) for name in ("draft_attn_backend", "attn_backend")),
            *(Place(self._target_worker.model_runner, name) for name in TARGET_PLACES),
        ]
