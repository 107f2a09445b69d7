"""The page of `report` in a browser: findings, five charts, a table, and nothing from a network."""

import time
from pathlib import Path

import pytest

from sglang_adaptive_spec.cli import main
from sglang_adaptive_spec.config.schema import load_config
from sglang_adaptive_spec.operate.report.hindsight import of_minutes
from sglang_adaptive_spec.operate.report.page import Story, report_page
from sglang_adaptive_spec.operate.spans import of_minutes as spans_of
from sglang_adaptive_spec.operate.spans import total
from sglang_adaptive_spec.simulate.command import goodput
from sglang_adaptive_spec.simulate.synthetic import golden_workloads
from sglang_adaptive_spec.simulate.true_costs import ExampleCosts
from tests.operate.browser import SCHEMES, WIDTHS, check_readable, opened
from tests.operate.test_report import ROW
from tests.simulate.recording import recorded

NUM_CHARTS = 5

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def of_trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    trace, path = folder / "phases.jsonl", folder / "report.html"
    recorded(
        trace, goodput(ExampleCosts("fa3"), load_config(None)), golden_workloads()["phases-2s-16"]
    )
    assert main(["report", str(trace), "--out", str(path)]) == 0
    return path


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_it_is_readable(of_trace: Path, width: int, scheme: str) -> None:
    with opened(of_trace, width, scheme) as page:
        assert page.locator("canvas").count() == NUM_CHARTS
        check_readable(page)
        assert "a regret of" in page.locator("ul").inner_text()
        steps = [each.inner_text() for each in page.locator("td:first-child").all()]
        assert steps == sorted(steps, key=int)


def test_the_minutes_of_a_server_are_drawn_too_idle_ones_as_gaps(tmp_path: Path) -> None:
    now_s = time.time()
    rows = [{**ROW, "start": now_s - 60 * number} for number in (90, 89, 20, 19, 18)]
    spans = spans_of(rows)
    path = tmp_path / "report.html"
    path.write_text(report_page(Story("a </script> server", spans, True, of_minutes(total(spans)))))
    with opened(path) as page:
        check_readable(page)
        assert page.locator("h1").inner_text() == "Report: a </script> server"
        assert "An estimate" in page.locator("ul").inner_text()
