"""Prose is for people who skim: short sentences, and a decision on half a page."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import name_of, pages, prose
from tests.hosts import REPO

MAX_WORDS = 25  # of a sentence, without what stands in parentheses
MAX_DECISION_WORDS = 260  # half a page
HISTORY = REPO / "CHANGELOG.md"
DECISIONS = sorted((REPO / "docs" / "decisions").glob("0*.md"))
MATHEMATICS = re.compile(r"\$\$.*?\$\$", re.DOTALL)
# A blank line, or a line that begins something else: an item, a heading, a table, a quotation.
BREAK = re.compile(r"\n\s*\n|\n(?=\s*[-*] |\s*\d+\. |#|\||>)")
NO_PROSE = ("|", "#", "!", "<")  # rows, headings, pictures, comments
END = re.compile(r"(?<=[.!?:;])\s+(?=[\w\"*`(])")


def sentences(text: str) -> Iterator[str]:
    """Yields the sentences of a page; a code span is a word, a link what it shows."""
    for block in BREAK.split(MATHEMATICS.sub("", prose(text))):
        block = block.strip()
        if not block or block.startswith(NO_PROSE):
            continue
        block = re.sub(r"^\s*([-*>]|\d+\.)\s*", "", block)
        block = re.sub(r"\n>?\s*", " ", block)
        block = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", block)
        block = re.sub(r"\([^()]*\)", "", re.sub(r"`[^`]*`", "code", block))
        yield from END.split(block)


@pytest.mark.parametrize("page", [page for page in pages() if page != HISTORY], ids=name_of)
def test_sentences_are_short(page: Path) -> None:
    long = [each for each in sentences(page.read_text()) if len(each.split()) > MAX_WORDS]
    assert long == []


@pytest.mark.parametrize("page", DECISIONS, ids=name_of)
def test_a_decision_takes_half_a_page(page: Path) -> None:
    assert len(page.read_text().split()) <= MAX_DECISION_WORDS


def test_a_long_sentence_is_found_wherever_it_stands() -> None:
    long = " ".join(["word"] * (MAX_WORDS + 1)) + "."
    for text in (long, f"Short. {long}", f"- short\n- {long}", f"> {long}", f"a:\n\n1. {long}"):
        assert [each for each in sentences(text) if len(each.split()) > MAX_WORDS]
    for text in (f"| {long} |", f"```\n{long}\n```", f"Short ({long})", f"`{long}`"):
        assert not [each for each in sentences(text) if len(each.split()) > MAX_WORDS]
