"""Keeps a cost table across restarts, in a file that belongs to one key.

The key says all that round times depend on (GPU, models, versions, settings, tiers, and how long
contexts the KV pool let start-up measure). Its digest is part of the file's name and the file
repeats it whole: a file under another key or of another format version is never used, "close
enough" is another key. The default folder is ``$XDG_CACHE_HOME/sglang-adaptive-spec``, or
``~/.cache/sglang-adaptive-spec``.
"""

import hashlib
import logging
import os
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from sglang_adaptive_spec.policy.costs.table import CostTable

logger = logging.getLogger(__name__)

FORMAT_VERSION = 3
DIGEST_CHARS = 16  # of the file's name; the key inside decides


class CostKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a cost table was measured on."""

    gpu: str
    model: str
    draft: str
    versions: dict[str, str]  # of the host, of what it computes with, of this package
    settings: dict[str, str]  # by name, as resolved: types, backends, parallelism, kernels
    tiers: tuple[tuple[int, int, int], ...]  # num_steps, topk, num_draft_tokens
    buckets: tuple[int, ...] = ()  # captured batch sizes
    longest_contexts: tuple[int, ...] = ()  # that could be measured, of one request and of many

    @property
    def digest(self) -> str:
        """A short name of the key."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:DIGEST_CHARS]

    def as_json(self) -> dict[str, Any]:
        """Returns what a file gives back."""
        return dict(msgspec.json.decode(msgspec.json.encode(self)))


class CostFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file; tools read its costs whatever its key's fields were."""

    format_version: int
    date: str  # ISO 8601, UTC
    key: dict[str, Any]  # a CostKey
    costs: dict[str, Any]  # CostTable.to_dict()


class Versioned(msgspec.Struct, frozen=True):
    """The one field that every format version has."""

    format_version: int


def default_folder() -> Path | None:
    """Returns the user's cache folder of this package, which may not exist yet.

    None for a user without a home, as in a container: nothing is kept, which is said once.
    """
    root = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG base directory specification: a relative path there is invalid and ignored.
    if os.path.isabs(root):
        return Path(root) / "sglang-adaptive-spec"
    try:
        return Path("~/.cache/sglang-adaptive-spec").expanduser()
    except RuntimeError:  # no HOME and no entry of the user among those of the system
        logger.warning(
            "ADAPTIVE_EAGLE cannot keep its round times: this user has no home directory, so every "
            "start measures them again. Set HOME or XDG_CACHE_HOME."
        )
        return None


def cost_file(key: CostKey, folder: Path) -> Path:
    """Returns the file that belongs to ``key``."""
    return folder / f"costs-{key.digest}.json"


def load(key: CostKey, folder: Path | None) -> CostTable | None:
    """Returns the table stored under exactly ``key``, drift taken back to 1; None without one.

    A file that cannot be used is left alone with one warning: start-up measures again.
    """
    if folder is None:
        return None
    path = cost_file(key, folder)
    try:
        costs = _parse(path.read_bytes(), key)
    except FileNotFoundError:
        return None
    # What is no UTF-8 is a ValueError, too; msgspec's own errors are not.
    except (OSError, msgspec.DecodeError, ValueError) as error:
        logger.warning(
            "ADAPTIVE_EAGLE does not use the round times in %s: %s. They are measured again; "
            "delete the file if this repeats.",
            path,
            error,
        )
        return None
    costs.forget_drift()
    return costs


def _parse(text: bytes, key: CostKey) -> CostTable:
    version = msgspec.json.decode(text, type=Versioned).format_version
    if version != FORMAT_VERSION:
        raise ValueError(f"its format version is {version}, this one reads {FORMAT_VERSION}")
    stored = msgspec.json.decode(text, type=CostFile)
    if stored.key != key.as_json():
        raise ValueError("it holds another key than its name says")
    costs = CostTable.from_dict(stored.costs)
    if tuple((t.num_steps, t.topk, t.num_draft_tokens) for t in costs.tiers) != key.tiers:
        raise ValueError("it holds costs of other tiers than its key")
    return costs


def save(key: CostKey, costs: CostTable, folder: Path | None) -> bool:
    """Stores ``costs`` under ``key``, all or nothing; returns whether it could.

    A folder that cannot be written is one warning: serving goes on.
    """
    if folder is None:
        return False
    path = cost_file(key, folder)
    date = datetime.now(UTC).isoformat(timespec="seconds")
    content = CostFile(
        format_version=FORMAT_VERSION,
        date=date,
        key=key.as_json(),
        costs=costs.to_dict(),
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write_atomically(path, msgspec.json.encode(content))
    except OSError as error:
        logger.warning(
            "ADAPTIVE_EAGLE cannot keep its round times in %s (%s); the next start measures again. "
            "Make the folder writable or set XDG_CACHE_HOME.",
            path,
            error.strerror or error,
        )
        return False
    return True


def _write_atomically(path: Path, text: bytes) -> None:
    """Writes beside ``path`` and renames, so that a reader sees the old file or the new one."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name, delete=False) as file:
        try:
            file.write(text)
            file.flush()
            os.replace(file.name, path)
        except OSError:
            os.unlink(file.name)
            raise
