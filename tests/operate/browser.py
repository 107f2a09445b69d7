"""Opens a page as a reader does: headless Chromium, without a network."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
INSTALL = "apt-get install -y chromium"
WIDTHS = (1280, 400)
SCHEMES = ("light", "dark")
LEAST_CONTRAST = 4.5  # of text, WCAG AA


def executable() -> str:
    """Returns the browser; fails with the line that installs it."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.fail(f"there is no Chromium; allowed: {', '.join(NAMES)}; fix: {INSTALL}")
    return found


@contextlib.contextmanager
def opened(path: Path, width: int = 1280, scheme: str = "light") -> Iterator[Any]:
    """Opens a file; whatever its console says as an error, and whatever it loads, fails."""
    from playwright.sync_api import sync_playwright

    problems: list[str] = []
    with sync_playwright() as play:
        browser = play.chromium.launch(
            executable_path=executable(), args=["--no-sandbox", "--disable-gpu"]
        )
        view = {"width": width, "height": 900}
        page = browser.new_page(viewport=view, color_scheme=scheme)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda told: told.type == "error" and problems.append(told.text))
        page.on(
            "request",
            lambda asked: asked.url.startswith("http") and problems.append(f"asked {asked.url}"),
        )
        try:
            page.goto(path.as_uri())
            yield page
            assert problems == []
        finally:
            browser.close()


def move(page: Any, slider: str, value: float) -> None:
    """Moves a slider, as a drag would."""
    page.locator(f"#{slider}").evaluate(
        "(box, value) => { box.value = value; box.dispatchEvent(new Event('input')); }", value
    )


def check_readable(page: Any) -> None:
    """Nothing sticks out of the window, text stands off its ground, charts are drawn."""
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate(CONTRAST) >= LEAST_CONTRAST
    for canvas in page.locator("canvas").all():
        assert canvas.evaluate(IS_DRAWN), "an empty chart"


# The lowest contrast of the page's text to its ground.
CONTRAST = """() => {
  const part = (value) => {
    value /= 255;
    return value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  };
  const light = (text) => {
    const [r, g, b] = text.match(/[\\d.]+/g).map(Number);
    return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  };
  const ground = light(getComputedStyle(document.body).backgroundColor);
  const ratio = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  const texts = [...document.querySelectorAll("h1, h2, h3, p, th, li, label, output")];
  return Math.min(...texts.map((each) => ratio(light(getComputedStyle(each).color), ground)));
}"""
IS_DRAWN = """(canvas) => {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return data.some((value) => value);
}"""
