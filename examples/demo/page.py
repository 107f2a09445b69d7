"""demo/report.html: the result on one page that needs no network."""

import html
from collections.abc import Sequence
from typing import Any

from examples.demo.figures import ArmResult
from examples.demo.report import checks_of, last_line, speed_rows, tier_rows
from examples.demo.timeline import timeline_svg

STYLE = """
:root { color-scheme: light dark; --page: #fff; --text: #1b1b1b; --line: #ccc; }
@media (prefers-color-scheme: dark) { :root { --page: #16181c; --text: #e6e6e6; --line: #444; } }
body { background: var(--page); color: var(--text); font: 16px/1.5 system-ui, sans-serif;
  margin: 2rem auto; max-width: 60rem; padding: 0 1rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .7rem; text-align: right; }
th:first-child, td:first-child { text-align: left; }
svg { background: #fff; height: auto; width: 100%; }
"""


def page(results: Sequence[ArmResult], settings: dict[str, Any]) -> str:
    """Returns the page as HTML."""
    checks = "".join(
        f"<li>{'ok' if each.is_met else 'FAILED'}: {html.escape(f'{each.claim}: {each.got}')}</li>"
        for each in checks_of(results)
    )
    tiers = "".join(_table(tier_rows(each)) for each in results if each.arm.is_ours)
    told = ", ".join(f"{name} {value}" for name, value in settings.items())
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>ADAPTIVE_EAGLE: the demo</title><style>{STYLE}</style>"
        f"<h1>{html.escape(last_line(results))}</h1>"
        "<p>The same greedy prompts, answered by servers that took turns. A ratio is the geometric "
        "mean over prompts; its interval follows from their scatter within a phase.</p>"
        f"{_table(speed_rows(results))}{tiers}<div class=wide>{timeline_svg(results)}</div>"
        f"<ul>{checks}</ul><p>{html.escape(told)}</p></html>\n"
    )


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = (
        "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row)
        for tag, row in zip(["th", *["td"] * len(rows)], rows, strict=False)
    )
    lines = "".join(f"<tr>{line}</tr>" for line in [head, *body])
    return f"<div class=wide><table>{lines}</table></div>"
