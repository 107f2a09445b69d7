"""Every relative link leads to a file, and every anchor to a heading."""

from pathlib import Path

import pytest

from tests.docs.pages import anchors, links, name_of, pages
from tests.hosts import REPO


def broken_links(page: Path, text: str) -> list[str]:
    """Returns the relative links of a page that lead nowhere."""
    broken = []
    for link in links(text):
        if link.startswith(("https://", "http://", "mailto:")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            broken.append(f"{link}: no such file")
        elif anchor and anchor not in anchors(target.read_text() if path else text):
            broken.append(f"{link}: no such heading")
    return broken


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_every_link_of_a_page_resolves(page: Path) -> None:
    assert broken_links(page, page.read_text()) == []


def test_the_check_finds_missing_files_and_headings() -> None:
    page = REPO / "docs" / "README.md"
    text = "## There\n[a](config.md) [b](gone.md) [c](#there) [d](#gone) [e](config.md#gone)\n"
    assert broken_links(page, text) == [
        "gone.md: no such file",
        "#gone: no such heading",
        "config.md#gone: no such heading",
    ]


def test_the_index_names_every_page_in_docs() -> None:
    docs = REPO / "docs"
    listed = {(docs / link.partition("#")[0]).resolve() for link in links(read(docs / "README.md"))}
    assert [path.name for path in docs.glob("*.md") if path not in listed] == ["README.md"]


def test_every_decision_is_listed_and_has_its_four_parts() -> None:
    folder = REPO / "docs" / "decisions"
    decisions = sorted(set(folder.glob("*.md")) - {folder / "README.md"})
    assert len(decisions) >= 9
    listed = set(links(read(folder / "README.md")))
    assert {path.name for path in decisions} == listed
    for path in decisions:
        headings = {"context", "decision", "consequences", "revisit-when"}
        assert headings <= anchors(read(path)), path.name


def read(path: Path) -> str:
    return path.read_text()
