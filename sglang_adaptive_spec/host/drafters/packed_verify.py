"""Graphs of the target's verify for numbers of tokens, however many of each request.

The host captures such graphs for DSPARK (sglang 0.5.23 model_executor/runner/
decode_cuda_graph_runner.py: ragged_verify_mode). Its runner does so for EAGLE's target, too, where
it is told; the environment variable that tells it would change every other runner.
"""

from collections.abc import Callable
from typing import Any

from sglang.srt.model_executor.runner.decode_cuda_graph_runner import DecodeCudaGraphRunner

from sglang_adaptive_spec.host.hooks import hook_now

_is_capturing = False  # packed verifies


class PackedVerifyGraphRunner(DecodeCudaGraphRunner):
    """The host's graphs of a verify, one for each number of tokens."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        global _is_capturing
        hook_now({"ragged_verify_compact_graphs_enabled": around_enabled})
        _is_capturing = True
        try:
            super().__init__(*args, **kwargs)
        finally:
            _is_capturing = False
        self._metadata_glue = None  # it is keyed by requests
        # Nothing reads the layouts of the captures: FA3 makes its own before every replay.
        self._captured_ragged_layouts.clear()

    def get_spec_info(self, num_tokens: int, *args: object, **kwargs: object) -> Any:
        """Says that rows differ."""
        info = super().get_spec_info(num_tokens, *args, **kwargs)
        info.ragged_verify_layout = self._capture_ragged_verify_layout(num_tokens)
        return info


def around_enabled(is_enabled: Callable[..., bool], *args: object, **kwargs: object) -> bool:
    """Around ``ragged_verify_compact_graphs_enabled``: for the runner above."""
    return _is_capturing or is_enabled(*args, **kwargs)
