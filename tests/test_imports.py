"""The house has floors: imports go down and never in a circle, wherever they stand."""

import ast
import graphlib
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NAME = "sglang_adaptive_spec"
DOTTED = re.compile(rf"{NAME}(\.\w+)+")
# From the ground up; a room of several modules stands for all of them.
FLOORS = (
    "",  # the version
    "size_classes",
    "tiers",
    "ladder",
    "config",
    "contract",
    "trace",
    "policy.decision",
    "policy.protocol",
    "policy.settings",
    "policy.acceptance",
    "policy.costs",
    "policy",
    "loop",
    "runtime",
    "host.events",
    "host.hooks",
    "host.server_args",
    "host.sizes",
    "host.batch",
    "host.host_round",
    "host.ranks",
    "host.launch.options",
    "host.engine",
    "host.attention",
    "host.launch",
    "host.drafters.kernels",
    "host.drafters.confidences",
    "host.drafters.drafter",
    "host.startup.capture",
    "host.drafters",
    "host.startup",
    "host.reporting",
    "host.serving",
    "host.registration",
    "plugin",
    "simulate",
    "operate",
    "cli",
    "__main__",
)
Graph = Mapping[str, set[str]]


def module_names(root: Path) -> dict[str, Path]:
    """Every module under ``root`` by its name below the package; the package itself is ''."""
    found = {}
    for path in sorted((root / NAME).rglob("*.py")):
        parts = path.relative_to(root / NAME).with_suffix("").parts
        found[".".join(part for part in parts if part != "__init__")] = path
    return found


def imports_of(root: Path) -> Graph:
    """Every module's imports of other modules of the package."""
    modules = module_names(root)
    return {
        name: {named_module(target, modules) for target in targets(path, name)} - {name}
        for name, path in modules.items()
    }


def targets(path: Path, name: str) -> Iterator[str]:
    """What a file imports of the package: by statement anywhere, or by a name in a string."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:  # relative: each level above the first goes up by one
                parts = package.split(".")
                above = parts[: len(parts) + 1 - node.level]
                module = ".".join([NAME, *filter(None, above), *filter(None, [module])])
            yield from (f"{module}.{alias.name}" for alias in node.names if is_ours(module))
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if is_ours(alias.name))
        elif isinstance(node, ast.Constant) and DOTTED.fullmatch(str(node.value)):
            yield str(node.value)


def is_ours(module: str) -> bool:
    """Whether a dotted name lies in the package."""
    return module.partition(".")[0] == NAME


def named_module(target: str, modules: Mapping[str, Path]) -> str:
    """The module that a dotted name lies in: the longest prefix that is one."""
    parts = target.split(".")[1:]
    while ".".join(parts) not in modules:
        parts.pop()
    return ".".join(parts)


def floor_of(module: str) -> int:
    """The floor of a module's room."""
    rooms = [room for room in FLOORS if room and f"{module}.".startswith(f"{room}.")]
    if not rooms:
        assert module in ("", "host"), f"{module} has no floor"
    return FLOORS.index(max(rooms, key=len, default=""))


def problems(graph: Graph) -> list[str]:
    """A circle, and every import from a lower floor to a higher one."""
    found = [
        f"{name} imports {target}, which lies higher"
        for name, imported in graph.items()
        for target in sorted(imported)
        if floor_of(name) < floor_of(target)
    ]
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as circle:
        found.append(f"a circle: {' -> '.join(circle.args[1])}")
    return found


def test_imports_go_down_and_never_in_a_circle() -> None:
    graph = imports_of(ROOT)
    assert sum(map(len, graph.values())) > 150
    assert problems(graph) == []


@pytest.mark.parametrize(
    ("packages", "rooms"),
    [({"sglang"}, ("host",)), ({"torch", "triton"}, ("host", "loop.timing"))],
)
def test_the_host_s_packages_are_imported_by_these_rooms_alone(
    packages: set[str], rooms: tuple[str, ...]
) -> None:
    importers = {
        name
        for name, path in module_names(ROOT).items()
        if packages & {target.partition(".")[0] for target in imported_modules(path)}
    }
    assert importers
    allowed = tuple(f"{room}." for room in rooms)
    assert [name for name in importers if not f"{name}.".startswith(allowed)] == []


def imported_modules(path: Path) -> Iterator[str]:
    """Every module that a file's statements name, absolute ones only."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module or ""


@pytest.mark.parametrize(
    "planted",
    [
        f"from {NAME}.loop.controller import AdaptiveController",
        f"import {NAME}.loop.controller",
        f"from {NAME}.loop import controller",
        "from ..loop.controller import AdaptiveController",
        f"def late():\n    from {NAME}.loop.controller import AdaptiveController",
        f"if TYPE_CHECKING:\n    from {NAME}.loop.controller import AdaptiveController",
        f"importlib.import_module('{NAME}.loop.controller')",
        f"resolve_name('{NAME}.loop.controller.AdaptiveController')",
    ],
)
def test_a_planted_import_upwards_is_found_wherever_it_is(planted: str, tmp_path: Path) -> None:
    root = plant(tmp_path, "policy/goodput.py", planted)
    assert "policy.goodput imports loop.controller, which lies higher" in problems(imports_of(root))


def test_a_planted_circle_on_one_floor_is_found(tmp_path: Path) -> None:
    planted = f"def late():\n    from {NAME}.policy.goodput import GoodputPolicy"
    root = plant(tmp_path, "policy/probing.py", planted)
    (found,) = problems(imports_of(root))
    assert found.startswith("a circle: ")
    assert {"policy.goodput", "policy.probing"} <= set(
        found.removeprefix("a circle: ").split(" -> ")
    )


def test_a_module_without_a_floor_is_named(tmp_path: Path) -> None:
    root = plant(tmp_path, "attic.py", f"import {NAME}.tiers")
    with pytest.raises(AssertionError, match="attic has no floor"):
        problems(imports_of(root))


def plant(root: Path, file: str, line: str) -> Path:
    """Copies the package to ``root`` and adds to one of its files."""
    shutil.copytree(ROOT / NAME, root / NAME, ignore=shutil.ignore_patterns("__pycache__"))
    with (root / NAME / file).open("a") as changed:
        changed.write(f"\n{line}\n")
    return root


WORKERS = {
    *("AdaptiveEagleWorker", "AdaptiveDraftWorker", "EAGLEWorkerV2", "EagleDraftWorker"),
    *("AdaptiveStandaloneWorker", "AdaptiveStandaloneDraftWorker"),
    *("StandaloneWorkerV2", "StandaloneDraftWorker"),
}


def takes_the_worker(tree: ast.Module) -> list[str]:
    """What a module does that only the worker and the drafters may: name its class, or take it."""
    found = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]
    found += [alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
              for alias in node.names]  # fmt: skip
    taken = [node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)]
    return [name for name in found if name in WORKERS] + [
        name for name in taken if name == "worker"
    ]


def test_only_the_worker_s_module_and_the_drafters_know_the_worker() -> None:
    own = ("host.serving.worker", "host.drafters.")
    modules = {
        name: takes_the_worker(ast.parse(path.read_text()))
        for name, path in module_names(ROOT).items()
        if name.startswith("host")
    }
    assert all(modules[name] for name in ("host.serving.worker", "host.drafters.eagle"))
    assert {name for name, found in modules.items() if found and not name.startswith(own)} == set()
