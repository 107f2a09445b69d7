"""A row is one line: what it may say, and how it is read."""

import pytest

from sglang_adaptive_spec.contract.flashinfer import PARTS
from sglang_adaptive_spec.contract.symbols import Kind, Symbol, read_rows
from sglang_adaptive_spec.contract.table import CONTRACT, HOOK_TARGETS
from tests.hosts import REPO

ROWS = """
# A comment.
sglang.module
  call function(a, *, b): call it: once
  call nothing(): call it with nothing
  read ONE, TWO: know both

sglang.module:Class
in sglang.other. first:First second:Second
in sglang.third:Third
  hook new|old(self) or (self, a): know it in two releases
sglang.module:Other
  override shown: redefine a property
flashinfer/csrc/plan.cu
  call plan(x, y): plan
"""
PLACES = ("sglang.other.first:First", "sglang.other.second:Second", "sglang.third:Third")


def test_every_line_below_a_class_or_module_is_a_row() -> None:
    module = "sglang.module"
    hook = ("know it in two releases", ("self", "self, a"), PLACES, ("Class.old",))
    assert list(read_rows(ROWS)) == [
        Symbol(module, "function", Kind.CALL, "call it: once", ("a, *, b",)),
        Symbol(module, "nothing", Kind.CALL, "call it with nothing", ("",)),
        Symbol(module, "ONE", Kind.READ, "know both"),
        Symbol(module, "TWO", Kind.READ, "know both"),
        Symbol(module, "Class.new", Kind.HOOK, *hook),
        Symbol(module, "Other.shown", Kind.OVERRIDE, "redefine a property"),
        Symbol("flashinfer/csrc/plan.cu", "plan", Kind.CALL, "plan", ("x, y",)),
    ]


def test_a_row_of_no_kind_is_an_error() -> None:
    with pytest.raises(ValueError, match="patch"):
        list(read_rows("sglang.module\n  patch function(): change it\n"))


def test_a_name_finds_the_path_of_what_is_hooked() -> None:
    request = "sglang.srt.managers.schedule_batch.Req"
    assert HOOK_TARGETS["Req.owned_kv_len"] == f"{request}.owned_kv_len"
    assert HOOK_TARGETS["Req.effective_kv_committed_len"].startswith(request)
    assert "Req.kv" not in HOOK_TARGETS


def test_names_are_unique() -> None:
    for rows in (CONTRACT, PARTS):
        names = [name for symbol in rows for name in symbol.names]
        assert len(set(names)) == len(names), "a hook is found by its name"


@pytest.mark.parametrize("file", ["sglang.txt", "flashinfer.txt"])
def test_rows_stand_in_the_order_of_the_hosts_files(file: str) -> None:
    text = (REPO / "sglang_adaptive_spec" / "contract" / file).read_text()
    owners = [line for line in text.splitlines() if line and not line.startswith((" ", "#", "in "))]
    assert owners == sorted(owners, key=lambda owner: owner.partition(":"))
