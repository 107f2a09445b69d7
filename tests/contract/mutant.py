"""Copies of a released host with a change: links to the original, but for the edited files."""

import re
from collections.abc import Callable
from pathlib import Path

Edit = Callable[[str], str]


def mutate(host: Path, folder: Path, module: str, edit: Edit) -> None:
    """Makes ``folder`` a host like ``host`` with ``module`` edited; may be called repeatedly."""
    relative = _file(host, module).relative_to(host)
    source, target = host, folder
    for part in relative.parts:
        if target.is_symlink():
            target.unlink()
        if not target.exists():
            target.mkdir()
            for entry in source.iterdir():
                (target / entry.name).symlink_to(entry)
        source, target = source / part, target / part
    before = target.read_text()
    after = edit(before)
    assert after != before, f"the edit changes nothing in {module}"
    if target.is_symlink():
        target.unlink()
    target.write_text(after)


def renamed(*names: str) -> Edit:
    """Returns an edit that renames the names wherever they stand."""
    pattern = re.compile(rf"(?<![\w]){'(' + '|'.join(map(re.escape, names)) + ')'}(?![\w])")
    return lambda text: pattern.sub(r"\1_renamed", text)


def replaced(old: str, new: str) -> Edit:
    """Returns an edit that replaces the first occurrence of a text, which must be there."""
    return lambda text: text.replace(old, new, 1)


def _file(host: Path, module: str) -> Path:
    stem = host.joinpath(*module.split("."))
    return stem / "__init__.py" if stem.is_dir() else stem.with_suffix(".py")
