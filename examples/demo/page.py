"""demo/report.html: the result on one page that needs no network."""

import html
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from examples.demo.figures import ArmResult
from examples.demo.report import checks_of, last_line, outcome, speed_rows, tier_rows
from examples.demo.timeline import timeline_svg
from sglang_adaptive_spec.operate.pages import shell
from sglang_adaptive_spec.operate.pages.shell import table


def page(results: Sequence[ArmResult], settings: dict[str, Any]) -> str:
    """Returns the page as HTML."""
    checks = "".join(
        f"<li>{'ok' if each.is_met else 'FAILED'}: {html.escape(f'{each.claim}: {each.got}')}</li>"
        for each in checks_of(results)
    )
    tiers = "".join(table(tier_rows(each)) for each in results if each.arm.is_ours)
    body = (
        f"<p><b>{html.escape(outcome(results))}</b></p>"
        "<p>The servers took turns, one greedy prompt at a time. A ratio is the geometric mean "
        "over prompts; its interval follows from their scatter within a phase.</p>"
        f"{table(speed_rows(results))}{tiers}<div class=wide>{timeline_svg(results)}</div>"
        f"<ul>{checks}</ul>{table([['setting', 'value'], *setting_rows(settings)])}"
    )
    return shell.page(last_line(results), body)


def setting_rows(settings: Mapping[str, Any], prefix: str = "") -> Iterator[list[str]]:
    """Yields names and values; a file's keys stand behind its name."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from setting_rows(value, f"{prefix}{name} ")
        else:
            shown = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            yield [prefix + name, shown]
