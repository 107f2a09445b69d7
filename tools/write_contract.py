"""Writes what follows from the contract and the released hosts (`make contract`).

- `patches/contract.json`: what every tested release declares for every symbol of the contract.
- The preset `host-default`: the host's own DEFAULT_ADAPTIVE_CONFIG, the same in all of them.

Run as `python -m tools.write_contract`.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sglang_adaptive_spec.contract.check import find_symbol
from sglang_adaptive_spec.contract.source import HostSource
from sglang_adaptive_spec.contract.table import CONTRACT, Symbol
from sglang_adaptive_spec.contract.versions import TESTED
from tests.hosts import REPO, host_source

SNAPSHOT = REPO / "patches" / "contract.json"
PRESET = REPO / "sglang_adaptive_spec" / "config" / "presets" / "host-default.json"
DEFAULT_CONFIG = ("sglang.srt.speculative.adaptive_spec_params", "DEFAULT_ADAPTIVE_CONFIG")
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
    }


def main() -> None:
    """Writes the generated files."""
    for path, text in generated_files().items():
        path.write_text(text)


if __name__ == "__main__":
    main()
