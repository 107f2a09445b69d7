"""What all pages share: the frame, the style, tables."""

import html
import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

CHARTS = ("uPlot.iife.min.js", "charts.js")


def page(title: str, body: str, script: str = "", data: Any = None) -> str:
    """Returns a page as HTML.

    Args:
        title: as text.
        body: as HTML.
        script: of this page, which finds uPlot, the functions of charts.js, and ``DATA``.
        data: plain builtins.
    """
    styles = [asset("style.css")]
    scripts = []
    if script:
        styles.insert(0, asset("uPlot.min.css"))
        # A text in the data must not end the script.
        text = json.dumps(data).replace("</", "<\\/")
        scripts = [*map(asset, CHARTS), f"const DATA = {text};", script]
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,">'
        f"<title>{html.escape(title)}</title><style>{''.join(styles)}</style>"
        f"<h1>{html.escape(title)}</h1>{body}"
        + "".join(f"<script>{each}</script>" for each in scripts)
        + "</html>\n"
    )


def table(rows: Sequence[Sequence[str]]) -> str:
    """Returns a table whose first row is its head; it scrolls where it does not fit."""
    head, *body = (
        "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row)
        for tag, row in zip(["th", *["td"] * len(rows)], rows, strict=False)
    )
    lines = "".join(f"<tr>{line}</tr>" for line in [head, *body])
    return f"<div class=wide><table>{lines}</table></div>"


def chart(name: str, title: str) -> str:
    """Returns the place of a chart, for the script to draw into."""
    return f"<div class=chart><h3>{title}</h3><div id={name}></div></div>"


def asset(name: str, package: str = __package__) -> str:
    """Returns a file of a package, of this one by default."""
    return files(package).joinpath(name).read_text()
