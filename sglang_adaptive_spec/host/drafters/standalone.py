"""STANDALONE: a whole model drafts. It reads tokens alone, so no hidden states are kept for it.

The host serves it through its EAGLE workers, with an embedding and a head of its own (sglang 0.5.20
to 0.5.23 standalone_worker_v2.py). As under EAGLE, the draft's KV begins at the second token of a
prompt: it never sees the first.
"""

from typing import Any

import torch
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
from sglang.srt.speculative.standalone_worker_v2 import StandaloneDraftWorker

from sglang_adaptive_spec.host.drafters.eagle import AdaptiveDraftWorker, EagleDrafter


class AdaptiveStandaloneDraftWorker(AdaptiveDraftWorker, StandaloneDraftWorker):
    """The same around the stages of a whole model."""


class StandaloneDrafter(EagleDrafter):
    """Builds tiers, and keeps tokens for a draft that lags behind."""

    draft_class: type[Any] = AdaptiveStandaloneDraftWorker
    hidden_mode = CaptureHiddenMode.NULL

    def _hidden_size(self) -> int:
        return 0

    def _made_up_hidden(self, size: int) -> torch.Tensor | None:
        return None
