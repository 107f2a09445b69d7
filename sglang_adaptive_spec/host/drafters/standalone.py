"""STANDALONE: a whole model drafts. It reads tokens alone, so no hidden states are kept for it.

The host serves it through its EAGLE workers, with an embedding and a head of its own (sglang 0.5.20
to 0.5.23 standalone_worker_v2.py). As under EAGLE, the draft's KV begins at the second token of a
prompt: it never sees the first.
"""

from typing import Any

from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
from sglang.srt.speculative.standalone_worker_v2 import StandaloneDraftWorker

from sglang_adaptive_spec.host.batch import Batch
from sglang_adaptive_spec.host.drafters.eagle import AdaptiveDraftWorker, EagleDrafter


class AdaptiveStandaloneDraftWorker(AdaptiveDraftWorker, StandaloneDraftWorker):
    """`AdaptiveDraftWorker` over `StandaloneDraftWorker`; no hidden state leaves a draft-extend."""

    def _draft_extend_for_decode(
        self, batch: Batch, batch_result: Any, *args: object, **kwargs: object
    ) -> None:
        super()._draft_extend_for_decode(batch, batch_result, *args, **kwargs)
        # Graphs return some (eagle_draft_extend_cuda_graph_runner.py captures them whatever the
        # algorithm), prefill does not: a merge keeps those of some rows, and a round without a
        # draft-extend would hand them on.
        batch_result.next_draft_input.hidden_states = None


class StandaloneDrafter(EagleDrafter):
    """Builds tiers, and keeps tokens for a draft that lags behind."""

    draft_class: type[Any] = AdaptiveStandaloneDraftWorker
    hidden_mode = CaptureHiddenMode.NULL  # SGLang gives requests none, either
