"""Writes what follows from the contract and the released hosts (`make contract`).

- `patches/contract.json`: what every tested release declares for every symbol of the contract.
- The preset `host-default`: the host's own DEFAULT_ADAPTIVE_CONFIG, the same in all of them.
- `patches/README.md`, the ledger: which symbols its rows are about, and their files. The rest of a
  row is prose, by hand. A symbol without a row gets an empty one; one that is gone is left out.

Run as `python -m tools.write_contract`.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from sglang_adaptive_spec.contract.check import find_symbol
from sglang_adaptive_spec.contract.source import HostSource
from sglang_adaptive_spec.contract.table import CONTRACT, Kind, Symbol
from sglang_adaptive_spec.contract.versions import TESTED
from tests.hosts import REPO, host_source

SNAPSHOT = REPO / "patches" / "contract.json"
PRESET = REPO / "sglang_adaptive_spec" / "config" / "presets" / "host-default.json"
DEFAULT_CONFIG = ("sglang.srt.speculative.adaptive_spec_params", "DEFAULT_ADAPTIVE_CONFIG")
LEDGER = REPO / "patches" / "README.md"
LEDGER_TABLE = re.compile(r"(?<=^<!-- )(\w+)( rows -->\n(?:\|.*\n){2})((?:\|.*\n)*)", re.MULTILINE)
LEDGER_NAME = re.compile(r"`([A-Za-z_]\w*(?:\.\w+)?)`")
Sources = Mapping[str, HostSource]  # by release


def snapshot(sources: Sources) -> dict[str, Any]:
    """Returns what the releases declare for each symbol: one text, or one per form by releases."""
    symbols = sorted(CONTRACT, key=lambda symbol: symbol.path)
    return {symbol.path: declarations(symbol, sources) for symbol in symbols}


def declarations(symbol: Symbol, sources: Sources) -> str | dict[str, str]:
    """Returns the declaration that all releases share, or each one with its releases."""
    releases: dict[str, list[str]] = {}
    for release, source in sources.items():
        found = find_symbol(source, symbol)
        if found is None:
            raise SystemExit(f"sglang {release} has no {symbol.path}")
        releases.setdefault(f"{found.describe()} in {found.place}", []).append(release)
    first, *others = releases
    return {" ".join(those): form for form, those in releases.items()} if others else first


def common_default_config(configs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the default config of all hosts, by release.

    Raises:
        SystemExit: They differ, so no single preset is what every host ships.
    """
    first, *others = configs.values()
    if any(config != first for config in others):
        raise SystemExit(f"DEFAULT_ADAPTIVE_CONFIG differs between hosts: {json.dumps(configs)}")
    return dict(first)


def ledger(text: str) -> str:
    """Returns a ledger with the symbols of every row as the contract has them."""

    def table(found: re.Match[str]) -> str:
        kind, head, rows = found.groups()
        return kind + head + "".join(ledger_rows(Kind(kind), rows.splitlines(), head.count(" | ")))

    return LEDGER_TABLE.sub(table, text)


def ledger_rows(kind: Kind, rows: Iterable[str], num_cells: int) -> Iterator[str]:
    """Yields the rows of a table; symbols that none of them is about come last, without prose."""
    changes = {symbol.name: symbol for symbol in CONTRACT if symbol.kind is kind}
    for row in rows:
        names, _, prose = row.removeprefix("| ").partition(" | ")
        symbols = [changes.pop(name) for name in LEDGER_NAME.findall(names) if name in changes]
        if symbols:
            yield f"| {in_files(symbols)} | {prose}\n"
    yield from (f"| {in_files([symbol])} |{'  |' * num_cells}\n" for symbol in changes.values())


def in_files(symbols: Iterable[Symbol]) -> str:
    """Returns the names of symbols with the files that have them."""
    files = groupby(symbols, lambda symbol: symbol.module.removeprefix("sglang.").replace(".", "/"))
    shown = ((file, [f"`{symbol.name}`" for symbol in those]) for file, those in files)
    return "; ".join(f"{', '.join(names)} (`{file}.py`)" for file, names in shown)


def one_line_each(entries: Mapping[str, Any]) -> str:
    """Returns a JSON object with one entry a line."""
    lines = (f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in entries.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def generated_files() -> dict[Path, str]:
    """Returns every file this tool writes, with its text."""
    sources = {version: HostSource(host_source(version)) for version in TESTED}
    configs = {version: source.literal(*DEFAULT_CONFIG) for version, source in sources.items()}
    return {
        SNAPSHOT: one_line_each({"releases": TESTED, **snapshot(sources)}),
        PRESET: one_line_each(common_default_config(configs)),
        LEDGER: ledger(LEDGER.read_text()),
    }


def main() -> None:
    """Writes the generated files."""
    for path, text in generated_files().items():
        path.write_text(text)


if __name__ == "__main__":
    main()
