"""The Markdown pages of the repository, and what a reader may take from them literally."""

import re
from collections.abc import Iterator
from pathlib import Path

from tests.hosts import REPO

FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)
INLINE_CODE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} +(.+)$", re.MULTILINE)
# Folders that hold no page of ours: environments, caches, what a run wrote.
SKIPPED = {"demo", "dist", "build", "node_modules"}


def pages() -> list[Path]:
    """Returns every Markdown file of the checkout."""
    return sorted(
        path
        for path in REPO.rglob("*.md")
        if not any(
            part.startswith(".") or part in SKIPPED for part in path.relative_to(REPO).parts[:-1]
        )
    )


def name_of(path: Path) -> str:
    """Returns a page's path as test ids and messages show it."""
    return str(path.relative_to(REPO))


def prose(text: str) -> str:
    """Returns a page without its code blocks."""
    return FENCE.sub("", text)


def code_blocks(text: str, language: str) -> list[str]:
    """Returns the code blocks of one language."""
    return [body for found, body in FENCE.findall(text) if found == language]


def code_spans(text: str) -> list[str]:
    """Returns everything that stands between single backticks."""
    return INLINE_CODE.findall(prose(text))


def links(text: str) -> list[str]:
    """Returns the targets of all links and images."""
    return LINK.findall(INLINE_CODE.sub("", prose(text)))


def anchors(text: str) -> set[str]:
    """Returns the anchors of a page's headings, as GitHub makes them."""
    titles = (title.replace("`", "").lower() for title in HEADING.findall(prose(text)))
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles}


def section(text: str, heading: str) -> str:
    """Returns the text under a heading of the second level."""
    found = re.search(rf"^## {re.escape(heading)}$(.*?)(?=^## |\Z)", text, re.M | re.S)
    assert found, f"no section {heading!r}"
    return found[1]


def first_column(text: str) -> Iterator[str]:
    """Yields the first cell of every table row, head and ruler left out."""
    rows = [line for line in text.splitlines() if line.startswith("|")]
    for index, row in enumerate(rows):
        is_head = index + 1 < len(rows) and set(rows[index + 1]) <= set("|-: ")
        if not is_head and not set(row) <= set("|-: "):
            yield row.split("|")[1].strip()
