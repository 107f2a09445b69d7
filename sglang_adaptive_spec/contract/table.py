"""The contract: every host symbol this plugin touches, how, and what for.

The one idea: nothing of the host is used that is not listed in `sglang.txt`, and everything listed
is checked: against the released wheels in the tests, against the installed host at `register()` and
by `sglang-adaptive-spec check`. Standard library only.

FlashInfer's parts stand apart (`flashinfer.py`): where they differ the plugin serves all the same.
"""

from __future__ import annotations

from dataclasses import replace

from sglang_adaptive_spec.contract.cost_settings import COST_SETTINGS
from sglang_adaptive_spec.contract.symbols import Kind, Symbol, rows_of

__all__ = ["CONTRACT", "HOOK_TARGETS", "Kind", "Symbol"]

_ROWS = rows_of("sglang.txt")
_NAMES = {symbol.name: symbol for symbol in _ROWS}
_SETTING = replace(
    _NAMES["ServerArgs.page_size"], kind=Kind.READ, why="measure round times anew where it differs"
)
_SETTINGS = (replace(_SETTING, name=f"ServerArgs.{name}") for name in COST_SETTINGS)

CONTRACT = (*_ROWS, *(symbol for symbol in _SETTINGS if symbol.name not in _NAMES))
# Where the host's HookRegistry finds what a row hooks, by its name ("Class.method" or "function").
HOOK_TARGETS = {
    name: f"{symbol.module}.{name}"
    for symbol in CONTRACT
    if symbol.kind is Kind.HOOK
    for name in symbol.names
}
