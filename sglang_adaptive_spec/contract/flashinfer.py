"""What of FlashInfer's private parts the plugin touches, and whether a version still has it.

The host's wrappers of FlashInfer plan; uniform_plans.py plans in their place, with one argument
changed by its position, and workspaces.py lets them share buffers. None of that is FlashInfer's
public interface. A version with a difference, or outside the window, is served with the host's own
plans: they are slower, and right. Read from the source, like the host's contract; the compiled part
from the C++ that the package ships and compiles.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sglang_adaptive_spec.contract.check import MISSING, Mismatch, check
from sglang_adaptive_spec.contract.symbols import Kind, Row, Symbol, of
from sglang_adaptive_spec.contract.versions import (
    FLASHINFER,
    FLASHINFER_SUPPORTED,
    FLASHINFER_TESTED,
    HostInfo,
    installed_flashinfer,
    is_supported,
)

HOOK, OVERRIDE, CALL, READ, WRITE = Kind

_PLAN_BUFFERS: tuple[Row, ...] = (
    (WRITE, "_int_workspace_buffer", "let graphs share the buffer of plans on the device"),
    (WRITE, "_pin_memory_int_workspace_buffer", "let graphs share the buffer of plans on the CPU"),
    (WRITE, "_cached_module", "let a plan wait for the copy of the one before"),
)

WRAPPERS: tuple[Symbol, ...] = (
    *of("flashinfer.decode:BatchDecodeWithPagedKVCacheWrapper", *_PLAN_BUFFERS),
    *of(
        "flashinfer.prefill:BatchPrefillWithPagedKVCacheWrapper",
        *_PLAN_BUFFERS,
        (WRITE, "begin_forward", "plan a verify without a look at the device"),
        (
            CALL,
            "plan",
            "plan a verify once before its capture",
            "self, qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, "
            "num_qo_heads, num_kv_heads, head_dim_qk, page_size, *, custom_mask, causal",
        ),
        (READ, "_custom_mask_buf", "put the mask of a tree there, packed"),
        (READ, "_mask_indptr_buf", "say where the mask of each request begins"),
    ),
    *of(
        "flashinfer.quantization.packbits",
        (CALL, "get_quantization_module", "pack the mask of a tree into what its graph reads", ""),
    ),
)


@dataclass(frozen=True, slots=True)
class Compiled:
    """A function in C++, which takes its arguments by position."""

    file: str  # within the package
    name: str
    parameters: tuple[str, ...]  # all of them
    why: str


# Tokens of a request, where all have equally many: what a plan takes last.
WIDTH = "uniform_q_len"
PLAN = Compiled(
    "data/csrc/batch_prefill.cu",
    "BatchPrefillWithKVCachePlan",
    (
        *("float_workspace_buffer", "int_workspace_buffer", "page_locked_int_workspace_buffer"),
        *("qo_indptr", "kv_indptr", "kv_len_arr", "total_num_rows", "batch_size"),
        *("num_qo_heads", "num_kv_heads", "page_size", "enable_cuda_graph"),
        *("head_dim_qk", "head_dim_vo", "causal", "window_left"),
        *("fixed_split_size", "disable_split_kv", "num_colocated_ctas", WIDTH),
    ),
    "plan with tiles that fit the tokens of a request",
)
COMPILED = (
    PLAN,
    Compiled(
        "data/csrc/quantization.cu",
        "segment_packbits",
        ("x", "input_indptr", "output_indptr", "bitorder", "y"),
        "pack the mask of a tree into what its graph reads",
    ),
)


def flashinfer_differences(root: Path) -> list[Mismatch]:
    """Returns every difference between the rows and the FlashInfer unpacked under a folder."""
    return [*check(root, WRAPPERS, FLASHINFER), *_compiled_differences(root / FLASHINFER, COMPILED)]


def host_plans_reason(flashinfer: HostInfo | None = None) -> str | None:
    """Returns why the host's own plans serve with a FlashInfer, by default the installed one.

    None where ours do, or where there is no FlashInfer.
    """
    flashinfer = flashinfer or installed_flashinfer()
    if flashinfer is None:
        return None
    version = flashinfer.version
    known = f"Known: flashinfer{FLASHINFER_SUPPORTED} ({', '.join(FLASHINFER_TESTED)})"
    differences = flashinfer_differences(flashinfer.root)
    if differences:
        found = "; ".join(map(str, differences))
        return f"flashinfer {version} differs in {found}. {known}"
    if not is_supported(version, FLASHINFER_SUPPORTED):
        return f"flashinfer {version} is not tested. {known}"
    return None


def _compiled_differences(package: Path, functions: Iterable[Compiled]) -> list[Mismatch]:
    differences = []
    for function in functions:
        found = compiled_parameters(package / function.file, function.name)
        if found != function.parameters:
            expected = f"({', '.join(function.parameters)})"
            shown = MISSING if found is None else f"({', '.join(found)})"
            symbol = f"{FLASHINFER}/{function.file}:{function.name}"
            differences.append(Mismatch(symbol, expected, shown, function.why))
    return differences


def compiled_parameters(path: Path, name: str) -> tuple[str, ...] | None:
    """Returns the names of the parameters of a function defined in C++, None where it is not.

    No type in them has a comma or a bracket.
    """
    text = path.read_text() if path.is_file() else ""
    definition = re.search(rf"\b{name}\s*\(([^()]*)\)\s*{{", text)
    if definition is None:
        return None
    declared = (each.partition("=")[0].split() for each in definition[1].split(","))
    return tuple(words[-1].lstrip("&*") for words in declared if words)
