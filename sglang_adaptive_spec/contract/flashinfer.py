"""Whether a version of FlashInfer has the private parts that the plugin touches.

The host's wrappers of FlashInfer plan; host/attention/flashinfer/ plans in their place, with one
argument changed by its position, and lets them share buffers. None of that is FlashInfer's public
interface. A version with a difference from `flashinfer.txt`, or outside the window, is served with
the host's own plans: they are slower, and right. Read from the source, like the host's contract;
the compiled part from the C++ that the package ships and compiles.
"""

from __future__ import annotations

from sglang_adaptive_spec.contract.check import check
from sglang_adaptive_spec.contract.symbols import rows_of
from sglang_adaptive_spec.contract.versions import (
    FLASHINFER,
    FLASHINFER_SUPPORTED,
    FLASHINFER_TESTED,
    HostInfo,
    installed_flashinfer,
    is_supported,
)

PARTS = rows_of("flashinfer.txt")
(PLAN,) = (symbol for symbol in PARTS if symbol.name == "BatchPrefillWithKVCachePlan")
# Tokens of a request, where all have equally many: what a plan takes last.
WIDTH = "uniform_q_len"


def host_plans_reason(flashinfer: HostInfo | None = None) -> str | None:
    """Returns why the host's own plans serve with a FlashInfer, by default the installed one.

    None where ours do, or where there is no FlashInfer.
    """
    flashinfer = flashinfer or installed_flashinfer()
    if flashinfer is None:
        return None
    version = flashinfer.version
    known = f"Known: flashinfer{FLASHINFER_SUPPORTED} ({', '.join(FLASHINFER_TESTED)})"
    differences = check(flashinfer.root, PARTS, FLASHINFER)
    if differences:
        found = "; ".join(map(str, differences))
        return f"flashinfer {version} differs in {found}. {known}"
    if not is_supported(version, FLASHINFER_SUPPORTED):
        return f"flashinfer {version} is not tested. {known}"
    return None
