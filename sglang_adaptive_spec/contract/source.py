"""Reads what a host declares from its syntax trees, without importing it.

The one idea: names, parameter lists, fields and `self.x` assignments are visible in the source, so
a wheel that was never installed can be read as well as the installed host, within a second.
Imports (also `import *`) and base classes are followed inside the package; nothing is run. Of C++,
which a package may ship to compile, the names of a function's parameters are read.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sglang_adaptive_spec.contract.versions import HOST

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Found:
    """One declaration of the host."""

    shape: str  # class, function, property, attribute
    place: str  # dotted module that declares it
    parameters: ast.arguments | None = None  # of a function, or the fields of a dataclass
    is_writable: bool = True

    def describe(self) -> str:
        """Returns the declaration in words: its shape and, for a function, its parameter list."""
        if self.parameters is None:
            return self.shape if self.is_writable else f"read-only {self.shape}"
        return f"{self.shape}({render(self.parameters)})"


@dataclass(slots=True)
class _Module:
    """The names at the top level of one module; for an import, where the name comes from."""

    names: dict[str, ast.AST] = field(default_factory=dict)
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)
    star_imports: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Class:
    """The members one class declares itself, and its bases as written."""

    members: dict[str, Found]
    bases: list[str]


def render(arguments: ast.arguments, *, with_defaults: bool = True) -> str:
    """Returns a parameter list without annotations, in Python's notation."""
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [None] * (len(plain) - len(arguments.defaults))
    defaults += arguments.defaults

    def one(argument: ast.arg, default: ast.expr | None) -> str:
        if default is None or not with_defaults:
            return argument.arg
        return f"{argument.arg}={ast.unparse(default)}"

    parts = [one(argument, default) for argument, default in zip(plain, defaults, strict=True)]
    if arguments.vararg:
        parts.append("*" + arguments.vararg.arg)
    elif arguments.kwonlyargs:
        parts.append("*")
    parts += map(one, arguments.kwonlyargs, arguments.kw_defaults)
    if arguments.kwarg:
        parts.append("**" + arguments.kwarg.arg)
    return ", ".join(parts)


class HostSource:
    """The syntax trees of one host, each parsed at most once."""

    def __init__(self, root: Path, package: str = HOST) -> None:
        """Takes the folder that contains the package."""
        self._root, self._package = root, package
        self._modules: dict[str, _Module | None] = {}
        self._classes: dict[tuple[str, str], _Class] = {}

    def find(self, module: str, name: str) -> Found | None:
        """Returns the declaration of `name` (`function`, `Class` or `Class.member`), or None."""
        if "/" in module:
            return _compiled(self._root / module, module, name)
        owner, _, member = name.partition(".")
        resolved = self._resolve(module, owner)
        if resolved is None:
            return None
        place, node = resolved
        if not member:
            return _found(node, place)
        return self._find_member(place, node, member) if isinstance(node, ast.ClassDef) else None

    def literal(self, module: str, name: str) -> Any:
        """Returns the value of a module constant that is written as a literal.

        Raises:
            ValueError: The module has no such constant, or it is not a literal.
        """
        resolved = self._resolve(module, name)
        node = resolved[1] if resolved else None
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            raise ValueError(f"{module} assigns no {name}")
        return ast.literal_eval(node.value)

    def _resolve(self, module: str, name: str) -> tuple[str, ast.AST] | None:
        seen: set[tuple[str, str]] = set()
        pending = [(module, name)]
        while pending:
            module, name = step = pending.pop()
            parsed = self._module(module)
            if step in seen or parsed is None:
                continue
            seen.add(step)
            if name in parsed.names:
                return module, parsed.names[name]
            if name in parsed.imports:
                pending.append(parsed.imports[name])
            else:
                pending += [(star, name) for star in parsed.star_imports]
        return None

    def _find_member(self, module: str, node: ast.ClassDef, member: str) -> Found | None:
        indexed = self._class(module, node)
        if member in indexed.members:
            return indexed.members[member]
        for base in indexed.bases:
            resolved = self._resolve(module, base)
            if resolved is not None and isinstance(resolved[1], ast.ClassDef):
                found = self._find_member(resolved[0], resolved[1], member)
                if found is not None:
                    return found
        return None

    def _module(self, module: str) -> _Module | None:
        if module not in self._modules:
            path = self._path(module)
            if path is None:
                self._modules[module] = None
            else:
                tree = ast.parse(path.read_bytes(), filename=str(path))
                is_package = path.name == "__init__.py"
                self._modules[module] = _index_module(tree, module, is_package=is_package)
        return self._modules[module]

    def _path(self, module: str) -> Path | None:
        if module.partition(".")[0] != self._package:
            return None
        stem = self._root.joinpath(*module.split("."))
        for path in (stem.with_suffix(".py"), stem / "__init__.py"):
            if path.is_file():
                return path
        return None

    def _class(self, module: str, node: ast.ClassDef) -> _Class:
        key = (module, node.name)
        if key not in self._classes:
            bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
            self._classes[key] = _Class(_index_members(node, module), bases)
        return self._classes[key]


def _index_module(tree: ast.Module, module: str, *, is_package: bool) -> _Module:
    index = _Module()
    for node in _statements(tree.body):
        if isinstance(node, ast.ImportFrom):
            source = _import_source(node, module, is_package=is_package)
            for alias in node.names:
                if alias.name == "*":
                    index.star_imports.append(source)
                else:
                    index.imports[alias.asname or alias.name] = (source, alias.name)
        elif isinstance(node, ast.ClassDef | FunctionNode):
            index.names[node.name] = node
        else:
            for target in _targets(node):
                # `X = msgspec.defstruct("X", ...)` rebuilds a class: its declaration stays.
                if isinstance(target, ast.Name) and not isinstance(
                    index.names.get(target.id), ast.ClassDef
                ):
                    index.names[target.id] = node
    return index


def _import_source(node: ast.ImportFrom, module: str, *, is_package: bool) -> str:
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    kept = parts[: len(parts) - node.level + is_package]
    return ".".join([*kept, node.module] if node.module else kept)


def _index_members(node: ast.ClassDef, module: str) -> dict[str, Found]:
    members: dict[str, Found] = {}
    writable = not _is_frozen(node)
    methods: list[FunctionNode] = []
    for statement in _statements(node.body):
        if isinstance(statement, FunctionNode):
            methods.append(statement)
            members[statement.name] = _found_method(statement, module)
        elif isinstance(statement, ast.ClassDef):
            members[statement.name] = Found("class", module)
        for target in _targets(statement):
            if isinstance(target, ast.Name):
                members[target.id] = Found("attribute", module, is_writable=writable)
    for method in methods:
        for name in _instance_attributes(method):
            members.setdefault(name, Found("attribute", module, is_writable=writable))
    return members


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yields the statements of a body, and those inside its `if`, `try` and `with` blocks."""
    for node in body:
        yield node
        for block in ("body", "orelse", "finalbody", "handlers"):
            if isinstance(node, ast.If | ast.Try | ast.With):
                for inner in getattr(node, block, []):
                    nested = inner.body if isinstance(inner, ast.ExceptHandler) else [inner]
                    yield from _statements(nested)


def _targets(node: ast.AST) -> Iterator[ast.expr]:
    """Yields the expressions that an assignment binds, tuples taken apart."""
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = list(node.targets)
    elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.For):
        targets = [node.target]
    elif isinstance(node, ast.withitem) and node.optional_vars:
        targets = [node.optional_vars]
    while targets:
        target = targets.pop()
        if isinstance(target, ast.Tuple | ast.List):
            targets += target.elts
        elif isinstance(target, ast.Starred):
            targets.append(target.value)
        else:
            yield target


def _instance_attributes(method: FunctionNode) -> Iterator[str]:
    """Yields what a method assigns on its first parameter: `x`, or `x.y` for `self.x.y`."""
    arguments = [*method.args.posonlyargs, *method.args.args]
    if not arguments:
        return
    prefix = f"{arguments[0].arg}."
    for node in ast.walk(method):
        for target in _targets(node):
            if isinstance(target, ast.Attribute):
                path = ast.unparse(target)
                if path.startswith(prefix):
                    yield path.removeprefix(prefix)


def _found(node: ast.AST, place: str) -> Found:
    if isinstance(node, ast.ClassDef):
        return Found("class", place, parameters=_fields(node))
    if isinstance(node, FunctionNode):
        return Found("function", place, parameters=node.args)
    return Found("attribute", place)


def _compiled(path: Path, module: str, name: str) -> Found | None:
    """Returns a function defined in C++, its parameters by name: no type has a comma or bracket."""
    text = path.read_text() if path.is_file() else ""
    definition = re.search(rf"\b{name}\s*\(([^()]*)\)\s*{{", text)
    if definition is None:
        return None
    declared = (each.partition("=")[0].split() for each in definition[1].split(","))
    names = [words[-1].lstrip("&*") for words in declared if words]
    parameters = ast.arguments([], list(map(ast.arg, names)), None, [], [], None, [])
    return Found("function", module, parameters)  # no defaults: the compiled module knows none


def _fields(node: ast.ClassDef) -> ast.arguments | None:
    """Returns the parameters of a dataclass: the fields that it declares itself."""
    decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
    if not any(text.partition("(")[0].endswith("dataclass") for text in decorators):
        return None
    fields = [
        statement
        for statement in node.body
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
        if not ast.unparse(statement.annotation).startswith(("ClassVar", "typing.ClassVar"))
    ]
    # The plugin names every field that it fills, so all are read as keywords.
    return ast.arguments(
        posonlyargs=[],
        args=[],
        kwonlyargs=[ast.arg(ast.unparse(statement.target)) for statement in fields],
        kw_defaults=[_default(statement.value) for statement in fields],
        defaults=[],
    )


def _default(value: ast.expr | None) -> ast.expr | None:
    """Returns the default of a dataclass field, None where it has none."""
    if isinstance(value, ast.Call) and ast.unparse(value.func).endswith("field"):
        given = {keyword.arg: keyword.value for keyword in value.keywords}
        return given.get("default") or given.get("default_factory")
    return value


def _found_method(node: FunctionNode, place: str) -> Found:
    decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
    if any(text.endswith("cached_property") for text in decorators):
        return Found("property", place)
    if f"{node.name}.setter" in decorators:
        return Found("property", place)
    if "property" in decorators:
        return Found("property", place, is_writable=False)
    return Found("function", place, parameters=node.args)


def _is_frozen(node: ast.ClassDef) -> bool:
    keywords = list(node.keywords)
    for decorator in node.decorator_list:
        if isinstance(decorator, ast.Call):
            keywords += decorator.keywords
    return any(
        keyword.arg == "frozen"
        and isinstance(keyword.value, ast.Constant)
        and keyword.value.value is True
        for keyword in keywords
    )
