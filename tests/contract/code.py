"""The syntax trees of what touches the host, and what names in them stand for."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.hosts import REPO

PACKAGE = REPO / "sglang_adaptive_spec"
HOST_CODE = sorted((PACKAGE / "host").rglob("*.py"))


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports_of(tree: ast.Module) -> dict[str, str]:
    """Returns the dotted path behind every name that a module imports, wherever it does."""
    return dict(imports(tree))


def imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yields every name that a module imports, with the path of what it stands for."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for each in node.names:
                yield each.asname or each.name, f"{node.module}.{each.name}"
        elif isinstance(node, ast.Import):
            yield from (
                (each.asname or each.name.partition(".")[0], each.name) for each in node.names
            )


def stored_on_self(tree: ast.AST) -> set[str]:
    """Returns every `x` of an assignment to `self.x`."""
    stores = (
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    )
    return {node.attr for node in stores if ast.unparse(node.value) == "self"}


def declared(node: ast.ClassDef) -> set[str]:
    """Returns what a class declares: methods, classes, fields and `self.x`."""
    names = stored_on_self(node)
    for inner in node.body:
        if isinstance(inner, ast.FunctionDef | ast.ClassDef):
            names.add(inner.name)
        elif isinstance(inner, ast.Assign):
            names |= {ast.unparse(target) for target in inner.targets}
        elif isinstance(inner, ast.AnnAssign):
            names.add(ast.unparse(inner.target))
    return names


@cache
def package_classes() -> tuple[ast.ClassDef, ...]:
    """Returns every class of the package but protocols, which may stand for the host's objects."""
    nodes = (node for path in PACKAGE.rglob("*.py") for node in ast.walk(parsed(path)))
    found = (node for node in nodes if isinstance(node, ast.ClassDef))
    return tuple(each for each in found if "Protocol" not in map(ast.unparse, each.bases))
