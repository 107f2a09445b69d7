"""Released hosts, unpacked: what the tests read, and import in subprocesses.

A released wheel is downloaded once into ``.cache/wheels`` and unpacked into
``.cache/hosts/<version>``, which can stand first on PYTHONPATH.
"""

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
CACHE = REPO / ".cache"


def host_source(version: str) -> Path:
    """Returns the folder that holds the ``sglang`` package of a released version."""
    target = CACHE / "hosts" / version
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(dir=target.parent, prefix=f"{version}-"))
        with zipfile.ZipFile(wheel(version)) as archive:
            archive.extractall(partial)
        try:
            partial.rename(target)  # all or nothing, whoever else unpacks at the same time
        except OSError:
            shutil.rmtree(partial)
            if not target.is_dir():
                raise
    return target


def wheel(version: str) -> Path:
    """Returns the released wheel of ``version``, downloading it on the first call."""
    folder = CACHE / "wheels"
    if not list(folder.glob(f"sglang-{version}-*.whl")):
        folder.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        with tempfile.TemporaryDirectory(dir=folder) as partial:
            only_wheels = ["--only-binary=:all:", "--dest", partial, f"sglang=={version}"]
            subprocess.run([*pip, *only_wheels], check=True)
            (found,) = Path(partial).iterdir()
            found.rename(folder / found.name)  # whole, whoever else downloads at the same time
    return next(folder.glob(f"sglang-{version}-*.whl"))
