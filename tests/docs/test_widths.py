"""Lines of prose fit into an editor beside another one; tables and code may be wider."""

from pathlib import Path

import pytest

from tests.docs.pages import name_of, pages, prose

MAX_COLUMNS = 120
WIDE = ("|", "![", "#", "    ")  # tables, images, headings, indented code


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_lines_wrap(page: Path) -> None:
    lines = prose(page.read_text()).splitlines()
    assert [one for one in lines if len(one) > MAX_COLUMNS and not one.startswith(WIDE)] == []
