"""The page of `explain` in a browser: every slider, and figures that follow the equation."""

import re
from pathlib import Path
from typing import Any

import pytest

from sglang_adaptive_spec.cli import main
from sglang_adaptive_spec.operate.explain.page import explain_page
from sglang_adaptive_spec.operate.explain.source import Now, Source, example
from sglang_adaptive_spec.operate.explain.text import ACCEPTANCES, as_data
from sglang_adaptive_spec.tiers import chain_tier
from tests.operate.browser import SCHEMES, WIDTHS, check_readable, executable, move, opened

NUMBER = re.compile(r"-?\d+\.?\d*")

LIVE = """[...document.querySelectorAll('.live')]
  .map((cell) => [cell.parentNode.rowIndex, cell.cellIndex])"""

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pages") / "explain.html"
    assert main(["explain", "--html", str(path)]) == 0
    return path


def numbers(page: Any, name: str) -> list[float]:
    return [float(each) for each in NUMBER.findall(page.locator(f"#{name}").inner_text())]


def check_equation(page: Any, source: Source, size: int, acceptance: float, steps: int) -> None:
    """The page says what operate/explain/break_even.py says."""
    explorer, tier = source.explorer, chain_tier(steps)
    tokens = explorer.tokens(tier, acceptance)
    assert numbers(page, "tokens")[-1] == pytest.approx(tokens, abs=6e-4)
    ms, none_ms, gain = numbers(page, "measured")
    assert ms == pytest.approx(explorer.round_ms(tier, size), abs=6e-3)
    assert none_ms == pytest.approx(explorer.none_ms(size), abs=6e-3)
    assert gain == pytest.approx(tokens / ms * none_ms, abs=2e-2)
    pays = explorer.pays(size, acceptance)
    told = numbers(page, "answer")
    assert told[0] == size
    assert (told[-2], told[-1]) == (pays.tier.num_steps, pytest.approx(pays.over_none, abs=6e-3))


def test_every_slider_moves_the_figures_as_the_equation_says(file: Path) -> None:
    source = example()
    with opened(file) as page:
        check_equation(page, source, 16, 0.7, 5)
        move(page, "acceptance", 0.4)
        check_equation(page, source, 16, 0.4, 5)
        move(page, "steps", 3)
        check_equation(page, source, 16, 0.4, 3)
        move(page, "batch", 6)
        check_equation(page, source, 64, 0.4, 3)
        draft_ms, verify_ms = numbers(page, "model")[1:3]
        equation = source.explorer.equation(64, 0.4)
        assert equation is not None
        assert draft_ms == pytest.approx(equation.draft_ms, abs=6e-3)
        assert verify_ms == pytest.approx(equation.verify_ms, abs=6e-3)
        move(page, "draft", 2.0)
        steps, draft_ms, _, ms, gain = numbers(page, "model")
        assert (steps, draft_ms) == (3, 2.0)
        assert ms == pytest.approx(3 * 2.0 + verify_ms, abs=6e-3)
        none_ms = source.explorer.none_ms(64)
        assert gain == pytest.approx(
            source.explorer.tokens(chain_tier(3), 0.4) / ms * none_ms, abs=2e-2
        )
        check_equation(page, source, 64, 0.4, 3)  # what was measured does not follow a model


def test_the_map_is_that_of_explain_and_marks_the_server(tmp_path: Path) -> None:
    shipped = example()
    source = Source(shipped.explorer, shipped.batch_sizes, "a server", Now(30, 0.62, "2"))
    data = as_data(source, 30, 0.62)
    path = tmp_path / "explain.html"
    path.write_text(explain_page(data, source, 30, 0.62))
    with opened(path) as page:
        rows = page.locator("#map tr").all()[1:]
        for row, wanted in zip(rows, data["batch_sizes"], strict=True):
            cells = [each.inner_text().split() for each in row.locator("td").all()]
            assert cells == [
                [cell["tier"], f"{cell['over_none']:.2f}"] for cell in wanted["pays"].values()
            ]
        live = page.evaluate(LIVE)
        assert live == [[1 + data_index(data, 32), 1 + ACCEPTANCES.index(0.6)]]
        assert "batch 30, acceptance 0.62, at 2 steps" in page.locator("#live-is").inner_text()


def data_index(data: dict[str, Any], size: int) -> int:
    return [row["batch_size"] for row in data["batch_sizes"]].index(size)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_it_is_readable(file: Path, width: int, scheme: str) -> None:
    with opened(file, width, scheme) as page:
        assert page.locator("canvas").count() == 2
        check_readable(page)


def test_a_page_that_cannot_be_written_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", "--html", str(tmp_path / "none" / "page.html")]) == 1
    assert "cannot be written (No such file or directory); allowed" in capsys.readouterr().err


def test_without_chromium_the_test_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(pytest.fail.Exception, match="apt-get install -y chromium"):
        executable()
