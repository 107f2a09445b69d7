"""The ledger in patches/README.md: every change to the host stands in its table, with its reasons.

Its rows say why, which pull request would help, and when a change can go: prose that the package
does not ship. Which symbols they are about is written from the contract (test_generated.py).
"""

import ast
import re

from sglang_adaptive_spec.contract.source import HostSource
from sglang_adaptive_spec.contract.table import CONTRACT, Kind
from sglang_adaptive_spec.contract.versions import TESTED
from tests.contract.code import HOST_CODE, parsed
from tests.hosts import host_source
from tools.write_contract import LEDGER, LEDGER_NAME, LEDGER_TABLE, ledger

TEXT = LEDGER.read_text()
TABLES = {Kind(kind): rows.splitlines() for kind, _, rows in LEDGER_TABLE.findall(TEXT)}
ROW = "| `Scheduler.get_init_info` (`srt/managers/scheduler.py`) |"


def test_every_change_stands_in_one_row_of_its_table() -> None:
    assert TABLES.keys() == {Kind.HOOK, Kind.OVERRIDE, Kind.WRITE}
    for kind, rows in TABLES.items():
        shown = [name for row in rows for name in LEDGER_NAME.findall(row.partition(" | ")[0])]
        assert sorted(shown) == sorted(symbol.name for symbol in CONTRACT if symbol.kind is kind)


def test_every_row_is_filled() -> None:
    for kind, rows in TABLES.items():
        for row in rows:
            cells = [cell.strip() for cell in row[1:-1].split(" | ")]
            assert len(cells) == (4 if kind is Kind.OVERRIDE else 5), row
            assert all(cells), row


def test_a_change_without_a_row_gets_an_empty_one_and_a_row_without_a_change_goes() -> None:
    assert ROW in TEXT
    empty = ROW + "  |  |  |  |\n"
    renamed = ledger(TEXT.replace("`Scheduler.get_init_info`", "`Scheduler.get_init`"))
    assert renamed == ledger(re.sub(rf"^{re.escape(ROW)}.*\n", "", TEXT, flags=re.MULTILINE))
    assert empty in renamed
    twice = TEXT.replace(ROW, "| `Scheduler.get_init_info`, `Scheduler.get_init_info` |")
    assert ledger(twice) == ledger(TEXT) == TEXT


def test_what_is_added_to_objects_of_the_host_is_listed_and_is_not_the_hosts() -> None:
    listed = dict(re.findall(r"^\| `((\w+)\._adaptive_spec\w*)` \|", TEXT, re.MULTILINE))
    nodes = (node for path in HOST_CODE for node in ast.walk(parsed(path)))
    texts = (node.value for node in nodes if isinstance(node, ast.Constant))
    added = sorted(text for text in texts if re.match("_adaptive_spec", str(text)))
    assert sorted(name.partition(".")[2] for name in listed) == added
    modules = {symbol.name.partition(".")[0]: symbol.module for symbol in CONTRACT}
    for version in TESTED:
        host = HostSource(host_source(version))
        assert [name for name, owner in listed.items() if host.find(modules[owner], name)] == []
