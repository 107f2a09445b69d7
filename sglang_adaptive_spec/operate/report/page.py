"""The report as a page, and its findings as text."""

import html
import time
from collections.abc import Sequence
from dataclasses import dataclass

from sglang_adaptive_spec.operate.pages.shell import asset, chart, page, table
from sglang_adaptive_spec.operate.report.findings import Finding, findings
from sglang_adaptive_spec.operate.report.hindsight import Hindsight
from sglang_adaptive_spec.operate.spans import Span, total


@dataclass(frozen=True)
class Story:
    """What is reported."""

    name: str
    spans: Sequence[Span]
    is_clock: bool  # starts are seconds since 1970, else since the beginning
    hindsight: Hindsight | None

    def findings(self) -> list[Finding]:
        """Returns what stands out."""
        return findings(self.spans, self.hindsight, [self.when(span) for span in self.spans])

    def when(self, span: Span) -> str:
        """Returns when a span began, as text."""
        if self.is_clock:
            return time.strftime("%Y-%m-%d %H:%M", time.gmtime(span.start_s)) + " UTC"
        return f"{span.start_s:.1f} s"


def summary(story: Story) -> str:
    """Returns one sentence on the whole."""
    whole = total(story.spans)
    length = "-" if whole.accept_length is None else f"{whole.accept_length:.2f}"
    return (
        f"{whole.tokens:,.0f} tokens in {whole.num_rounds:,} rounds, "
        f"{whole.tokens / whole.seconds:,.0f} tokens/s over {whole.seconds:,.0f} s, idle stretches "
        f"left out; batch {whole.batch:.1f}, accept length {length} where it drafted; "
        f"{whole.packed / max(whole.num_rounds, 1):.0%} of the rounds packed."
    )


def render(story: Story) -> str:
    """Returns the report as text."""
    findings = [f"- {each.what} {each.fix}" for each in story.findings()]
    return "\n".join([story.name, summary(story), *(findings or ["- Nothing stands out."])])


def as_data(story: Story) -> dict[str, object]:
    """Returns the report as plain builtins, stretch by stretch as the page's charts have it."""
    whole, hindsight = total(story.spans), story.hindsight
    return {
        "source": story.name,
        "tokens": whole.tokens,
        "rounds": whole.rounds,
        "seconds": whole.seconds,
        "batch": whole.batch,
        "accept_length": whole.accept_length,
        "findings": [each._asdict() for each in story.findings()],
        "hindsight": hindsight and {**hindsight._asdict(), "regret": hindsight.regret},
        "over_time": _page_data(story),
    }


def report_page(story: Story) -> str:
    """Returns the report as a page."""
    findings = "".join(
        f"<li>{html.escape(each.what)} <span class=faint>{html.escape(each.fix)}</span></li>"
        for each in story.findings()
    )
    charts = "".join(
        chart(name, title)
        for name, title in (
            ("throughput", "Tokens/s"),
            ("load", "Load: requests of a round, and those that wait"),
            ("length", "Accept length: tokens of a request in a round that drafted"),
            ("tiers", "Share of rounds, by tier"),
            ("shares", "Share of drafts in vain, of prefill, of probes"),
        )
    )
    body = (
        f"<p>{html.escape(summary(story))}</p><h2>What stands out</h2>"
        f"<ul>{findings or '<li>Nothing.</li>'}</ul><h2>Over time</h2>{charts}"
        f"<h2>By tier</h2>{table(_tier_rows(total(story.spans)))}"
    )
    script = asset("page.js", __package__)
    return page(f"Report: {story.name}", body, script, _page_data(story))


def _tier_rows(whole: Span) -> list[list[str]]:
    rows = [["steps", "rounds", "share of rounds", "share of their time", "ms a round"]]
    all_ms = sum(whole.ms.values())
    timed: dict[str, float] = {}
    for (tier, _), (number, _, _) in whole.loads.items():
        timed[tier] = timed.get(tier, 0.0) + number
    for tier, number in whole.rounds.items():
        ms, of = whole.ms.get(tier, 0.0), timed.get(tier, 0.0) or number
        share = f"{ms / all_ms:.1%}" if all_ms else "-"
        each = f"{ms / of:.2f}" if ms else "-"
        rows.append([tier, f"{number:,}", f"{number / whole.num_rounds:.1%}", share, each])
    return rows


def _page_data(story: Story) -> dict[str, object]:
    tiers = list(total(story.spans).rounds)
    return {
        "isClock": story.is_clock,
        "start": [round(span.start_s, 3) for span in story.spans],
        "tokens": [round(span.tokens / span.seconds, 3) for span in story.spans],
        "batch": [round(span.batch, 3) for span in story.spans],
        "waiting": [round(span.waiting / max(span.num_rounds, 1), 3) for span in story.spans],
        "length": [span.accept_length for span in story.spans],
        "tiers": {
            tier: [span.rounds.get(tier, 0) / max(span.num_rounds, 1) for span in story.spans]
            for tier in tiers
        },
        "inVain": [
            1 - span.correct / span.proposed if span.proposed else None for span in story.spans
        ],
        "prefill": [span.prefill_ms / 1e3 / span.seconds for span in story.spans],
        "probes": [
            span.probe_ms / sum(span.ms.values()) if span.probe_ms else 0.0 for span in story.spans
        ],
    }
