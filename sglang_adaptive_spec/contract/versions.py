"""Which hosts are supported, and which versions of everything are installed.

`SUPPORTED` is the one place of the version window: the optional dependency in pyproject.toml and
the contract snapshots are checked against it. `FLASHINFER_SUPPORTED` is that of FlashInfer, from
the oldest to the newest version that a tested host pins. Standard library and packaging only.
"""

from __future__ import annotations

import ast
import importlib.util
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from sglang_adaptive_spec import __version__

SUPPORTED = ">=0.5.20,<0.5.24"
# Releases whose contract check and CPU end-to-end run are part of the tests.
TESTED = ("0.5.20", "0.5.21", "0.5.22", "0.5.23")

FLASHINFER_SUPPORTED = ">=0.6.18,<0.7.3"
FLASHINFER_TESTED = ("0.6.18", "0.7.1", "0.7.2")  # what the tested hosts pin

HOST = "sglang"
FLASHINFER = "flashinfer"
FLASHINFER_DISTRIBUTION = "flashinfer_python"
PLUGIN = "sglang-adaptive-spec"
# What the host computes with.
STACK = ("torch", "triton", FLASHINFER_DISTRIBUTION, "sglang-kernel")
NOT_INSTALLED = "not installed"


@dataclass(frozen=True, slots=True)
class HostInfo:
    """The package that an import would load: the host, or FlashInfer."""

    version: str
    root: Path  # the folder that contains the package


def is_supported(version: str, window: str = SUPPORTED) -> bool:
    """Says whether a version lies in a window; builds and pre-releases within it do."""
    try:
        parsed = Version(version)
    except InvalidVersion:
        return False
    return SpecifierSet(window).contains(parsed, prereleases=True)


def installed_host() -> HostInfo | None:
    """Finds the installed host without importing it; None when there is none."""
    return _installed(HOST, HOST, "_version.py")


def installed_flashinfer() -> HostInfo | None:
    """Finds the installed FlashInfer without importing it; None when there is none."""
    return _installed(FLASHINFER, FLASHINFER_DISTRIBUTION, "_build_meta.py")


def _installed(package: str, distribution: str, version_file: str) -> HostInfo | None:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(next(iter(spec.submodule_search_locations)))
    # The source that would run knows its version; the metadata found first may be another copy's.
    version = _stated_version(folder / version_file) or _installed_version(distribution)
    return HostInfo(version, folder.parent)


def versions_report() -> dict[str, str]:
    """Returns the versions of the host, of what it computes with, and of this plugin."""
    host = installed_host()
    return {
        HOST: host.version if host else NOT_INSTALLED,
        **{name: _installed_version(name) for name in STACK},
        PLUGIN: __version__,
    }


def _installed_version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return NOT_INSTALLED


def _stated_version(path: Path) -> str | None:
    """Returns the string assigned to `__version__` in a module, if any."""
    if not path.is_file():
        return None
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            names = [ast.unparse(target) for target in node.targets]
            if "__version__" in names:
                return str(node.value.value)
    return None
