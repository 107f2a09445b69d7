"""Result files: JSON, and compressed once they are archived: a checkout travels with every run."""

import json
import lzma
from pathlib import Path
from typing import Any

COMPRESSED = ".xz"


def read_result(path: Path) -> Any:
    """Returns what a result file holds, compressed or not."""
    content = path.read_bytes()
    return json.loads(lzma.decompress(content) if path.suffix == COMPRESSED else content)
