"""Writes what the released hosts declare for every symbol of the contract (`make contract`).

Writes patches/contract/<version>.json for every tested release, and from the same source the preset
`host-default`: the host's own DEFAULT_ADAPTIVE_CONFIG, which must be the same in all of them.
Run as `python -m tools.write_contract`.
"""

import json
from pathlib import Path
from typing import Any

from sglang_adaptive_spec.contract.check import find_symbol
from sglang_adaptive_spec.contract.source import HostSource
from sglang_adaptive_spec.contract.table import CONTRACT
from sglang_adaptive_spec.contract.versions import TESTED
from tests.hosts import REPO, host_source

SNAPSHOTS = REPO / "patches" / "contract"
PRESET = REPO / "sglang_adaptive_spec" / "config" / "presets" / "host-default.json"
DEFAULT_CONFIG = ("sglang.srt.speculative.adaptive_spec_params", "DEFAULT_ADAPTIVE_CONFIG")


def snapshot(version: str, root: Path) -> dict[str, Any]:
    """Returns what the host unpacked under ``root`` declares for every symbol of the contract."""
    source = HostSource(root)
    symbols: dict[str, Any] = {}
    for symbol in sorted(CONTRACT, key=lambda symbol: symbol.path):
        found = find_symbol(source, symbol)
        if found is None:
            raise SystemExit(f"sglang {version} has no {symbol.path}")
        symbols[symbol.path] = {
            "kind": symbol.kind.value,
            "found": found.describe(),
            "declared_in": found.place,
        }
    config = source.literal(*DEFAULT_CONFIG)
    return {"version": version, "symbols": symbols, "default_adaptive_config": config}


def common_default_config(snapshots: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the default config of all hosts.

    Raises:
        SystemExit: They differ, so no single preset is what every host ships.
    """
    configs = {shot["version"]: shot["default_adaptive_config"] for shot in snapshots}
    first, *others = configs.values()
    if any(config != first for config in others):
        raise SystemExit(f"DEFAULT_ADAPTIVE_CONFIG differs between hosts: {json.dumps(configs)}")
    return dict(first)


def generated_files() -> dict[Path, str]:
    """Returns every file this tool writes, with its text."""
    snapshots = [snapshot(version, host_source(version)) for version in TESTED]
    files = {
        SNAPSHOTS / f"{shot['version']}.json": json.dumps(shot, indent=2) + "\n"
        for shot in snapshots
    }
    slots = common_default_config(snapshots).items()
    lines = [f"  {json.dumps(key)}: {json.dumps(slot)}" for key, slot in slots]
    files[PRESET] = "{\n" + ",\n".join(lines) + "\n}\n"
    return files


def main() -> None:
    """Writes the generated files."""
    for path, text in generated_files().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()
