"""Result files: JSON, compressed, because a checkout travels with every run.

To look into one: `xzcat FILE | jq`.
"""

import json
import lzma
from pathlib import Path
from typing import Any

COMPRESSED = ".xz"


def read_result(path: Path) -> Any:
    """Returns what a JSON file holds, compressed where its name says so."""
    return json.loads(read_content(path))


def write_result(path: Path, result: Any) -> None:
    """Writes a JSON file, compressed where its name says so."""
    write_content(path, f"{json.dumps(result, indent=1)}\n".encode())


def read_content(path: Path) -> bytes:
    """Returns the bytes of a file, compressed where its name says so."""
    content = path.read_bytes()
    return lzma.decompress(content) if path.suffix == COMPRESSED else content


def write_content(path: Path, content: bytes) -> None:
    """Writes the bytes of a file, compressed where its name says so."""
    if path.suffix == COMPRESSED:
        content = lzma.compress(content, preset=9 | lzma.PRESET_EXTREME)
    path.write_bytes(content)
