"""Mutants of a policy module: one comparison, sign or number changed each."""

import ast
import types
from pathlib import Path
from typing import Any

OPERATORS = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
}
# Not called by the host's protocol, or state that no decision reads.
SKIPPED = {"observe", "without", "num_stale"}


class Mutator(ast.NodeTransformer):
    """Changes the operator or number at one position of the source, or just lists positions."""

    def __init__(self, target: int = -1) -> None:
        self.target = target
        self.found: list[str] = []

    def _is_target(self, node: Any, text: str) -> bool:
        self.found.append(f"line {node.lineno} col {node.col_offset}: {text}")
        return len(self.found) - 1 == self.target

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        return node if node.name in SKIPPED else self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> Any:
        name = getattr(node.targets[0], "attr", None)
        return node if name in SKIPPED else self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> Any:
        self.generic_visit(node)
        replacement = OPERATORS.get(type(node.ops[0]))
        if replacement and self._is_target(node, ast.unparse(node)):
            node.ops = [replacement()]
        return node

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        self.generic_visit(node)
        replacement = OPERATORS.get(type(node.op))
        if replacement and self._is_target(node, ast.unparse(node)):
            node.op = replacement()
        return node

    def visit_Constant(self, node: ast.Constant) -> Any:
        is_number = isinstance(node.value, int | float) and not isinstance(node.value, bool)
        if is_number and self._is_target(node, repr(node.value)):
            return ast.copy_location(ast.Constant(node.value + 1), node)
        return node


def mutation_points(module: types.ModuleType) -> list[str]:
    """Returns every operator and number of ``module`` that `mutant` can change, in order."""
    mutator = Mutator()
    mutator.visit(_source(module))
    return mutator.found


def mutant(module: types.ModuleType, target: int) -> types.ModuleType:
    """Returns ``module`` with its mutation point number ``target`` changed."""
    tree = ast.fix_missing_locations(Mutator(target).visit(_source(module)))
    changed = types.ModuleType(f"{module.__name__}_mutant_{target}")
    exec(compile(tree, f"<{changed.__name__}>", "exec"), changed.__dict__)
    return changed


def _source(module: types.ModuleType) -> ast.Module:
    assert module.__file__
    return ast.parse(Path(module.__file__).read_text())
