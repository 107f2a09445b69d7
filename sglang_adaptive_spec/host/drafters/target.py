"""What of the target's runner a tier owns, whatever drafts: its attention backend and graphs."""

from typing import Any

from sglang.srt.model_executor.cuda_graph_config import Backend, Phase, check_cuda_graph_backend
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
from sglang.srt.model_executor.runner.decode_cuda_graph_runner import DecodeCudaGraphRunner
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from sglang_adaptive_spec.host.engine import ModelRunner
from sglang_adaptive_spec.host.startup.capture import CaptureLists
from sglang_adaptive_spec.tiers import PLAIN_TIER

TARGET_PLACES = ("attn_backend", "decode_cuda_graph_runner")


class PlainDecodeGraphRunner(DecodeCudaGraphRunner):
    """The host's decode graphs as no speculation captures them, and hidden states if asked for."""

    def __init__(
        self,
        model_runner: ModelRunner,
        *args: object,
        hidden_mode: CaptureHiddenMode | None,
        **kwargs: object,
    ) -> None:
        self._hidden_mode = hidden_mode
        # What the runner captures follows from the target's algorithm.
        algorithm = model_runner.spec_algorithm
        model_runner.spec_algorithm = SpeculativeAlgorithm.NONE
        try:
            super().__init__(model_runner, *args, **kwargs)
        finally:
            model_runner.spec_algorithm = algorithm

    def capture_prepare(self, *args: object, **kwargs: object) -> Any:
        """Captures with the hidden states that will be read."""
        if self._hidden_mode is not None:
            self.capture_hidden_mode = self._hidden_mode
        return super().capture_prepare(*args, **kwargs)


def has_decode_graphs() -> bool:
    """Returns whether the server decodes with graphs."""
    return not check_cuda_graph_backend(Phase.DECODE, Backend.DISABLED)


def plain_graphs(
    runner: ModelRunner,
    backend: object,
    hidden_mode: CaptureHiddenMode | None,
    captures: CaptureLists,
) -> PlainDecodeGraphRunner | None:
    """Returns the graphs of zero-step rounds on an attention ``backend``; None without graphs."""
    if not has_decode_graphs():
        return None
    with captures.narrowed(captures.decode_sizes(PLAIN_TIER)):
        return PlainDecodeGraphRunner(
            runner,
            hidden_mode=hidden_mode,
            attn_backend=backend,
            speculative_num_steps=PLAIN_TIER.num_steps,
            speculative_num_draft_tokens=PLAIN_TIER.num_draft_tokens,
        )
