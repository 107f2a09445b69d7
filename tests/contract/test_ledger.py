"""The ledger in patches/README.md: every change to the host once, in its table, where it lies.

Its rows say why, which pull request would help, and when a change can go: prose that the package
does not ship. What the contract knows of them is checked here instead of written twice.
"""

import re
from collections import Counter

import pytest

from sglang_adaptive_spec.contract.table import CONTRACT, Kind
from tests.hosts import REPO

LEDGER = (REPO / "patches" / "README.md").read_text()
# What our own attributes on the host's objects are called: the host has none of that name.
ADDED = "(added)"
TABLES = {
    "Hooks": Kind.HOOK,
    "Steps of resolution": Kind.HOOK,
    "Overrides": Kind.OVERRIDE,
    "Writes": Kind.WRITE,
}
COLUMNS = {"Hooks": 5, "Steps of resolution": 4, "Overrides": 4, "Writes": 5}


def rows(table: str) -> list[list[str]]:
    """The cells of every row of the table under a heading."""
    (section,) = (part for part in re.split(r"^## ", LEDGER, flags=re.M) if part.startswith(table))
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [line[1:-1].split(" | ") for line in lines[2:]]


def names(cell: str) -> list[str]:
    """The symbols that a row is about; paths of files, and entries of what it names, are none."""
    return re.findall(r"`([A-Za-z_]\w*(?:\.\w+)?)`", re.sub(r"\(entries [^)]*\)", "", cell))


@pytest.mark.parametrize("table", TABLES)
def test_a_row_is_whole(table: str) -> None:
    assert rows(table)
    for cells in rows(table):
        assert len(cells) == COLUMNS[table], cells[0]
        assert all(cell.strip() for cell in cells), cells[0]
        assert names(cells[0]), cells[0]


def test_every_change_stands_in_one_row_of_its_own_table_and_nothing_else_does() -> None:
    shown = Counter(
        (TABLES[table], name)
        for table in TABLES
        for cells in rows(table)
        if ADDED not in cells[0]
        for name in names(cells[0])
    )
    changes = {(symbol.kind, symbol.name) for symbol in CONTRACT if symbol.kind in TABLES.values()}
    assert shown.keys() == changes
    assert [each for each, num in shown.items() if num > 1] == []


@pytest.mark.parametrize("table", TABLES)
def test_a_file_that_a_row_names_is_one_of_its_symbols(table: str) -> None:
    modules = {symbol.name: symbol.module for symbol in CONTRACT}
    for cells in rows(table):
        of_row = {modules.get(name, "").replace(".", "/") + ".py" for name in names(cells[0])}
        for path in re.findall(r"`(srt/[\w/]+\.py)`", cells[0]):
            assert f"sglang/{path}" in of_row, cells[0]
