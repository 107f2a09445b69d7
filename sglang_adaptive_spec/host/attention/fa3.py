"""On FA3 draft-extends run in graphs, and forwards look up the pages of their longest request.

drafters/eagle.py calls `capture_missing_extends`. `capture_extend` is hooked on any GPU,
`bound_page_table` and `bound_extend_table` on FA3. The table of pages is shared: kv_index.py.

Up to 0.5.22 SGLang's list of backends that capture draft-extends leaves FlashAttentionBackend out,
which has all that such a graph needs. Every drafting round then launches the draft-extend kernel by
kernel: 20 % of the scheduler's CPU time with a one-layer draft on an H200 (sglang 0.5.21
eagle_worker_v2.py:EagleDraftWorker._capture_cuda_graphs). With several tiers such a capture must
also be told how many tokens a request has: see `capture_extend`.

The host publishes no lengths on the CPU, since FA3 needs none, and a forward without a graph takes
every request to be as long as the context: at 131,072 tokens FA3 gathers 1 GB a round for 2,048
requests, where no speculation, which has the lengths, gathers a few MB (sglang 0.5.23
flashattention_backend.py:init_forward_metadata). It does the same before every draft-extend in a
graph, which then fills its table once more. What the scheduler has reserved bounds both.
"""

from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.arg_groups.overrides import resolved_view
from sglang.srt.environ import envs
from sglang.srt.model_executor.cuda_graph_config import Backend, Phase, check_cuda_graph_backend
from sglang.srt.speculative.eagle_draft_extend_cuda_graph_runner import (
    EAGLEDraftExtendCudaGraphRunner,
)

from sglang_adaptive_spec.host.batch import ForwardBatch, ForwardMode
from sglang_adaptive_spec.host.engine import DraftWorker
from sglang_adaptive_spec.host.host_round import current_round
from sglang_adaptive_spec.host.sizes import attention_backends


class ExtendGraphRunner(EAGLEDraftExtendCudaGraphRunner):
    """The host's runner, whose reads of shared buffers end with the graph."""

    def execute(self, *args: object, **kwargs: object) -> Any:
        """Runs the graph; the scheduler then waits for the whole forward.

        Up to 0.5.21 the host marks the end of those reads before the graph, in which FA3 looks up
        `req_to_token` (flashattention_backend.py:init_forward_metadata_in_graph).
        """
        output = super().execute(*args, **kwargs)
        self.model_runner.shared_read_done_event = None
        return output


def capture_extend(
    capture: Callable[..., Any], runner: Any, *args: object, **kwargs: object
) -> Any:
    """Around EAGLEDraftExtendCudaGraphRunner.capture_one_shape: with the width of its own tier.

    Runners of equally many requests share this buffer, which holds the width of whoever wrote it
    last, and FA3 reads it inside the graph: behind a wider tier a capture would read past its end
    (sglang 0.5.23 eagle_draft_extend_cuda_graph_runner.py: `share_buffers`). Replays write it.
    """
    runner.buffers.extend_seq_lens.fill_(runner.captured_req_width)
    with runner.eagle_worker.capturing(runner):
        return capture(runner, *args, **kwargs)


def capture_missing_extends(draft_worker: DraftWorker) -> None:
    """Captures the draft-extends of the tier in the making, where the host left out FA3's."""
    is_missing = draft_worker.cuda_graph_runner_for_draft_extend is None
    if is_missing and has_graphs(draft_worker):
        draft_worker.cuda_graph_runner_for_draft_extend = ExtendGraphRunner(draft_worker)


def has_graphs(draft_worker: DraftWorker) -> bool:
    """Returns whether 0.5.23 would capture this worker's draft-extends because they run on FA3."""
    if "fa3" not in attention_backends(resolved_view(draft_worker.server_args)):
        return False
    # Needs kernels that only such a machine has.
    from sglang.srt.layers.attention.flashattention_backend import FlashAttentionBackend

    backend = draft_worker.draft_extend_attn_backend
    return (
        type(backend) is FlashAttentionBackend
        and backend.fa_impl_ver == 3
        and not backend.kv_index_translator.is_translating
        and backend.draft_extend_metadata_captured_in_graph()
        and not check_cuda_graph_backend(Phase.DECODE, Backend.DISABLED)
        and not envs.SGLANG_DISABLE_DRAFT_EXTEND_CUDA_GRAPH.get()
    )


def bound_page_table(
    init: Callable[..., Any],
    backend: object,
    forward_batch: ForwardBatch,
    *args: object,
    **kwargs: object,
) -> Any:
    """Around FlashAttentionBackend.init_forward_metadata: its table is as wide as the longest."""
    if forward_batch.seq_lens_cpu is not None or not (longest := current_round().longest()):
        return init(backend, forward_batch, *args, **kwargs)
    forward_batch.seq_lens_cpu = torch.full((forward_batch.batch_size,), longest)
    try:
        return init(backend, forward_batch, *args, **kwargs)
    finally:
        forward_batch.seq_lens_cpu = None


def bound_extend_table(
    apply: Callable[..., Any],
    backend: object,
    *args: object,
    forward_mode: ForwardMode,
    **kwargs: object,
) -> Any:
    """Around FlashAttentionBackend._apply_cuda_graph_metadata, before a graph is captured or run.

    Decodes and verifies look up live pages alone.
    """
    is_unbound = forward_mode.is_draft_extend_v2() and kwargs["seq_lens_cpu"] is None
    if is_unbound and (longest := current_round().longest()):
        kwargs["seq_lens_cpu"] = torch.full((1,), longest)
    return apply(backend, *args, forward_mode=forward_mode, **kwargs)
