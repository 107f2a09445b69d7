"""The part of `sgl_kernel` that SGLang's CPU branches call when they speculate, in plain torch.

Signatures are those of the compiled CPU build, as sglang 0.5.20 to 0.5.23 call it. The oracle of
each function is the Triton kernel beside its call site; tests/cpu_host checks it independently.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import NoReturn

import torch

from .attention import decode_attention_cpu, extend_attention_cpu
from .recurrent import (
    causal_conv1d_fn_cpu,
    causal_conv1d_update_cpu,
    chunk_gated_delta_rule_cpu,
    fused_gdn_gating_cpu,
    fused_sigmoid_gating_delta_rule_update_cpu,
)
from .slots import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    build_draft_decode_metadata_cpu,
    copy_all_layer_kv_cache_cpu,
    fill_accept_out_cache_loc_cpu,
    fill_bonus_tokens_cpu,
    rotate_input_ids_cpu,
)
from .tree import (
    build_tree_kernel_efficient_cpu,
    reconstruct_indices_from_tree_mask,
    verify_tree_greedy_cpu,
)


def merge_state_v2(*args: object, **kwargs: object) -> NoReturn:
    """Exists for `from sgl_kernel import merge_state_v2`; the host calls it on CUDA only."""
    raise NotImplementedError("sglang-cpu-host has no merge_state_v2: it is a CUDA operator.")


FUNCTIONS = (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    build_draft_decode_metadata_cpu,
    build_tree_kernel_efficient_cpu,
    copy_all_layer_kv_cache_cpu,
    fill_accept_out_cache_loc_cpu,
    fill_bonus_tokens_cpu,
    merge_state_v2,
    rotate_input_ids_cpu,
    verify_tree_greedy_cpu,
)
# `sgl_kernel.mamba`
RECURRENT = (causal_conv1d_fn_cpu, causal_conv1d_update_cpu, chunk_gated_delta_rule_cpu)
# `sgl_kernel.speculative`
NGRAM = (reconstruct_indices_from_tree_mask,)
# Plain attributes, not registered operators: the host only looks them up and calls them.
OPERATORS = (
    decode_attention_cpu,
    extend_attention_cpu,
    fused_gdn_gating_cpu,
    fused_sigmoid_gating_delta_rule_update_cpu,
)
# Looked up when models/qwen3_5.py and its relatives are imported, as the image processor of all
# Qwen models does. Those models themselves cannot be served.
NAMES_ONLY = (
    "fused_qk_gemma_rmsnorm_cpu",
    "fused_qk_gemma_rmsnorm_with_gate_cpu",
    "fused_qkvzba_split_reshape_cat_contiguous_cpu",
    "fused_sigmoid_mul_cpu",
)


SUBMODULES = ("mamba", "speculative")


def fill(module: ModuleType) -> None:
    """Turns an empty module into `sgl_kernel` with its submodules `mamba` and `speculative`.

    Raises:
        ImportError: the machine has a GPU, so the missing package must be installed instead.
    """
    if torch.cuda.is_available():
        raise ImportError(
            "sgl_kernel is not installed, and sglang-cpu-host does not stand in for it on a "
            "machine with a GPU: install sglang-kernel.",
            name=module.__name__,
        )
    mamba, speculative = (ModuleType(f"{module.__name__}.{name}") for name in SUBMODULES)
    sys.modules |= {each.__name__: each for each in (mamba, speculative)}
    for owner, functions in (
        (module, FUNCTIONS),
        (mamba, RECURRENT),
        (speculative, NGRAM),
        (torch.ops.sgl_kernel, OPERATORS),
    ):
        for function in functions:
            setattr(owner, function.__name__, function)
    for name in NAMES_ONLY:
        setattr(torch.ops.sgl_kernel, name, refusing(name))


def refusing(name: str) -> Callable[..., NoReturn]:
    """Returns a function that says that ``name`` does not exist."""

    def refuse(*args: object, **kwargs: object) -> NoReturn:
        raise NotImplementedError(f"sglang-cpu-host has no {name}.")

    return refuse
