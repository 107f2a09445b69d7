"""The host's EAGLEWorkerV2 with a tier per decode round.

The base class drafts, verifies and extends as always; this subclass swaps in the chosen tier's
state at the head of a forward and hands every result to the controller. Imported only in a
process that serves ADAPTIVE_EAGLE.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

from sglang.srt.speculative.eagle_worker_v2 import EagleDraftWorker, EAGLEWorkerV2

from sglang_adaptive_spec.controller import AdaptiveController
from sglang_adaptive_spec.host.capture import CaptureLists, garbage_hold
from sglang_adaptive_spec.host.registration import install_build_hooks
from sglang_adaptive_spec.host.request import AdaptiveRequest, request_of
from sglang_adaptive_spec.host.startup import TierBuilder
from sglang_adaptive_spec.host.telemetry import Telemetry
from sglang_adaptive_spec.policy.ema import EmaPolicy
from sglang_adaptive_spec.policy.tiers import Tier
from sglang_adaptive_spec.runtime.pool import RuntimePool, Slot

logger = logging.getLogger(__name__)

# Set on the target's model runner, where the capture hook finds its way back to the worker.
CAPTURES_ATTRIBUTE = "_adaptive_spec_builder"

TARGET_SLOTS = ("attn_backend", "decode_cuda_graph_runner")


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
    install_build_hooks(
        capture=capture_target_graphs,
        get_backend=get_target_backend,
        freeze_gc=garbage_hold.around_freeze_gc,
    )
    return AdaptiveEagleWorker


def capture_target_graphs(capture: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Wraps ``capture_decode_graph``: the target captures what the start-up tier needs."""
    model_runner = kwargs.get("model_runner")
    builder: TierBuilder | None = getattr(model_runner, CAPTURES_ATTRIBUTE, None)
    if builder is None:  # the draft's runner, or another model's
        return capture(*args, **kwargs)
    with builder.startup_capture():
        return capture(*args, **kwargs)


def get_target_backend(
    get_backend: Callable[..., Any], model_runner: Any, *args: Any, **kwargs: Any
) -> Any:
    """Wraps ``ModelRunner._get_attention_backend``: tiers share the workspace in use already.

    The host gives every tier a private one (FlashInfer: 384 MB). It holds what one kernel leaves
    to the next on the same stream; two tiers never run at once, so they can share it just as
    draft, verify and prefill do (sglang 0.5.23 layers/attention/flashinfer_backend.py).
    """
    if hasattr(model_runner, CAPTURES_ATTRIBUTE):
        kwargs = {**kwargs, "init_new_workspace": False}
    return get_backend(model_runner, *args, **kwargs)


class AdaptiveDraftWorker(EagleDraftWorker):
    """Captures the draft stages of a tier at the batch sizes that reach it."""

    tier_builder: TierBuilder

    def init_attention_backends(self, *args: Any, **kwargs: Any) -> None:
        """Measures what the start-up tier's draft backends take."""
        with self.tier_builder.backends.running():
            super().init_attention_backends(*args, **kwargs)

    def _capture_cuda_graphs(self, *args: Any, **kwargs: Any) -> None:
        with self.tier_builder.draft_capture():
            super()._capture_cuda_graphs(*args, **kwargs)


class AdaptiveEagleWorker(EAGLEWorkerV2):
    """Chooses, activates and observes around the host's rounds."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        request = request_of(self.server_args)
        assert isinstance(request, AdaptiveRequest), "create_worker checked this"
        assert request.initial_steps is not None, "resolution set it"
        self.adaptive_request = request
        startup = request.startup_tier
        policy = EmaPolicy(request.config, request.initial_steps)
        self.pool = RuntimePool(self._slots(), startup)
        self.controller = AdaptiveController(policy, self.pool, startup)
        target_runner = self._target_worker.model_runner
        captures = CaptureLists(target_runner, self.controller)
        self.tier_builder = TierBuilder(self, captures, self.pool, startup)
        setattr(target_runner, CAPTURES_ATTRIBUTE, self.tier_builder)
        # The host makes its draft worker inside __init__; the subclass adds no state of its own.
        self._draft_worker.__class__ = AdaptiveDraftWorker
        self._draft_worker.tier_builder = self.tier_builder
        self._built_values: tuple[object, ...] = ()

    def init_attention_backends(self, *args: Any, **kwargs: Any) -> None:
        """The last step before the first capture, the target's."""
        super().init_attention_backends(*args, **kwargs)
        garbage_hold.hold()

    def init_cuda_graphs(self, *args: Any, **kwargs: Any) -> None:
        """Builds all tiers; the host calls the builder back where it would build its own."""
        self.adaptive_controller: TierBuilder | None = self.tier_builder
        super().init_cuda_graphs(*args, **kwargs)
        self.adaptive_controller = None
        garbage_hold.release()
        delattr(self._target_worker.model_runner, CAPTURES_ATTRIBUTE)
        self.telemetry = Telemetry(self)
        self.telemetry.log_start()

    def forward_batch_generation(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Puts the batch's tier in force, then runs the host's round."""
        mode = batch.forward_mode
        if mode.is_extend() or batch.is_extend_in_batch:
            self.controller.before_extend()
        elif not mode.is_idle():
            self.controller.before_decode(batch.seq_lens.shape[0], batch.reqs)
        return super().forward_batch_generation(batch, *args, **kwargs)

    def on_verify_complete_cpu(
        self, num_correct_drafts_per_req: list[int], *args: Any, **kwargs: Any
    ) -> None:
        """Hands a processed result to the controller."""
        super().on_verify_complete_cpu(num_correct_drafts_per_req, *args, **kwargs)
        self.controller.observe(num_correct_drafts_per_req, len(num_correct_drafts_per_req))

    # -- building a tier through the host --

    def build_tier(self, tier: Tier) -> tuple[object, ...]:
        """Lets the host build ``tier``; returns the values of the pool's slots."""
        state = self.build_adaptive_runtime_state(tier.num_steps, tier.num_draft_tokens)
        target = (state.target_attn_backend, state.target_graph_runner)
        return self._built_values[: -len(TARGET_SLOTS)] + target

    @contextlib.contextmanager
    def _override_worker_state(self, *args: Any, **kwargs: Any) -> Iterator[None]:
        """Remembers what the draft side holds while the tier's values are in place."""
        with super()._override_worker_state(*args, **kwargs):
            yield
            self._built_values = self.pool.read_slots()

    def _slots(self) -> list[Slot]:
        """Every attribute that changes with the tier; the target's two come last."""
        draft, runner = self._draft_worker, self._draft_worker.draft_runner
        shape = ("speculative_num_steps", "speculative_num_draft_tokens")
        stages = (
            "draft_attn_backend",
            "cuda_graph_runner",
            "draft_extend_attn_backend",
            "cuda_graph_runner_for_draft_extend",
            "_topk1_parents_prealloc",
            "_topk1_score_indices_prealloc",
        )
        return [
            *(Slot(self, name) for name in shape),
            *(Slot(draft, name) for name in shape + stages),
            *(Slot(runner, name) for name in ("draft_attn_backend", "attn_backend")),
            *(Slot(self._target_worker.model_runner, name) for name in TARGET_SLOTS),
        ]
