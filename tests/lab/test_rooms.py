"""Benchmarks have floors, too: what serves knows no study, what counts knows no server."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.hosts import REPO

BENCHMARKS = REPO / "benchmarks"
FLOORS = ("inject", "stats", "lab", "studies", "verify")


def room_of(module: str) -> str:
    """Returns the room of a dotted name."""
    return module.split(".")[1]


def imported(path: Path) -> Iterator[str]:
    """Returns the modules of benchmarks that a file imports, wherever it does."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        yield from (name for name in names if name.split(".")[0] == "benchmarks")


def test_imports_go_down() -> None:
    upwards, num_imports = [], 0
    for path in BENCHMARKS.rglob("*.py"):
        name = ".".join(path.relative_to(REPO).with_suffix("").parts)
        for target in imported(path):
            num_imports += 1
            if FLOORS.index(room_of(name)) < FLOORS.index(room_of(target)):
                upwards.append(f"{name} imports {target}")
    assert num_imports > 100
    assert upwards == []


def test_no_test_of_the_product_imports_benchmarks() -> None:
    tests = [path for path in (REPO / "tests").rglob("*.py") if "lab" not in path.parts]
    assert len(tests) > 100
    assert [path for path in tests if list(imported(path))] == []
