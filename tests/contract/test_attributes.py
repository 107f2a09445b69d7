"""Nothing of the host's objects is touched unlisted: by its path where the class is known.

Of most objects in host/ the class is not known. An attribute of these must be called like one of
the table, or like something of ours, of a tensor or of a Python type. Where a class of the table
has an unlisted one of that name, too, the name needs a reason here.
"""

import ast
import logging
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from sglang_adaptive_spec.contract.flashinfer import PARTS
from sglang_adaptive_spec.contract.source import HostSource
from sglang_adaptive_spec.contract.table import CONTRACT
from sglang_adaptive_spec.contract.versions import HOST, TESTED
from tests.contract.code import HOST_CODE, declared, imports_of, package_classes, parsed
from tests.hosts import host_source

PATHS = {f"{symbol.module}.{name}" for symbol in CONTRACT for name in symbol.names}
LEAVES = {name.rpartition(".")[2] for symbol in (*CONTRACT, *PARTS) for name in symbol.names}
CLASSES = {f"{s.module}:{s.name.partition('.')[0]}" for s in CONTRACT if "." in s.name}
CLASS_PATHS = {each.replace(":", ".") for each in CLASSES}
PLACES = CLASSES.union(*(symbol.declared_in for symbol in CONTRACT))
OTHERS = (
    *(int, str, dict, list, tuple, set, type, BaseException, logging.Logger),
    *(torch.Tensor, torch.Stream, torch.Event, torch.device, NamedTuple("Record", [("x", int)])),
)
OF_OTHERS = {name for owner in OTHERS for name in dir(owner)}
# Names that the rules here cannot place, by whose they are.
PLACED_BY_HAND = {
    "ours, where a class of the host has such a one": "candidate_steps draft_extend "
    "cap max_batch_size mode num_correct_drafts num_draft_tokens policy prefix_lens ranks release "
    "size take to_dict verify_lens",
    "a config's of Hugging Face": "architectures hidden_size num_hidden_layers "
    "num_key_value_heads text_config",
    "a tokenizer's of Hugging Face, and what the host adds": "eos_token_id "
    "additional_stop_token_ids",
    "a deque's": "popleft",
    "a socket's of ZeroMQ": "getsockopt",
    "settings of get_exec(), by their _NS_PATH": "features graph",
    "the host's, but not in 0.5.20 (test_attention.py)": "draft_window_size",
    "the host's, but not in 0.5.20, and harmless there": "can_run_dp_draft_cuda_graph",
    "the host's, but only in 0.5.23 (layout.py)": "parallel_layout",
    "the host's, but only from 0.5.22 on": "watermark_state speculative_use_block_verification",
    "of any SpecInput, where a dataclass of the host has such a field": "ragged_verify_layout",
    "variables of the environment, some not in 0.5.20": "SGLANG_SCHEDULER_SKIP_ALL_GATHER "
    "SGLANG_ENABLE_DP_SPEC_PREFILL_COORDINATION",
    "a dict's, where a class of the host has such a one": "clear update",
    "an enum's": "name",
    "a process's": "terminate",
    "a counter's of prometheus_client": "inc",
    "a folder": "cache",
    "a module's of torch": "register_forward_hook",
    "an array's": "astype",
}
BY_HAND = frozenset(name for names in PLACED_BY_HAND.values() for name in names.split())

# Where the name of an attribute stands in a call.
NAMED = {"getattr": 1, "setattr": 1, "hasattr": 1, "delattr": 1, "Place": 1, "read": 0}
UNKNOWN, OURS = "", "ours"


def unlisted(tree: ast.Module, placed: frozenset[str] = BY_HAND) -> set[str]:
    """Returns every attribute that a module touches and that nobody can place."""
    by_path, by_name = set(), set()
    owners = dict(_owners(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner = owners.get(node, UNKNOWN)
            if owner in CLASS_PATHS:
                by_path.add(f"{owner}.{node.attr}")
            elif owner == UNKNOWN:
                by_name.add(node.attr)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in NAMED:
            place = NAMED[ast.unparse(node.func)]
            by_name |= set(_identifiers(node.args[place : place + 1]))
        elif isinstance(node, ast.Tuple):
            by_name |= set(filter(is_hosts, _identifiers(node.elts)))
    names = by_name - LEAVES - placed
    others = _own_names() | OF_OTHERS
    return (by_path - PATHS) | {name for name in names if name not in others or is_hosts(name)}


def _owners(tree: ast.Module) -> Iterator[tuple[ast.Attribute, str]]:
    """Yields what is known of whose attributes are; what is yielded later is known better."""
    imports = imports_of(tree)
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    yield from ((node, _imported(node.value, imports)) for node in attributes)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            own, base = declared(node), _class(node.bases[0], imports) if node.bases else UNKNOWN
            for inner in _attributes_of(node, "self"):
                yield inner, OURS if inner.attr in own else base.replace(OURS, UNKNOWN)
            yield from ((inner, base) for inner in _attributes_of(node, "super()"))
        elif isinstance(node, ast.FunctionDef):
            for argument in (*node.args.args, *node.args.kwonlyargs):
                owner = _class(argument.annotation, imports) if argument.annotation else UNKNOWN
                if owner != UNKNOWN:
                    yield from ((inner, owner) for inner in _attributes_of(node, argument.arg))


def _attributes_of(node: ast.AST, owner: str) -> Iterator[ast.Attribute]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute) and ast.unparse(inner.value) == owner:
            yield inner


def _class(node: ast.expr, imports: dict[str, str]) -> str:
    """Returns the path of a class of the host, or OURS; a protocol may be any object's."""
    name = ast.unparse(node).removesuffix(" | None")
    path = imports.get(name, name)
    is_known = path.startswith("torch.") or name in {each.name for each in package_classes()}
    return path if path in CLASS_PATHS else OURS if is_known else UNKNOWN


def _imported(node: ast.expr, imports: dict[str, str]) -> str:
    """Returns whose that is which stands for an import, or which is made of one of torch's."""
    is_import = isinstance(node, ast.Name)
    while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    path = imports.get(node.id, UNKNOWN) if isinstance(node, ast.Name) else UNKNOWN
    package = path.partition(".")[0]
    if package in ("torch", "os"):
        return OURS
    if not is_import or package == HOST:
        return path if is_import and path in CLASS_PATHS else UNKNOWN
    return OURS if path else UNKNOWN


def _identifiers(nodes: list[ast.expr]) -> Iterator[str]:
    for node in nodes:
        text = node.value if isinstance(node, ast.Constant) else None
        if isinstance(text, str) and text.isidentifier():
            yield text


@cache
def _own_names() -> set[str]:
    return set().union(*map(declared, package_classes()))


@cache
def is_hosts(name: str) -> bool:
    """Says whether a class of the table has a member of that name in the newest release."""
    owners = (each.partition(":") for each in PLACES)
    return any(_newest().find(module, f"{owner}.{name}") for module, _, owner in owners)


@cache
def _newest() -> HostSource:
    return HostSource(host_source(TESTED[-1]))


@pytest.mark.parametrize("path", HOST_CODE, ids=lambda path: path.stem)
def test_every_attribute_that_host_code_touches_is_placed(path: Path) -> None:
    assert unlisted(parsed(path)) == set()


def test_no_name_is_placed_by_hand_without_need() -> None:
    assert set().union(*(unlisted(parsed(path), frozenset()) for path in HOST_CODE)) == BY_HAND


PLANTED = """
import torch
from typing import Any, Protocol
from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
from sglang.srt.speculative.eagle_worker_v2 import EAGLEWorkerV2
from sglang_adaptive_spec.tiers import Tier

FIELDS = ("input_ids", "tree_cache", "fa3")

class Runner(Protocol):
    sliding_window: int

class Worker(EAGLEWorkerV2):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.own, self.foreign = self.device, self.page_size

    def steps(self, runner: Runner, batch: ScheduleBatch, tier: Tier, other: Any) -> None:
        self.own.listed = self.foreign.model_runner
        tier.num_steps, batch.extend_lens, batch.spec_info.copy_(runner.sliding_window)
        Req.kv, Req.fill_ids, torch.cuda.Stream().priority
        getattr(other, "last_batch").tolist()
        super().draft_forward()
"""


def test_what_is_planted_is_found_by_path_or_name() -> None:
    assert unlisted(ast.parse(PLANTED)) == {
        "sglang.srt.speculative.eagle_worker_v2.EAGLEWorkerV2.page_size",
        "sglang.srt.speculative.eagle_worker_v2.EAGLEWorkerV2.draft_forward",
        "sglang.srt.managers.schedule_batch.ScheduleBatch.extend_lens",
        "sglang.srt.managers.schedule_batch.Req.fill_ids",
        *("listed", "sliding_window", "tree_cache", "last_batch"),
    }
