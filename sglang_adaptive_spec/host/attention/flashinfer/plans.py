"""FlashInfer's plans for graphs of a round: a chain, equally many tokens a request, no wait.

The host hands every verify the mask of a tree and lets FlashInfer read the lengths back from the
device. FlashInfer takes its rows for ragged and sizes tiles for the longest that there could be:
128 rows where 16 would do (sglang 0.5.23 flashinfer_backend.py:call_begin_forward, flashinfer
0.6.18 prefill.py: `uniform_q_len`). Here a chain is causal, tiles fit the tokens of a request, and
lengths come from the CPU, where the scheduler has them.

A plan is copied from pinned memory that the plans of a backend and mode share (workspace.py). Made
without a wait it could overwrite the one before, so it waits for the copy of that one: long done,
unless the device lags by a round.

All of that changes private parts of FlashInfer (contract/flashinfer.py). Where an installed version
differs, the host's own plans serve.
"""

import logging
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.environ import envs
from sglang.srt.layers.attention.flashinfer_backend import fast_prefill_plan
from sglang.srt.speculative.eagle_info import EagleVerifyInput

from sglang_adaptive_spec.contract.flashinfer import PLAN, WIDTH, host_plans_reason
from sglang_adaptive_spec.host.attention.flashinfer.draft_bounds import know_bounds
from sglang_adaptive_spec.host.attention.flashinfer.workspace import share_plan_buffers
from sglang_adaptive_spec.host.batch import ForwardBatch, ForwardMode
from sglang_adaptive_spec.host.events import DoneEvent
from sglang_adaptive_spec.host.hooks import Hooks

logger = logging.getLogger(__name__)

WIDTH_PLACE = PLAN.parameters.index(WIDTH)
BEGIN = "FlashInferAttnBackend.init_forward_metadata_out_graph"
# Of 0.5.23, off unless asked for: it plans for the mask that a chain does without here.
HOST_PLANS = "SGLANG_OPT_FLASHINFER_VERIFY_HOST_PLAN"
PLAN_COPIED = "_adaptive_spec_plan_copied"  # on the backend: of the newest plan of a decode
known_reason = cache(host_plans_reason)  # no package is replaced while a process runs


class PlannedModule:
    """FlashInfer's compiled module, whose plans wait for the copy of the one before."""

    def __init__(self, module: Any, copied: DoneEvent, num_tokens: int | None = None) -> None:
        """Takes the module, what marks the newest plan's copy, and the tokens of each request.

        Without the latter, rows are what the module makes of them.
        """
        self._module = module
        self._copied = copied
        self._num_tokens = num_tokens

    def plan(self, *args: object) -> Any:
        """Plans as the module does, with the tokens of a request where a prefill takes them."""
        self._copied.synchronize()  # never recorded: done
        if self._num_tokens is None:
            info = self._module.plan(*args)
        else:
            assert len(args) >= WIDTH_PLACE, "the host leaves out an argument before the last"
            info = self._module.plan(*args[:WIDTH_PLACE], self._num_tokens)
        self._copied.record()
        return info

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


class VerifyPlan:
    """Plans the verifies of one graph, in place of its wrapper's ``begin_forward``."""

    def __init__(self, wrapper: Any, batch_size: int, num_tokens: int, copied: DoneEvent) -> None:
        """Takes FlashInfer's wrapper, its requests, and what `PlannedModule` takes."""
        self._wrapper, self._num_tokens, self._copied = wrapper, num_tokens, copied
        self._rows = torch.arange(batch_size + 1, dtype=torch.int32) * num_tokens
        self.prefix_lens: torch.Tensor | None = None  # [bs] on the CPU, of the verify to come

    def __call__(
        self,
        qo_indptr: torch.Tensor,
        kv_indptr: torch.Tensor,
        kv_indices: torch.Tensor,
        last_page_len: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        custom_mask: torch.Tensor | None = None,
        **kwargs: object,
    ) -> None:
        """Takes what ``plan`` takes; a wrapper without room for a mask is a chain's."""
        wrapper, num_tokens = self._wrapper, self._num_tokens
        mask = custom_mask if wrapper._custom_mask_buf is not None else None
        kwargs["causal"] = mask is None
        if not isinstance(wrapper._cached_module, PlannedModule):  # the first: it is captured next
            heads = (num_qo_heads, num_kv_heads, head_dim)
            args = (qo_indptr, kv_indptr, kv_indices, last_page_len, *heads, page_size)
            wrapper.plan(*args, custom_mask=mask, **kwargs)
            module = wrapper._cached_module
            wrapper._cached_module = PlannedModule(module, self._copied, num_tokens)
        if mask is not None:
            pack_mask(wrapper, mask, kv_indptr * num_tokens)
        lens, bounds = self._lens_on_cpu(kv_indptr), torch.zeros_like(self._rows)
        torch.cumsum(lens, dim=0, out=bounds[1:])
        fast_prefill_plan(
            wrapper,
            qo_indptr,
            kv_indptr,
            kv_indices,
            last_page_len,
            num_qo_heads,
            num_kv_heads,
            head_dim,
            page_size,
            qo_indptr_host=self._rows,
            kv_indptr_host=bounds,
            kv_lens_host=lens,
            max_q_len=num_tokens,
            max_kv_len=int(lens.max()),
            **kwargs,
        )

    def _lens_on_cpu(self, kv_indptr: torch.Tensor) -> torch.Tensor:
        """Returns the tokens of each request, those to verify included: [bs] int32."""
        if self.prefix_lens is None:  # the host did not say
            return kv_indptr.diff().cpu()
        return self.prefix_lens.to(torch.int32) + self._num_tokens


def quantization_module() -> Any:
    """Returns FlashInfer's compiled module that packs bits, on a machine that has it."""
    module = import_module("flashinfer.quantization.packbits")
    return module.get_quantization_module()


def pack_mask(wrapper: Any, mask: torch.Tensor, bounds: torch.Tensor) -> None:
    """Packs a tree's mask, bytes to bits, straight into what the graph reads.

    Args:
        wrapper: FlashInfer's.
        mask: [>= bounds[-1]] bool.
        bounds: [bs + 1] int32: where the part of each request begins.
    """
    packed = torch.zeros_like(bounds)
    torch.cumsum((bounds.diff() + 7) // 8, dim=0, out=packed[1:])
    quantization_module().segment_packbits(
        mask.view(-1), bounds, packed, "little", wrapper._custom_mask_buf
    )
    wrapper._mask_indptr_buf.copy_(packed)


# -- the host's methods, hooked --


def has_uniform_plans(backend: Any) -> bool:
    """Returns whether plans for this backend's graphs are made here.

    They are where it has one wrapper, of the kernels that take a width, and FlashInfer is known.
    """
    is_simple = backend.prefill_backend == "fa2" and backend.dispatch_reason is None
    return is_simple and known_reason() is None


def prepare_wrappers(
    prepare: Callable[..., Any],
    backend: Any,
    bs: int,
    num_tokens: int,
    forward_mode: ForwardMode,
    spec_info: Any,
) -> Any:
    """Around FlashInferAttnBackend._prepare_cuda_graph_metadata: a chain gets no mask.

    A wrapper that has room for a mask reads it, whatever it is planned with.
    """
    is_own = (
        forward_mode.is_target_verify()
        and isinstance(spec_info, EagleVerifyInput)
        and has_uniform_plans(backend)
    )
    is_chain = is_own and spec_info.topk == 1
    given = SimpleNamespace(custom_mask=None) if is_chain else spec_info
    result = prepare(backend, bs, num_tokens, forward_mode, given)
    copied = share_plan_buffers(backend, forward_mode)
    if is_own:
        assert copied is not None, "a verify has plans"
        for wrapper in backend.forward_metadata.prefill_wrappers:
            wrapper.begin_forward = VerifyPlan(wrapper, bs, num_tokens // bs, copied)
    return result


def begin_graph(
    begin: Callable[..., Any], backend: Any, forward_batch: ForwardBatch, in_capture: bool = False
) -> Any:
    """Around FlashInferAttnBackend.init_forward_metadata_out_graph: before a capture or replay.

    Draft-extends get tiles of their width. Decodes and draft steps may follow each other at once.
    """
    result = begin(backend, forward_batch, in_capture)
    mode = forward_batch.forward_mode
    if not in_capture:
        return result
    if mode.is_draft_extend_v2() and has_uniform_plans(backend):
        num_tokens = forward_batch.positions.numel() // forward_batch.batch_size
        copied = share_plan_buffers(backend, mode)
        guard(backend.forward_metadata.prefill_wrappers, copied, num_tokens)
        begin(backend, forward_batch)  # the capture takes the tiles of this plan
    elif mode.is_decode_or_idle():
        guard(backend.forward_metadata.decode_wrappers, share_plan_buffers(backend, mode))
    return result


def guard(wrappers: Sequence[Any], copied: DoneEvent | None, num_tokens: int | None = None) -> None:
    """Lets the plans of FlashInfer's ``wrappers`` wait for each other."""
    assert copied is not None, "a mode of graphs has plans"
    for wrapper in wrappers:
        wrapper._cached_module = PlannedModule(wrapper._cached_module, copied, num_tokens)


def pass_lengths(
    call: Callable[..., Any],
    updater: object,
    ragged: object,
    paged: Any,
    *args: object,
    **kwargs: object,
) -> Any:
    """Around FlashInferIndicesUpdaterPrefill.call_begin_forward, where lengths are known."""
    plan = paged.begin_forward
    if isinstance(plan, VerifyPlan):
        plan.prefix_lens = kwargs["seq_lens_cpu"]
    return call(updater, ragged, paged, *args, **kwargs)


def one_plan_at_a_time(
    begin: Callable[..., Any],
    backend: Any,
    forward_batch: ForwardBatch,
    *args: object,
    **kwargs: object,
) -> Any:
    """Around FlashInferAttnBackend.init_forward_metadata_out_graph, where plans are the host's.

    The decodes of a zero-step round follow each other at once. Their plans share pinned memory, so
    each waits for the copy of the one before.
    """
    if not forward_batch.forward_mode.is_decode_or_idle():
        return begin(backend, forward_batch, *args, **kwargs)
    copied: DoneEvent | None = vars(backend).get(PLAN_COPIED)
    if copied is None:
        copied = torch.get_device_module(backend.workspace_buffer.device).Event()
        setattr(backend, PLAN_COPIED, copied)
    copied.synchronize()  # never recorded: done
    result = begin(backend, forward_batch, *args, **kwargs)
    copied.record()
    return result


def plan_hooks(is_in_use: bool) -> Hooks:
    """Returns what runs around the plans of graphs; for a process that has FlashInfer.

    Args:
        is_in_use: Whether FlashInfer is an attention backend of this server; else nobody minds
            whose plans these would be.
    """
    reason = known_reason()
    if reason is not None:
        if is_in_use:
            logger.warning(
                "ADAPTIVE_EAGLE leaves FlashInfer's plans to SGLang: %s. Tokens are the same, a "
                "round takes longer; install the flashinfer-python that SGLang pins.",
                reason,
            )
        return {BEGIN: one_plan_at_a_time}
    host_plans = getattr(envs, HOST_PLANS, None)
    if host_plans is not None and host_plans.get():
        logger.warning("ADAPTIVE_EAGLE ignores %s=1: it plans verifies itself.", HOST_PLANS)
        host_plans.set(False)
    return {
        "FlashInferAttnBackend._prepare_cuda_graph_metadata": prepare_wrappers,
        BEGIN: begin_graph,
        "FlashInferIndicesUpdaterPrefill.call_begin_forward": pass_lengths,
        "FlashInferMultiStepDraftBackend.common_template": know_bounds,
    }
