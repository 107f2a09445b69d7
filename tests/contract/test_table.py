"""The table and the code agree: nothing of the host is used unlisted, nothing is listed unused."""

import ast
import contextlib
import gc
import logging
import math
import os
import platform
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from sglang_adaptive_spec.contract.cost_settings import COST_SETTINGS
from sglang_adaptive_spec.contract.flashinfer import PARTS, PLAN
from sglang_adaptive_spec.contract.table import CONTRACT, Kind
from tests.hosts import REPO

PACKAGE = REPO / "sglang_adaptive_spec"
HOST_CODE = sorted((PACKAGE / "host").rglob("*.py"))
# The preset is generated from a constant in the host's source.
READERS = [REPO / "tools" / "write_contract.py"]

# Attributes of objects that are neither the host's nor ours.
FOREIGN = {
    "OutOfMemoryError",  # torch
    # tensors
    "Generator", "Tensor", "arange", "copy_", "flatten", "full_like", "int32", "int64",
    "manual_seed", "ones", "randn", "randperm", "sum", "to",
    "tolist", "type", "uint8", "unsqueeze", "where", "cpu", "fill_", "full", "nbytes", "view",
    "cat", "numel", "zeros", "index_copy_", "pin_memory", "tensor",
    "get_device_module", "get_device_name", "synchronize", "current_stream", "wait_stream",
    "_C", "_disabled_torch_function_impl", "as_subclass", "bool", "cumsum", "diff", "max",
    "repeat_interleave", "stack", "zeros_like", "Event", "record",
    "draft_window_size",  # not in 0.5.20: test_attention.py
    "architectures", "text_config", "num_hidden_layers",  # a Hugging Face config
    # parts of the names of model classes
    "Assistant", "Draft", "Eagle", "ForCausalLM", "ForConditionalGeneration", "MTP", "NextN",
    "labels", "inc",  # prometheus_client
    "structs",  # msgspec
    "page_table", "page_table_draft_decode",  # entries of dicts: test_attention.py
    "spec_num_proposed_drafts", "spec_proposed_drafts",  # entries of dicts: test_counts.py
    "terminate",  # a process
    "__wrapped__",  # functools.wraps
    "hidden_size", "num_key_value_heads",  # a Hugging Face config
    # attention backends, as their flag names them
    "fa3", "triton",
    "cuda",  # a device
    "cutedsl_mla", "flashinfer", "flashmla", "tokenspeed_mla", "trtllm_mla",
    "graph", "features",  # the settings of ExecGraph and ExecFeatures, by their _NS_PATH
}  # fmt: skip
BUILTINS = (int, str, dict, list, tuple, set, type, BaseException)
MODULES = (contextlib, gc, logging, math, os, os.path, platform, time, threading)
CLASSES = (logging.Logger, threading.Thread, threading.Event, NamedTuple("Record", [("x", int)]))
STANDARD = {name for owner in (*BUILTINS, *MODULES, *CLASSES) for name in dir(owner)}
# Used by the host or by pickle on our behalf, not by our code.
IMPLIED = {
    "sglang.srt.arg_groups.fields.exec_.ExecFeatures._NS_PATH",
    "sglang.srt.arg_groups.fields.exec_.ExecGraph._NS_PATH",
    "sglang.srt.server_args.ServerArgs.__reduce__",
}
# Redefined, but not functions.
WORKER = "sglang.srt.speculative.eagle_worker_v2.EAGLEWorkerV2"
PROPERTIES = {f"{WORKER}.last_shared_read_runner", f"{WORKER}.spec_v2_attn_backends"}

LEAVES = {name.rpartition(".")[2] for symbol in CONTRACT for name in symbol.names}
FLASHINFER = {symbol.name.rpartition(".")[2] for symbol in PARTS}
PATHS = {f"{symbol.module}.{name}" for symbol in CONTRACT for name in symbol.names}
DOTTED = re.compile(r"sglang(\.\w+)+")
# Some of these put together what they hook: ATTENTION, module.Class and method.
HOOKING = (
    *(
        "hooks.py",
        "registration.py",
        "build_hooks.py",
        "workspaces.py",
        "shared_index.py",
        "eager_lengths.py",
    ),
    *("extend_graphs.py", "uniform_plans.py", "counts.py", "unchanged.py", "retractions.py"),
    *("ends.py", "exact.py"),
    "cached_prefixes.py",
)
ATTENTION = "sglang.srt.layers.attention"
BACKEND = re.compile(r"\w+_backend\.\w+Backend")
BACKEND_METHOD = re.compile(r"init_\w+")


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _host_names(path: Path) -> Iterator[str]:
    """Yields every dotted host name that a module imports or names in a string."""
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sglang."):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if DOTTED.fullmatch(alias.name))
        elif isinstance(node, ast.Constant) and DOTTED.fullmatch(str(node.value)):
            yield str(node.value)


def _attributes(path: Path) -> Iterator[str]:
    """Yields every attribute that a module touches: written out, or named in a string."""
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Call):
            yield from _named_attributes(node)
        elif isinstance(node, ast.Tuple) and len(node.elts) > 1:
            names = [_identifier(element) for element in node.elts]
            if all(names):
                yield from names


def _named_attributes(call: ast.Call) -> Iterator[str]:
    position = {
        "getattr": 1,
        "setattr": 1,
        "hasattr": 1,
        "delattr": 1,
        "Place": 1,
        "read": 0,
    }
    index = position.get(ast.unparse(call.func))
    if index is not None and len(call.args) > index:
        name = _identifier(call.args[index])
        if name:
            yield name


def _identifier(node: ast.expr) -> str:
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return node.value if is_text and node.value.isidentifier() else ""


def stored_on_self(tree: ast.AST) -> set[str]:
    """Returns every `x` of an assignment to `self.x`."""
    stores = (
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    )
    return {node.attr for node in stores if ast.unparse(node.value) == "self"}


def _own_names() -> set[str]:
    """Names that the package declares: functions, classes, fields and `self.x`."""
    own = set()
    for path in PACKAGE.rglob("*.py"):
        tree = _tree(path)
        own |= stored_on_self(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                own.add(node.name)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                own.add(node.target.id)
    return own


def test_entries_are_unique() -> None:
    assert len(PATHS) == sum(len(symbol.names) for symbol in CONTRACT)


def test_every_entry_says_what_it_is_for_and_functions_have_signatures() -> None:
    for symbol in CONTRACT:
        assert symbol.why
        is_function = symbol.kind in (Kind.HOOK, Kind.OVERRIDE, Kind.CALL)
        is_function &= symbol.path not in PROPERTIES
        assert bool(symbol.signatures) == is_function, symbol.path


def test_every_host_name_in_the_code_stands_in_the_table() -> None:
    modules = {symbol.module for symbol in CONTRACT}
    for path in HOST_CODE:
        for name in _host_names(path):
            listed = name in PATHS or any(entry.startswith(f"{name}.") for entry in PATHS)
            assert listed or name in modules, f"{path.name} uses {name}"


def _hook_targets(path: Path) -> Iterator[str]:
    nodes = ast.walk(_tree(path))
    texts = {str(node.value) for node in nodes if isinstance(node, ast.Constant)} - {ATTENTION}
    yield from filter(DOTTED.fullmatch, texts)
    for backend in filter(BACKEND.fullmatch, texts):
        for method in filter(BACKEND_METHOD.fullmatch, texts):
            yield f"{ATTENTION}.{backend}.{method}"


def test_every_hook_target_is_a_hook_of_the_table_and_vice_versa() -> None:
    hooking = [path for path in HOST_CODE if path.name in HOOKING]
    targets = {target for path in hooking for target in _hook_targets(path)}
    hooks = [symbol for symbol in CONTRACT if symbol.kind is Kind.HOOK]
    assert targets == {f"{symbol.module}.{name}" for symbol in hooks for name in symbol.names}


def test_every_module_that_hooks_is_looked_at() -> None:
    for path in HOST_CODE:
        calls = (node.func for node in ast.walk(_tree(path)) if isinstance(node, ast.Call))
        hooks = {"hook_now", "HookRegistry.register"} & set(map(ast.unparse, calls))
        assert not hooks or path.name in HOOKING, path.name


def test_every_attribute_that_host_code_touches_is_listed_ours_or_foreign() -> None:
    known = LEAVES | FLASHINFER | FOREIGN | STANDARD | _own_names()
    for path in HOST_CODE:
        unknown = set(_attributes(path)) - known
        assert not unknown, f"{path.name} touches {sorted(unknown)}"


def test_nothing_listed_is_unused() -> None:
    used = set(COST_SETTINGS)  # read by name
    for path in HOST_CODE + READERS:
        for node in ast.walk(_tree(path)):
            for name in ("attr", "id", "name", "arg", "value"):
                if isinstance(text := getattr(node, name, None), str):
                    used.add(text)
    unused = {
        f"{symbol.module}.{name}"
        for symbol in CONTRACT
        for name in symbol.names
        if f"{symbol.module}.{name}" not in used and name.rpartition(".")[2] not in used
    }
    assert unused <= IMPLIED


def test_every_part_of_flashinfer_that_is_listed_is_used() -> None:
    used = {name for path in HOST_CODE for name in _attributes(path)}
    assert FLASHINFER - {PLAN.name} <= used  # of the plan, the place of an argument


def test_the_checkers_need_no_host() -> None:
    checkers = list((PACKAGE / "contract").glob("*.py"))
    assert len(checkers) > 5
    for path in checkers:
        source = path.read_text()
        assert not re.search(r"^\s*(from|import) (sglang|torch)\b", source, re.MULTILINE)
