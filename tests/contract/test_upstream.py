"""The patches for SGLang apply to the released source; each one's test fails without it."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hosts import REPO, host_source

RELEASE = "0.5.23"
FOLDER = REPO / "patches" / "upstream"
PATCHES = sorted(FOLDER.glob("*.patch"))
CHANGED = re.compile(r"^--- a/(\S+)$", re.MULTILINE)
ADDED = re.compile(r"^\+\+\+ b/(test/\S+)$", re.MULTILINE)


def checkout(root: Path, patch: str) -> None:
    """Lays the release out as SGLang's repository is, with files of their own where it changes."""
    package = root / "python" / "sglang"
    shutil.copytree(host_source(RELEASE) / "sglang", package, copy_function=os.symlink)
    for name in CHANGED.findall(patch):
        path = root / name
        source = path.resolve()
        path.unlink()
        shutil.copy(source, path)


def apply(root: Path, patch: Path, *only: str) -> None:
    subprocess.run(["git", "apply", *only, str(patch)], cwd=root, check=True)


def passes(root: Path, test: str) -> bool:
    environment = {**os.environ, "PYTHONPATH": str(root / "python"), "SGLANG_USE_CPU_ENGINE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(root / test)]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stdout + done.stderr  # else nothing was tested
    return done.returncode == 0


@pytest.mark.full  # runs SGLang's own test twice, before and after
@pytest.mark.parametrize("patch", PATCHES, ids=lambda path: path.stem)
def test_a_patch_applies_and_mends_what_its_test_finds(patch: Path, tmp_path: Path) -> None:
    text = patch.read_text()
    checkout(tmp_path, text)
    (test,) = ADDED.findall(text)
    apply(tmp_path, patch, "--include=test/*")
    assert not passes(tmp_path, test)
    apply(tmp_path, patch, "--exclude=test/*")
    assert passes(tmp_path, test)


def test_every_patch_is_listed() -> None:
    listed = re.findall(r"\]\((\S+\.patch)\)", (FOLDER / "README.md").read_text())
    assert listed == [path.name for path in PATCHES] != []
