"""Released hosts, unpacked: what the tests read, and import in subprocesses.

A released wheel is downloaded once into ``.cache/wheels`` and unpacked into
``.cache/hosts/<version>``, which can stand first on PYTHONPATH. FlashInfer's, which is larger, goes
to ``.cache/flashinfer/<version>``, without its kernels.
"""

import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
CACHE = REPO / ".cache"
NIXL = "1.5.1"


def host_source(version: str) -> Path:
    """Returns the folder that holds the ``sglang`` package of a released version."""
    return _unpacked(CACHE / "hosts" / version, "sglang", version, lambda name: True)


def flashinfer_source(version: str) -> Path:
    """Returns the folder that holds the ``flashinfer`` package of a released version."""
    folder = CACHE / "flashinfer" / version
    return _unpacked(folder, "flashinfer_python", version, _is_read)


def nixl_source() -> Path:
    """Returns the folder that holds the ``nixl`` package, with which PD nodes hand KV over."""
    for package in ("nixl_cu13", "nixl"):
        folder = CACHE / "nixl" / package
        _unpacked(folder, package, NIXL, lambda name: True)
    return CACHE / "nixl"


def _is_read(name: str) -> bool:
    is_binding = name.startswith("flashinfer/data/csrc/") and name.count("/") == 3
    return name.startswith("flashinfer/") and (name.endswith(".py") or is_binding)


def _unpacked(target: Path, package: str, version: str, is_wanted: Callable[[str], bool]) -> Path:
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(dir=target.parent, prefix=f"{version}-"))
        with zipfile.ZipFile(wheel(version, package)) as archive:
            archive.extractall(partial, filter(is_wanted, archive.namelist()))
        try:
            partial.rename(target)  # all or nothing, whoever else unpacks at the same time
        except OSError:
            shutil.rmtree(partial)
            if not target.is_dir():
                raise
    return target


def wheel(version: str, package: str = "sglang") -> Path:
    """Returns the released wheel of ``version``, downloading it on the first call."""
    folder = CACHE / "wheels"
    if not list(folder.glob(f"{package}-{version}-*.whl")):
        folder.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        with tempfile.TemporaryDirectory(dir=folder) as partial:
            only_wheels = ["--only-binary=:all:", "--dest", partial, f"{package}=={version}"]
            subprocess.run([*pip, *only_wheels], check=True)
            (found,) = Path(partial).iterdir()
            found.rename(folder / found.name)  # whole, whoever else downloads at the same time
    return next(folder.glob(f"{package}-{version}-*.whl"))
