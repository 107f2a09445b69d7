"""What our workers share: tiers until the server is ready, then what the controller is told.

It stands before a worker class of the host. Imported only in a process that serves ADAPTIVE_EAGLE.
"""

from sglang.srt.mem_cache.allocation_sizing import get_alloc_reserve_per_decode
from sglang.srt.speculative.base_spec_worker import BaseSpecWorker

from sglang_adaptive_spec.host.attention.kv_index import SharedIndex
from sglang_adaptive_spec.host.attention.lengths import LateLengths
from sglang_adaptive_spec.host.batch import Batch
from sglang_adaptive_spec.host.drafters.drafter import Drafter
from sglang_adaptive_spec.host.drafters.registry import DRAFTERS
from sglang_adaptive_spec.host.engine import HostEngine
from sglang_adaptive_spec.host.launch.options import AdaptiveOptions, options_of
from sglang_adaptive_spec.host.ranks import Ranks
from sglang_adaptive_spec.host.reporting.control import Control
from sglang_adaptive_spec.host.reporting.telemetry import Telemetry
from sglang_adaptive_spec.host.server_args import Scheduler
from sglang_adaptive_spec.host.serving.admission import Admission
from sglang_adaptive_spec.host.serving.agreement import Agreement
from sglang_adaptive_spec.host.serving.assemble import assemble
from sglang_adaptive_spec.host.serving.decode_batches import DecodeBatches
from sglang_adaptive_spec.host.serving.exact import ExactRequests, draws_alike
from sglang_adaptive_spec.host.serving.plain_decodes import PlainDecodes
from sglang_adaptive_spec.host.serving.run_ends import has_message
from sglang_adaptive_spec.host.startup.build_hooks import install_build_hooks, install_gpu_hooks
from sglang_adaptive_spec.host.startup.capture import (
    CaptureLists,
    GarbageHold,
    StartupCapture,
    logits_gb,
)
from sglang_adaptive_spec.host.startup.lora import lora_places
from sglang_adaptive_spec.host.startup.packed_graphs import PackedTarget
from sglang_adaptive_spec.host.startup.tier_builder import TierBuilder
from sglang_adaptive_spec.loop.controller import AdaptiveController
from sglang_adaptive_spec.loop.joint import JointController
from sglang_adaptive_spec.runtime.pool import RuntimePool
from sglang_adaptive_spec.tiers import PLAIN_TIER, DecodeBatch, Plan


class AdaptiveWorker(BaseSpecWorker):
    """Builds tiers around the host's start, and hands batches and results to the controller."""

    controller: AdaptiveController  # made when all tiers are built, as what follows
    control: Control
    decode_batches: DecodeBatches
    telemetry: Telemetry
    adaptive_controller: TierBuilder | None  # the host's place for one
    agreement: Agreement | None = None  # of ranks with requests of their own
    packed_target: PackedTarget | None = None  # None: no round is packed
    _decodes: PlainDecodes | None = None  # of zero-step rounds, where these are ours

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        options = options_of(self.server_args)
        assert isinstance(options, AdaptiveOptions), "create_worker checked this"
        assert options.initial_steps is not None, "resolution set it"
        config, runner = options.config, self._target_worker.model_runner
        is_thinned = config.policy == "goodput"
        captures = CaptureLists(runner, config.ladder, is_thinned, options.larger_sizes)
        draft_runner = None if self.draft_worker is None else self.draft_worker.draft_runner
        runners = [each for each in (runner, draft_runner) if each is not None]
        self._index, self._garbage_hold = SharedIndex(), GarbageHold()
        self._startup = StartupCapture(
            captures, options.startup_tier, runner, lambda: logits_gb(runners) + self._index.gb
        )
        install_build_hooks(self._startup, self._garbage_hold)
        if self.device != "cpu":
            install_gpu_hooks(self.server_args, self._index)
        ranks = Ranks.of_server()
        self.drafter: Drafter = DRAFTERS[options.base](self, captures, self._startup, ranks)
        lora = lora_places(runner)
        self.engine = HostEngine(
            self.server_args,
            options,
            self.device,
            runner.gpu_id,
            ranks,
            self._target_worker,
            draft_runner,
            RuntimePool((*self.drafter.places, *lora), options.startup_tier),
            self._run_alone,
        )
        self._tier_builder = TierBuilder(self.engine, captures, self._startup, self.drafter, lora)
        self.most_decodes = 1  # of a zero-step round; more where these are ours

    @property
    def has_plain_rounds(self) -> bool:
        """Whether zero-step rounds are ours."""
        return self.most_decodes > 1

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
        """Builds all tiers behind the host's own captures, then puts together what decides."""
        super().init_cuda_graphs(*args, **kwargs)
        self._tier_builder.build_others()
        self.packed_target = self._build_packed()
        self.adaptive_controller = None  # of the host; the builder may have stood there
        self._startup.is_over = True
        self._garbage_hold.release()
        self._late_lengths = LateLengths(self._may_be_late())
        assembled = assemble(self.engine, self._tier_builder, self.drafter, self.packed_target)
        self.controller, self.control, self.telemetry = assembled
        config, ladder = self.engine.options.config, self.controller.policy.ladder
        draws = draws_alike(str(self.device))
        exact = ExactRequests(config.exact, ladder, self.has_plain_rounds, draws)
        exact.warn()
        deepest = max(tier.num_steps for tier in ladder.tiers)
        admission = Admission(config, exact, self.controller.counters, deepest)
        admission.install()
        self.decode_batches = DecodeBatches(
            self._target_worker.model_runner.model_config.context_len,
            get_alloc_reserve_per_decode(),
            exact.exact,
            admission,
            self.most_decodes,
        )
        if isinstance(self.controller, JointController):
            self.agreement = Agreement(self.controller, self._describe)
            self.agreement.install()
        self.telemetry.log_start(self.drafter.remark)

    def connect(self, scheduler: Scheduler) -> None:
        """Takes the scheduler whose worker this is, before it serves."""
        self.decode_batches.waiting = lambda: scheduler.waiting_queue
        if self._decodes is not None:
            self._decodes.watch(lambda: has_message(scheduler.recv_from_tokenizer))
        self._late_lengths.connect(scheduler.future_map)

    def _build_packed(self) -> PackedTarget | None:
        """Builds what packed rounds need, where there are any."""
        return None

    def _may_be_late(self) -> bool:
        """Returns whether a round may begin before the CPU knows its lengths."""
        return False

    def _run_alone(self, plan: Plan, batch: Batch) -> None:
        """Runs one round that no controller chose and nobody waits for: start-up measurements."""
        raise NotImplementedError

    # -- around a round --

    def on_verify_complete_cpu(
        self, num_correct_drafts_per_req: list[int], *args: object, **kwargs: object
    ) -> None:
        """Hands a processed result to the controller."""
        super().on_verify_complete_cpu(num_correct_drafts_per_req, *args, **kwargs)
        self.controller.observe(num_correct_drafts_per_req, len(num_correct_drafts_per_req))

    def _describe(self, batch: Batch) -> DecodeBatch:
        may_run = self._target_worker.model_runner.sampling_observer is None
        return self.decode_batches.of(batch, may_run, self.controller.decode_tier == PLAIN_TIER)
