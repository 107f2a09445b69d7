"""The code uses the listed symbols as the table says: overrides forward, calls fit."""

import ast
from collections.abc import Iterator

import pytest

from sglang_adaptive_spec.contract.source import HostSource
from sglang_adaptive_spec.contract.table import CONTRACT, Kind, Symbol
from sglang_adaptive_spec.contract.versions import TESTED
from sglang_adaptive_spec.host.launch.options import ATTRIBUTE
from tests.contract.code import stored_on_self
from tests.hosts import REPO, host_source

HOST = REPO / "sglang_adaptive_spec" / "host"
WORKER = ast.parse((HOST / "serving" / "worker.py").read_text())
WORKSPACES = ast.parse((HOST / "attention" / "workspaces.py").read_text())
BUILD_HOOKS = ast.parse((HOST / "startup" / "build_hooks.py").read_text())
PLAIN_ROUND = ast.parse((HOST / "serving" / "plain_round.py").read_text())
EAGLE = "sglang.srt.speculative.eagle_worker_v2"
EXTEND_GRAPHS = ast.parse((HOST / "attention" / "extend_graphs.py").read_text())
GRAPHS = "sglang.srt.model_executor.runner.decode_cuda_graph_runner"
EXTENDS = "sglang.srt.speculative.eagle_draft_extend_cuda_graph_runner"
# host class: its module
SUBCLASSED = {
    "EAGLEWorkerV2": EAGLE,
    "EagleDraftWorker": EAGLE,
    "DecodeCudaGraphRunner": GRAPHS,
    "EAGLEDraftExtendCudaGraphRunner": EXTENDS,
}
RUNNER = ("sglang.srt.model_executor.model_runner", "ModelRunner")
BY_PATH = {symbol.path: symbol for symbol in CONTRACT}


def _subclasses() -> Iterator[tuple[str, ast.ClassDef]]:
    """Yields (host class, our subclass)."""
    for node in WORKER.body + PLAIN_ROUND.body + EXTEND_GRAPHS.body:
        if isinstance(node, ast.ClassDef) and node.bases:
            yield ast.unparse(node.bases[0]), node


def _methods(node: ast.ClassDef) -> dict[str, ast.FunctionDef]:
    return {member.name: member for member in node.body if isinstance(member, ast.FunctionDef)}


def _path(base: str, name: str) -> str:
    return f"{SUBCLASSED[base]}.{base}.{name}"


def _own_attributes(node: ast.ClassDef) -> set[str]:
    """What our subclass adds: methods, class fields and `self.x` that the table does not list."""
    base = ast.unparse(node.bases[0])
    names = set(_methods(node))
    for inner in ast.walk(node):
        if isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name):
            names.add(inner.target.id)
    names |= stored_on_self(node)
    return {name for name in names if _path(base, name) not in BY_PATH}


def test_the_subclassed_host_classes_are_known() -> None:
    assert {base for base, _node in _subclasses()} == SUBCLASSED.keys()


@pytest.mark.parametrize("version", TESTED)
def test_nothing_of_ours_shadows_a_name_of_the_host(version: str) -> None:
    """A method or attribute the host declares too would be an override nobody listed."""
    host = HostSource(host_source(version))
    for base, node in _subclasses():
        own = _own_attributes(node)
        assert [name for name in own if host.find(SUBCLASSED[base], f"{base}.{name}")] == []
    marks = {
        ("sglang.srt.server_args", "ServerArgs"): ATTRIBUTE,
        RUNNER: _constant("CAPTURES_ATTRIBUTE", BUILD_HOOKS),
    }
    for (module, owner), mark in marks.items():
        assert host.find(module, f"{owner}.{mark}") is None


def test_listed_overrides_of_subclassed_hosts_are_overridden() -> None:
    ours = {_path(base, name) for base, node in _subclasses() for name in _methods(node)}
    listed = {
        path
        for path, symbol in BY_PATH.items()
        if symbol.kind is Kind.OVERRIDE and symbol.module in SUBCLASSED.values()
    }
    assert len(listed) > len(SUBCLASSED)
    assert listed <= ours


def test_overrides_take_and_forward_whatever_the_host_adds() -> None:
    for base, node in _subclasses():
        for name, method in _methods(node).items():
            symbol = BY_PATH.get(_path(base, name))
            if symbol is None:
                continue
            if _is_property(method):
                assert not symbol.signatures
                assert f"super().{name}" in ast.unparse(method), name
                continue
            assert symbol.signatures, name
            assert method.args.vararg, name
            assert method.args.kwarg, name
            ours = [argument.arg for argument in method.args.args]
            for signature in symbol.signatures:
                assert signature.split(", ")[: len(ours)] == ours, name
            forwarding = [method for method in _methods(node).values() if method.args.vararg]
            calls = [
                call
                for method in forwarding
                for call in _calls(method)
                if ast.unparse(call.func) == f"super().{name}"
            ]
            assert calls, f"{name} does not call the host's"
            assert all("*args" in ast.unparse(call) for call in calls), name


def test_the_stand_in_takes_what_the_host_passes_to_its_controller() -> None:
    startup = ast.parse((HOST / "startup" / "tier_builder.py").read_text())
    (builder,) = [node for node in startup.body if getattr(node, "name", "") == "TierBuilder"]
    assert isinstance(builder, ast.ClassDef)
    for version in TESTED:
        source = (host_source(version) / "sglang/srt/speculative/eagle_worker_v2.py").read_text()
        for name, method in _methods(builder).items():
            if f"adaptive_controller.{name}(" not in source:
                continue
            symbol = BY_PATH[
                f"sglang.srt.speculative.adaptive_runtime_state.AdaptiveController.{name}"
            ]
            assert symbol.kind is Kind.OVERRIDE
            (call,) = [
                call
                for call in _calls(ast.parse(source))
                if ast.unparse(call.func) == f"self.adaptive_controller.{name}"
            ]
            accepted = [argument.arg for argument in method.args.args[1:]]
            assert len(call.args) <= len(accepted)
            assert {keyword.arg for keyword in call.keywords} <= set(accepted[len(call.args) :])


@pytest.mark.parametrize(
    "symbol",
    [
        symbol
        for symbol in CONTRACT
        if symbol.kind is Kind.CALL and "__" not in symbol.name
        if symbol.name != "EnvField.get"  # a call of a dict's looks the same
    ],
    ids=lambda symbol: symbol.name,
)
def test_calls_pass_what_the_table_says(symbol: Symbol) -> None:
    trees = [ast.parse(path.read_text()) for path in HOST.rglob("*.py")]
    calls = [call for tree in trees for call in _calls(tree) if _is_call_of(symbol, call)]
    assert calls
    (signature,) = symbol.signatures
    arguments = ast.parse(f"def f({signature}): 0").body[0].args  # type: ignore[attr-defined]
    bound = ("self", "cls") if "." in symbol.name else ()
    positional = [argument.arg for argument in arguments.args if argument.arg not in bound]
    keywords = {argument.arg for argument in arguments.kwonlyargs}
    for call in calls:
        assert len(call.args) == len(positional)
    passed = {keyword.arg for call in calls for keyword in call.keywords}
    assert passed - {None} == keywords  # None: what the host passed, passed on


def _is_property(method: ast.FunctionDef) -> bool:
    return [ast.unparse(decorator) for decorator in method.decorator_list] == ["property"]


def _is_call_of(symbol: Symbol, call: ast.Call) -> bool:
    owner, _, leaf = symbol.name.rpartition(".")
    text = ast.unparse(call.func)
    if text.startswith("super()"):  # of an override, which passes on what it gets
        return False
    if not owner:
        return text == leaf
    if (symbol.signatures[0]).startswith("cls"):
        return text == symbol.name
    return text.endswith(f".{leaf}")


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


@pytest.mark.parametrize("version", TESTED)
def test_flashinfer_takes_its_workspace_where_ours_is_put(version: str) -> None:
    backend = host_source(version) / "sglang/srt/layers/attention/flashinfer_backend.py"
    asked = [
        call.args[0].value
        for call in _calls(ast.parse(backend.read_text()))
        if ast.unparse(call.func) == "get_buffer" and isinstance(call.args[0], ast.Constant)
    ]
    assert asked == [_constant("WORKSPACE", WORKSPACES)]


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


def _constant(name: str, module: ast.Module = WORKER) -> str:
    for node in module.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return str(ast.literal_eval(node.value))
    raise AssertionError(f"there is no {name}")
