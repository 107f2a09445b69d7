"""What of the target's runner a tier owns, whatever drafts: its attention backend and graphs."""

from typing import Any

from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
from sglang.srt.model_executor.runner.decode_cuda_graph_runner import DecodeCudaGraphRunner
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from sglang_adaptive_spec.host.engine import ModelRunner

TARGET_PLACES = ("attn_backend", "decode_cuda_graph_runner")


class PlainDecodeGraphRunner(DecodeCudaGraphRunner):
    """The host's decode graphs as no speculation captures them, and hidden states if asked for."""

    def __init__(
        self,
        model_runner: ModelRunner,
        *args: object,
        hidden_mode: CaptureHiddenMode,
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
        """Captures with the hidden states that the draft will read."""
        self.capture_hidden_mode = self._hidden_mode
        return super().capture_prepare(*args, **kwargs)
