"""The code uses the listed symbols as the table says: overrides forward, calls fit."""

import ast
from collections.abc import Iterator

import pytest

from sglang_adaptive_spec.contract.source import HostSource
from sglang_adaptive_spec.contract.table import CONTRACT, Kind, Symbol
from sglang_adaptive_spec.contract.versions import TESTED
from tests.contract.code import HOST_CODE, declared, imports_of, package_classes, parsed
from tests.hosts import host_source

BY_PATH = {symbol.path: symbol for symbol in CONTRACT}
CALLED = [
    symbol
    for symbol in CONTRACT
    if symbol.kind is Kind.CALL and "__" not in symbol.name
    if symbol.name != "EnvField.get"  # a call of a dict's looks the same
]


# Behind what our worker shares stands each of the host's; a whole model's classes differ from
# EAGLE's in their start alone, which a test below says.
OF_OTHERS = ("BaseSpecWorker", "StandaloneWorkerV2", "StandaloneDraftWorker")


def _subclasses() -> Iterator[tuple[str, str, ast.ClassDef]]:
    """Yields (module, host class, our subclass)."""
    for path in HOST_CODE:
        imports = imports_of(parsed(path))
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef):
                for each in node.bases:
                    module, _, base = imports.get(ast.unparse(each), "").rpartition(".")
                    if module.startswith("sglang.") and base not in OF_OTHERS:
                        yield module, base, _with_shared(node)


def _with_shared(node: ast.ClassDef) -> ast.ClassDef:
    """Returns a class with the bodies of those of ours that stand before the host's."""
    names = {ast.unparse(base) for base in node.bases}
    shared = [member for each in package_classes() if each.name in names for member in each.body]
    own = {member.name for member in node.body if isinstance(member, ast.FunctionDef)}
    more = [member for member in shared if getattr(member, "name", None) not in own]
    return ast.ClassDef(node.name, node.bases, [], [*node.body, *more], [])


SUBCLASSED = [(f"{module}.{base}", node) for module, base, node in _subclasses()]


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def _methods(node: ast.ClassDef) -> dict[str, ast.FunctionDef]:
    return {member.name: member for member in node.body if isinstance(member, ast.FunctionDef)}


@pytest.mark.parametrize("version", TESTED)
def test_nothing_of_ours_shadows_a_name_of_the_host(version: str) -> None:
    """A method or attribute the host declares too would be an override nobody listed."""
    host = HostSource(host_source(version))
    for module, base, node in _subclasses():
        own = {name for name in declared(node) if f"{module}.{base}.{name}" not in BY_PATH}
        assert [name for name in own if host.find(module, f"{base}.{name}")] == []


def test_listed_overrides_of_subclassed_hosts_are_overridden() -> None:
    ours = {f"{base}.{name}" for base, node in SUBCLASSED for name in _methods(node)}
    listed = {
        path
        for path, symbol in BY_PATH.items()
        if symbol.kind is Kind.OVERRIDE and path.rpartition(".")[0] in dict(SUBCLASSED)
    }
    assert len(listed) > len(SUBCLASSED) == 6
    assert listed <= ours


def test_overrides_take_and_forward_whatever_the_host_adds() -> None:
    pairs = [(*item, name) for item in SUBCLASSED for name in _methods(item[1])]
    for base, node, name in pairs:
        symbol, method = BY_PATH.get(f"{base}.{name}"), _methods(node)[name]
        if symbol is None:
            continue
        if not symbol.signatures:
            assert [ast.unparse(decorator) for decorator in method.decorator_list] == ["property"]
            assert f"super().{name}" in ast.unparse(method), name
            continue
        assert method.args.vararg, name
        assert method.args.kwarg, name
        ours = [argument.arg for argument in method.args.args]
        for signature in symbol.signatures:
            assert signature.split(", ")[: len(ours)] == ours, name
        forwarding = [method for method in _methods(node).values() if method.args.vararg]
        calls = [
            ast.unparse(call)
            for method in forwarding
            for call in _calls(method)
            if ast.unparse(call.func) == f"super().{name}"
        ]
        assert calls, f"{name} does not call the host's"
        assert all("*args" in call for call in calls), name


# Ours come before these classes in the order of methods, and call what EAGLE's do in a round.
OF_A_START = {
    *("__init__", "alloc_memory_pool", "init_attention_backends", "init_cuda_graphs"),
    *("init_lm_head", "_validate_vocab_compatibility"),
}


@pytest.mark.parametrize("version", TESTED)
def test_the_hosts_standalone_workers_differ_from_eagles_in_their_start_alone(version: str) -> None:
    source = host_source(version) / "sglang/srt/speculative/standalone_worker_v2.py"
    tree = ast.parse(source.read_text())
    workers = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    for name in ("StandaloneDraftWorker", "StandaloneWorkerV2"):
        assert _methods(workers[name]).keys() <= OF_A_START


def test_the_stand_in_takes_what_the_host_passes_to_its_controller() -> None:
    (builder,) = (node for node in package_classes() if node.name == "TierBuilder")
    controller = "sglang.srt.speculative.adaptive_runtime_state.AdaptiveController"
    for version in TESTED:
        source = (host_source(version) / "sglang/srt/speculative/eagle_worker_v2.py").read_text()
        for name, method in _methods(builder).items():
            if f"adaptive_controller.{name}(" not in source:
                continue
            assert BY_PATH[f"{controller}.{name}"].kind is Kind.OVERRIDE
            (call,) = [
                call
                for call in _calls(ast.parse(source))
                if ast.unparse(call.func) == f"self.adaptive_controller.{name}"
            ]
            accepted = [argument.arg for argument in method.args.args[1:]]
            assert len(call.args) <= len(accepted)
            assert {keyword.arg for keyword in call.keywords} <= set(accepted[len(call.args) :])


CALLS = [
    (call, ast.unparse(call.func), imports_of(parsed(path)))
    for path in HOST_CODE
    for call in _calls(parsed(path))
]


@pytest.mark.parametrize("symbol", CALLED, ids=lambda symbol: symbol.name)
def test_calls_pass_what_the_table_says(symbol: Symbol) -> None:
    calls = [call for call, text, imports in CALLS if _is_call_of(symbol, text, imports)]
    assert calls
    bound = ("self", "cls") if "." in symbol.name else ()
    keywords, nums_positional = set(), set()
    for signature in symbol.signatures:  # several: releases differ
        arguments = ast.parse(f"def f({signature}): 0").body[0].args  # type: ignore[attr-defined]
        nums_positional.add(sum(argument.arg not in bound for argument in arguments.args))
        keywords |= {argument.arg for argument in arguments.kwonlyargs}
    assert {len(call.args) for call in calls} <= nums_positional
    passed = {keyword.arg for call in calls for keyword in call.keywords}
    assert passed - {None} == keywords  # None: what the host passed, passed on


def _is_call_of(symbol: Symbol, text: str, imports: dict[str, str]) -> bool:
    """Says whether a call is of a function or class method by its path, or has a method's name."""
    owner, _, leaf = symbol.name.rpartition(".")
    if owner and not symbol.signatures[0].startswith("cls"):
        # An override passes on what it gets.
        return text.endswith(f".{leaf}") and not text.startswith("super()")
    imported, _, called = text.partition(".")
    return imports.get(imported, "") + f".{called}".rstrip(".") == symbol.path


@pytest.mark.parametrize("version", TESTED)
def test_flashinfer_takes_its_workspace_where_ours_is_put(version: str) -> None:
    backend = host_source(version) / "sglang/srt/layers/attention/flashinfer_backend.py"
    asked = [
        call.args[0].value
        for call in _calls(ast.parse(backend.read_text()))
        if ast.unparse(call.func) == "get_buffer" and isinstance(call.args[0], ast.Constant)
    ]
    (ours,) = {
        ast.literal_eval(node.value)
        for path in HOST_CODE
        for node in parsed(path).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "WORKSPACE"
    }
    assert asked == [ours]


@pytest.mark.parametrize("version", TESTED)
def test_memory_pools_are_there_before_any_attention_backend(version: str) -> None:
    scheduler = ast.parse((host_source(version) / "sglang/srt/managers/scheduler.py").read_text())
    init = next(
        node
        for node in ast.walk(scheduler)
        if isinstance(node, ast.FunctionDef) and node.name == "init_model_worker"
    )
    steps = ["self.init_memory_pools", "self.init_all_attention_backends"]
    called = [ast.unparse(call.func) for call in _calls(init)]
    assert [name for name in called if name in steps] == steps
