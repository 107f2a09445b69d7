"""The reader sees declarations as Python would: through imports, bases, stars and branches."""

from pathlib import Path

import pytest

from sglang_adaptive_spec.contract.source import HostSource

FILES = {
    "__init__.py": "",
    "api/__init__.py": "from sglang.api.impl import *\nfrom .other import renamed as alias\n",
    "api/impl.py": """
from sglang.loop import anything
def direct(a, b=1, *rest, c, d=2, **more): ...
""",
    "api/other.py": "def renamed(x, /, y): ...\n",
    "loop.py": "from sglang.loop import anything\n",
    "classes.py": """
from __future__ import annotations
import dataclasses
from sglang.bases import Base as Parent, Frozen
from torch.nn import Module

class Child(Parent, Module):
    in_class = 1
    annotated: int
    def __init__(self, value):
        self.plain = self.chained = value
        self.first, (self.second, *self.others) = value
        self.typed: int = value
        self.part.inner = value
        other.foreign = value
        with open(value) as self.handle:
            pass
    @property
    def read_only(self): ...
    @property
    def settable(self): ...
    @settable.setter
    def settable(self, value): ...
    async def coroutine(self, x): ...
    if True:
        def conditional(self): ...

class Point(Frozen, frozen=True):
    x: int

@dataclasses.dataclass(frozen=True)
class Pair:
    left: int

@dataclasses.dataclass
class Record:
    kind: ClassVar[str] = "record"
    first: int
    second: list = dataclasses.field()
    third: list = dataclasses.field(default_factory=list)
    fourth: int = 4
    def method(self): ...

try:
    CONSTANT = {"a": [1, None]}
except ImportError:
    FALLBACK = 0
Child = rebuild(Child)
""",
    "bases.py": """
class Base:
    inherited = None
    def method(self, a, *, b): ...
class Frozen: ...
""",
}


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> HostSource:
    root = tmp_path_factory.mktemp("host")
    for name, text in FILES.items():
        path = root / "sglang" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return HostSource(root)


@pytest.mark.parametrize(
    ("module", "name", "described"),
    [
        ("api", "direct", "function(a, b=1, *rest, c, d=2, **more)"),
        ("api", "alias", "function(x, y)"),
        ("classes", "Child", "class"),
        ("classes", "Child.in_class", "attribute"),
        ("classes", "Child.annotated", "attribute"),
        ("classes", "Child.plain", "attribute"),
        ("classes", "Child.chained", "attribute"),
        ("classes", "Child.second", "attribute"),
        ("classes", "Child.others", "attribute"),
        ("classes", "Child.typed", "attribute"),
        ("classes", "Child.part.inner", "attribute"),
        ("classes", "Child.read_only", "read-only property"),
        ("classes", "Child.settable", "property"),
        ("classes", "Child.coroutine", "function(self, x)"),
        ("classes", "Child.conditional", "function(self)"),
        ("classes", "Child.inherited", "attribute"),
        ("classes", "Child.method", "function(self, a, *, b)"),
        ("classes", "Point.x", "read-only attribute"),
        ("classes", "Pair.left", "read-only attribute"),
        ("classes", "Pair", "class(*, left)"),
        ("classes", "Record", "class(*, first, second, third=list, fourth=4)"),
        ("classes", "CONSTANT", "attribute"),
        ("classes", "FALLBACK", "attribute"),
    ],
)
def test_declarations_are_found(host: HostSource, module: str, name: str, described: str) -> None:
    found = host.find(f"sglang.{module}", name)
    assert found is not None
    assert found.describe() == described


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("sglang.api", "renamed"),
        ("sglang.classes", "Child.foreign"),
        ("sglang.classes", "Child.missing"),
        ("sglang.classes", "CONSTANT.member"),
        ("sglang.loop", "anything"),
        ("sglang.absent", "name"),
        ("torch.nn", "Module"),
    ],
)
def test_what_is_not_declared_is_not_found(host: HostSource, module: str, name: str) -> None:
    assert host.find(module, name) is None


def test_the_place_is_the_module_that_declares(host: HostSource) -> None:
    found = host.find("sglang.classes", "Child.method")
    assert found is not None
    assert found.place == "sglang.bases"


def test_literals_are_read_and_anything_else_is_an_error(host: HostSource) -> None:
    assert host.literal("sglang.classes", "CONSTANT") == {"a": [1, None]}
    for name in ("Child", "MISSING"):
        with pytest.raises(ValueError, match=name):
            host.literal("sglang.classes", name)


def test_a_broken_file_is_an_error_not_a_missing_symbol(tmp_path: Path) -> None:
    (tmp_path / "sglang").mkdir()
    (tmp_path / "sglang" / "broken.py").write_text("def (:\n")
    with pytest.raises(SyntaxError):
        HostSource(tmp_path).find("sglang.broken", "name")
