"""The map of the tests names every test there is, and which modules `make test` leaves out."""

import re

from tests.docs.pages import links
from tests.e2e.smoke import SMOKE
from tests.hosts import REPO

TESTS = REPO / "tests"
PAGE = (TESTS / "README.md").read_text()


def test_every_test_stands_in_the_map() -> None:
    named = {TESTS / target for target in links(PAGE)}
    unnamed = [
        str(path.relative_to(TESTS))
        for path in sorted(TESTS.rglob("test_*.py"))
        if path not in named and path.parent not in named
    ]
    assert unnamed == []


def test_what_make_test_runs_is_said() -> None:
    for path in sorted((TESTS / "e2e").glob("test_*.py")):
        (row,) = re.findall(rf"^\|.*\(e2e/{path.name}\) \| (.*) \|$", PAGE, re.MULTILINE)
        assert (row == "full") == (path.stem not in SMOKE), path.name
