"""The contract: every host symbol this plugin touches, how, and what for.

The one idea: nothing of the host is used that is not listed here, and everything listed is checked:
against the released wheels in the tests, against the installed host at `register()` and by
`sglang-adaptive-spec check`. Standard library only.

`symbols.py` says how a row is read. The rows follow a server's life: `start.py` until it
is ready, `rounds.py` from then on, `plain.py` for what zero steps add, `requests.py` for what
requests are owed. What attention backends keep stands in `attention.py`. FlashInfer's parts stand
apart, in `flashinfer.py`: where they differ the plugin serves all the same.
"""

from __future__ import annotations

from sglang_adaptive_spec.contract.attention import ATTENTION
from sglang_adaptive_spec.contract.plain import PLAIN
from sglang_adaptive_spec.contract.requests import REQUESTS
from sglang_adaptive_spec.contract.rounds import ROUNDS
from sglang_adaptive_spec.contract.start import START
from sglang_adaptive_spec.contract.symbols import Kind, Symbol

__all__ = ["CONTRACT", "Kind", "Symbol"]

CONTRACT: tuple[Symbol, ...] = START + ATTENTION + ROUNDS + PLAIN + REQUESTS
