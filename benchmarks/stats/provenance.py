"""Where a result came from: the commit and the very code that ran, host, GPU, command, time."""

import datetime
import hashlib
import importlib.metadata
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "current"
ARCHIVE = RESULTS.with_name("archive")
CODE = "sglang_adaptive_spec"
SUFFIXES = (".py", ".json")  # what runs
SAME_IN_ALL_RUNS = ("code_sha256", "host_version", "torch_version", "gpu")


def git(root: Path, *arguments: str) -> str:
    """Returns the output of a git command in the repository at ``root``."""
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def digest_of(files: Iterable[tuple[str, str]]) -> str:
    """Returns one hash of named file contents, whatever their order."""
    whole = hashlib.sha256()
    for name, content in sorted(files):
        whole.update(name.encode() + b"\0" + hashlib.sha256(content.encode()).digest())
    return whole.hexdigest()


def code_sha256(root: Path = ROOT) -> str:
    """Returns the hash of the runtime code in a checkout, whether committed or not."""
    paths = [path for path in (root / CODE).rglob("*") if path.suffix in SUFFIXES]
    return digest_of((path.relative_to(root).as_posix(), path.read_text()) for path in paths)


def code_sha256_at(commit: str, root: Path = ROOT) -> str:
    """Returns the hash of the runtime code at a commit."""
    names = git(root, "ls-tree", "-r", "--name-only", commit, "--", CODE).splitlines()
    code = [name for name in names if name.endswith(SUFFIXES)]
    return digest_of((name, git(root, "show", f"{commit}:{name}")) for name in code)


def is_ancestor(commit: str, root: Path = ROOT) -> bool:
    """Whether ``commit`` is in the history of HEAD."""
    try:
        git(root, "merge-base", "--is-ancestor", commit, "HEAD")
    except subprocess.CalledProcessError:
        return False
    return True


def gpu_name() -> str:
    """Returns the GPU's name and driver as nvidia-smi states them, or ``cpu``."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return "cpu"
    query = [tool, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    return subprocess.run(query, check=True, capture_output=True, text=True).stdout.strip()


def without_folders(argv: Sequence[str]) -> list[str]:
    """Returns the arguments with absolute paths cut to their last part: they name no machine.

    One behind a name, as in `greedy=/somewhere/text`, is cut, too.
    """
    return ["=".join(map(_without_folder, word.split("="))) for word in argv]


def _without_folder(word: str) -> str:
    return Path(word).name if Path(word).is_absolute() else word


def provenance(git_sha: str | None) -> dict[str, Any]:
    """Returns the record of this run.

    Args:
        git_sha: The commit, where the machine has the files but not the repository.
    """
    return {
        "git_sha": git_sha or git(ROOT, "rev-parse", "HEAD").strip(),
        "code_sha256": code_sha256(),
        "host_version": importlib.metadata.version("sglang"),
        "torch_version": importlib.metadata.version("torch"),
        "gpu": gpu_name(),
        "argv": without_folders(sys.argv),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def check_same_code(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the common provenance of several runs, with every command that made them.

    Machines may differ in how many GPUs of the same kind they have: a run uses one, or names more.

    Raises:
        ValueError: Two runs differ in code, host or GPU.
    """
    for key in SAME_IN_ALL_RUNS:
        values = {tuple(_kinds(record["provenance"][key])) for record in records}
        if len(values) > 1:
            found = sorted("; ".join(each) for each in values)
            raise ValueError(f"the runs differ in {key}: {found}; merge runs of one.")
    origins = [record["provenance"] for record in in_order(records)]
    return {**origins[0], "argv": [one["argv"] for one in origins]}


def _kinds(text: str) -> list[str]:
    """Returns the lines that differ, in order: a machine's GPUs, one a line, by kind."""
    return list(dict.fromkeys(text.splitlines()))


def in_order(records: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Returns runs by the time at which they began."""
    return sorted(records, key=lambda record: str(record["provenance"]["date"]))
