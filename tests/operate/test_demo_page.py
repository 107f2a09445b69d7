"""The page of `make demo` in a browser: tables, the picture of tiers over time, no network."""

from pathlib import Path

import pytest

from examples.demo.page import page
from tests.examples.test_demo_report import results
from tests.operate.browser import SCHEMES, WIDTHS, check_readable, opened

pytestmark = pytest.mark.full


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_it_is_readable(tmp_path: Path, width: int, scheme: str) -> None:
    path = tmp_path / "report.html"
    path.write_text(page(results(), {"new_tokens": 3}))
    with opened(path, width, scheme) as shown:
        check_readable(shown)
        assert shown.locator("table").count() == 3
        picture = shown.locator("svg").bounding_box()
        assert picture is not None
        assert picture["width"] > 300
        assert picture["height"] > 100
        assert "identical: yes" in shown.locator("h1").inner_text()
