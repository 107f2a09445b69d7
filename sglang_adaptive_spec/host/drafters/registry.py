"""Which drafter serves which of the host's algorithms."""

from collections.abc import Callable
from typing import Any

from sglang_adaptive_spec.host.drafters.drafter import Drafter
from sglang_adaptive_spec.host.drafters.eagle import EagleDrafter
from sglang_adaptive_spec.host.startup.capture import CaptureLists, StartupCapture

# By base; takes the host's worker, the graph batch sizes, and the start-up tier's capture.
DRAFTERS: dict[str, Callable[[Any, CaptureLists, StartupCapture], Drafter]] = {
    "EAGLE": EagleDrafter,
    "EAGLE3": EagleDrafter,
}
