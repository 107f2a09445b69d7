"""A symbol that a release renames: refused until its row has both names, then known in both."""

from pathlib import Path

import pytest

from sglang_adaptive_spec.contract.check import MISSING, check
from sglang_adaptive_spec.contract.symbols import Symbol, read_rows
from sglang_adaptive_spec.contract.table import CONTRACT
from sglang_adaptive_spec.contract.versions import TESTED
from tests.contract.mutant import mutate, renamed
from tests.hosts import host_source

OWNER = "sglang.srt.model_executor.model_runner:ModelRunner"
MEMBER = "init_attention_backends"
NEW = f"{MEMBER}_renamed"


@pytest.fixture
def next_release(tmp_path: Path) -> Path:
    """The newest tested release with one method under another name."""
    mutate(host_source(TESTED[-1]), tmp_path, OWNER.partition(":")[0], renamed(MEMBER))
    return tmp_path


def row(name: str, parameters: str = "self") -> tuple[Symbol, ...]:
    return tuple(read_rows(f"{OWNER}\n  call {name}({parameters}): show a rename\n"))


def test_one_name_is_right_for_one_release_alone(next_release: Path) -> None:
    released = host_source(TESTED[-1])
    assert check(released, row(MEMBER)) == check(next_release, row(NEW)) == []
    (missing,) = check(next_release, row(MEMBER))
    assert (missing.symbol, missing.found) == (f"{OWNER.replace(':', '.')}.{MEMBER}", MISSING)
    assert len(check(released, row(NEW))) == 1


def test_both_names_are_right_for_both_releases(next_release: Path) -> None:
    both = row(f"{NEW}|{MEMBER}")
    assert check(host_source(TESTED[-1]), both) == check(next_release, both) == []


def test_the_signature_counts_under_either_name(next_release: Path) -> None:
    wrong = row(f"{NEW}|{MEMBER}", "self, *, absent")
    assert len(check(host_source(TESTED[-1]), wrong)) == len(check(next_release, wrong)) == 1


def test_no_former_name_is_kept_that_no_tested_release_has() -> None:
    former = [(symbol, name) for symbol in CONTRACT for name in symbol.former_names]
    for symbol, name in former:
        alone = Symbol(symbol.module, name, symbol.kind, symbol.why, symbol.signatures)
        assert any(not check(host_source(version), [alone]) for version in TESTED), name
