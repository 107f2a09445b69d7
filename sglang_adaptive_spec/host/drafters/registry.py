"""Which drafter serves which of the host's algorithms."""

from collections.abc import Callable
from typing import Any

from sglang_adaptive_spec.host.drafters.drafter import Drafter
from sglang_adaptive_spec.host.drafters.eagle import EagleDrafter
from sglang_adaptive_spec.host.drafters.ngram import NgramDrafter
from sglang_adaptive_spec.host.drafters.standalone import StandaloneDrafter
from sglang_adaptive_spec.host.ranks import Ranks
from sglang_adaptive_spec.host.startup.capture import CaptureLists, StartupCapture

# By base; takes the host's worker, graph batch sizes, the start-up tier's capture, and the ranks.
DRAFTERS: dict[str, Callable[[Any, CaptureLists, StartupCapture, Ranks], Drafter]] = {
    "EAGLE": EagleDrafter,
    "EAGLE3": EagleDrafter,
    "STANDALONE": StandaloneDrafter,
    "NGRAM": NgramDrafter,
}
