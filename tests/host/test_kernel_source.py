"""What Triton cannot compile is found without a GPU: it reads more of a function than Python runs.

Triton takes annotations for types, and of the module's names only its own constants.
"""

import ast
from pathlib import Path

import pytest

from tests.hosts import REPO

SOURCE = REPO / "sglang_adaptive_spec/host/drafters/kernels.py"
TRITONS = {"tl", "range"}


def problems(source: str) -> list[str]:
    """What of the kernels in ``source`` Triton cannot read."""
    module = ast.parse(source)
    constants = {
        target.id
        for node in module.body
        if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("tl.constexpr(")
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    found = []
    for node in module.body:
        if not isinstance(node, ast.FunctionDef):
            continue
        if not any(ast.unparse(each).startswith("triton.jit") for each in node.decorator_list):
            continue
        for argument in node.args.args:
            if argument.annotation and ast.unparse(argument.annotation) != "tl.constexpr":
                found.append(f"{node.name}: annotation of {argument.arg}")
        if node.returns is not None:
            found.append(f"{node.name}: annotation of what it returns")
        names = [each for each in ast.walk(node) if isinstance(each, ast.Name)]
        known = {each.id for each in names if isinstance(each.ctx, ast.Store)}
        known |= {argument.arg for argument in node.args.args} | constants | TRITONS
        inside = [each for each in names if each not in _outside(node)]
        found += [f"{node.name}: {each.id}" for each in inside if each.id not in known]
    return found


def _outside(node: ast.FunctionDef) -> list[ast.AST]:
    """What stands in decorators and annotations."""
    tops = [*node.decorator_list, *(each.annotation for each in node.args.args if each.annotation)]
    return [each for top in tops for each in ast.walk(top)]


def test_every_kernel_can_be_read() -> None:
    source = Path(SOURCE).read_text()
    assert source.count("@triton.jit") == 1
    assert problems(source) == []


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("logits, found, row_stride", "logits: Any, found, row_stride", "annotation of logits"),
        ("block: tl.constexpr\n):", "block: tl.constexpr\n) -> None:", "annotation of what"),
        ("other=LOWEST", "other=BLOCK", "top_probability_kernel: BLOCK"),
    ],
)
def test_what_it_cannot_read_is_found(before: str, after: str, expected: str) -> None:
    source = Path(SOURCE).read_text()
    assert before in source
    (problem,) = problems(source.replace(before, after, 1))
    assert expected in problem
