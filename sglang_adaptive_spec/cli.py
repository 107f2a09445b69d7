"""The command line: `sglang-adaptive-spec check`. It parses and prints; the work is in host/."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from sglang_adaptive_spec.host.static_check import contract_report
from sglang_adaptive_spec.host.versions import SUPPORTED, versions_report


def check() -> dict[str, Any]:
    """Returns what `check` prints: versions, the window, and the contract's outcome."""
    report = contract_report()
    return {
        "ok": report.ok,
        "host_version": report.version,
        "supported": SUPPORTED,
        "in_window": report.in_window,
        "mismatches": [asdict(mismatch) for mismatch in report.mismatches],
        "message": report.message,
        "versions": versions_report(),
    }


def render_check(result: dict[str, Any]) -> str:
    """Returns the outcome of `check` as text, one fact a line."""
    width = max(map(len, result["versions"]))
    lines = [f"{name:<{width}}  {version}" for name, version in result["versions"].items()]
    window = "inside" if result["in_window"] else "outside"
    lines.append(f"{'supported':<{width}}  sglang{result['supported']} ({window})")
    lines.append(f"{'contract':<{width}}  {'ok' if result['ok'] else 'FAILED'}")
    for mismatch in result["mismatches"]:
        lines += [
            f"  {mismatch['symbol']}",
            f"    expected {mismatch['expected']}",
            f"    found    {mismatch['found']}",
            f"    used to  {mismatch['why']}",
        ]
    if result["message"]:
        lines.append(result["message"])
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb; returns the exit status."""
    arguments = _parser().parse_args(argv)
    result = check()
    print(json.dumps(result, indent=2) if arguments.json else render_check(result))
    return 0 if result["ok"] else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sglang-adaptive-spec", description="Adaptive speculative decoding for SGLang."
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser(
        "check", help="report versions and check every SGLang symbol that the plugin uses"
    )
    verb.add_argument("--json", action="store_true", help="print JSON")
    return parser
