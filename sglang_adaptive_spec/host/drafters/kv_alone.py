"""Draft-extends that end where the draft's KV is written: most catch-ups need no more.

Between two drafting rounds nobody reads what the draft would propose. What is behind its last
attention (the output projection, the MLP and the head, nine tenths of the weights of a one-layer
EAGLE draft of an 8B model; less of a whole model) is left out then: an exception leaves the model's
forward there, and the host gets a result in place of the logits that nobody reads.

Graphs of draft-extends as wide as a catch-up come in pairs: whole, and up to the KV.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.layers.radix_attention import RadixAttention

from sglang_adaptive_spec.host.engine import DraftWorker

VARIANT = "kv"  # of a graph
NUM_LOGITS = 64  # of a token, as many as the host may ask for proposals


class _KvWritten(Exception):
    """Leaves the draft's forward behind its last attention."""


def _last_attention(model: torch.nn.Module) -> list[RadixAttention]:
    """Returns the attention of the last layer; some models have one for each kind of forward."""
    every = [module for module in model.modules() if isinstance(module, RadixAttention)]
    last = max((each.layer_id for each in every), default=-1)
    return [each for each in every if each.layer_id == last]


@contextlib.contextmanager
def _ending_early(model: torch.nn.Module, device: str) -> Iterator[None]:
    """Ends forwards of ``model`` behind its last attention, inside the block."""
    nothing = torch.zeros((1, 1), device=device)  # here: a graph would fill it in every replay
    forward: Callable[..., LogitsProcessorOutput] = model.forward

    def leave(*_: object) -> None:
        raise _KvWritten

    def until_kv_written(input_ids: torch.Tensor, *args: object, **kwargs: object) -> Any:
        try:
            return forward(input_ids, *args, **kwargs)
        except _KvWritten:
            in_place = nothing.expand(len(input_ids), NUM_LOGITS)
            return LogitsProcessorOutput(next_token_logits=in_place, hidden_states=in_place)

    hooks = [each.register_forward_hook(leave) for each in _last_attention(model)]
    model.forward = until_kv_written
    try:
        yield
    finally:
        del model.forward
        for hook in hooks:
            hook.remove()


class _KvGraphs:
    """Stands before the graphs of a runner: what ends early has a key of its own."""

    def __init__(self, graphs: Any, model: torch.nn.Module, device: str) -> None:
        self._graphs, self._model, self._device = graphs, model, device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._graphs, name)

    def capture_one(self, key: Any, forward: Callable[[], Any], **kwargs: object) -> None:
        """Captures both, on the same plan of the attention backend."""
        self._graphs.capture_one(key, forward, **kwargs)
        with _ending_early(self._model, self._device):
            self._graphs.capture_one(_kv_key(key), forward, **kwargs)

    def replay(self, key: Any, forward_batch: object, **kwargs: object) -> Any:
        """Runs the one that ends early."""
        return self._graphs.replay(_kv_key(key), forward_batch, **kwargs)


def _kv_key(key: Any) -> Any:
    return replace(key, variant_label=VARIANT)


@contextlib.contextmanager
def pairs_of_graphs(draft: DraftWorker, runner: Any) -> Iterator[None]:
    """Lets ``runner`` capture every draft-extend up to the KV, too, inside the block; run those."""
    graphs = runner.backend
    runner.backend = _KvGraphs(graphs, draft.draft_runner.model, draft.device)
    try:
        yield
    finally:
        runner.backend = graphs


def writing_kv_alone(draft: DraftWorker) -> contextlib.AbstractContextManager[None]:
    """Ends draft-extends where the draft's KV is written, inside the block: graphs or none."""
    runner = draft.cuda_graph_runner_for_draft_extend
    if runner is None:
        return _ending_early(draft.draft_runner.model, draft.device)
    return pairs_of_graphs(draft, runner)
