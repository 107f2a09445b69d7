"""Keeps a cost table across restarts, in a file that belongs to one key.

The key says all that round times depend on (GPU, models, dtype, backend, versions, tiers, and how
long contexts the KV pool let start-up measure). Its digest is part of the file's name and the file
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

from sglang_adaptive_spec.policy.costs import CostTable

logger = logging.getLogger(__name__)

FORMAT_VERSION = 2
DIGEST_CHARS = 16  # of the file's name; the key inside decides


class CostKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a cost table was measured on."""

    gpu: str
    tp_size: int
    model: str
    draft: str
    dtype: str
    attention_backend: str
    host_version: str
    plugin_version: str
    tiers: tuple[tuple[int, int, int], ...]  # num_steps, topk, num_draft_tokens
    buckets: tuple[int, ...] = ()  # captured batch sizes
    longest_contexts: tuple[int, ...] = ()  # that could be measured, of one request and of many

    @property
    def digest(self) -> str:
        """A short name of the key."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:DIGEST_CHARS]


class CostFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    format_version: int
    date: str  # ISO 8601, UTC
    key: CostKey
    costs: dict[str, Any]  # CostTable.to_dict()


class Versioned(msgspec.Struct, frozen=True):
    """The one field that every format version has."""

    format_version: int


def default_folder() -> Path:
    """Returns the user's cache folder of this package; it may not exist yet."""
    root = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG base directory specification: a relative path there is invalid and ignored.
    cache = Path(root) if os.path.isabs(root) else Path("~/.cache").expanduser()
    return cache / "sglang-adaptive-spec"


def cost_file(key: CostKey, folder: Path) -> Path:
    """Returns the file that belongs to ``key``."""
    return folder / f"costs-{key.digest}.json"


def load(key: CostKey, folder: Path) -> CostTable | None:
    """Returns the table stored under exactly ``key``, drift taken back to 1; None without one.

    A file that cannot be used is left alone with one warning: start-up measures again.
    """
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
    if stored.key != key:
        raise ValueError("it holds another key than its name says")
    costs = CostTable.from_dict(stored.costs)
    if tuple((t.num_steps, t.topk, t.num_draft_tokens) for t in costs.tiers) != key.tiers:
        raise ValueError("it holds costs of other tiers than its key")
    return costs


def save(key: CostKey, costs: CostTable, folder: Path) -> bool:
    """Stores ``costs`` under ``key``, all or nothing; returns whether it could.

    A folder that cannot be written is one warning: serving goes on.
    """
    path = cost_file(key, folder)
    date = datetime.now(UTC).isoformat(timespec="seconds")
    content = CostFile(format_version=FORMAT_VERSION, date=date, key=key, costs=costs.to_dict())
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
